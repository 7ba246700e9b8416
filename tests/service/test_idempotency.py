"""Requests with idempotency keys that come again, also while the first one runs."""

from __future__ import annotations

import asyncio

import pytest

from stretto.http.refusals import Refused
from stretto.service.idempotency import AnsweredKeys


def test_the_same_request_at_the_same_time_is_done_once() -> None:
    async def program() -> None:
        keys, may_end, num_runs = AnsweredKeys(), asyncio.Event(), 0

        async def run() -> bytes:
            nonlocal num_runs
            num_runs += 1
            await may_end.wait()
            return b"%d" % num_runs

        asked = [asyncio.create_task(keys.once("k", "/v1/sessions", b"{}", run)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="came with another request"):
            await keys.once("k", "/v1/sessions", b"other", run)
        may_end.set()
        assert await asyncio.gather(*asked) == [b"1"] * 3
        assert await keys.once("k", "/v1/sessions", b"{}", run) == b"1"

    asyncio.run(program())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_request_that_waited_for_one_that_failed_runs_itself(is_cancelled: bool) -> None:
    async def program() -> None:
        keys, may_end = AnsweredKeys(), asyncio.Event()

        async def fail() -> bytes:
            await may_end.wait()
            raise Refused(429, "over_limit", "too many")

        async def run() -> bytes:
            return b"done"

        first = asyncio.create_task(keys.once("k", "/", b"", fail))
        await asyncio.sleep(0)
        second = asyncio.create_task(keys.once("k", "/", b"", run))
        await asyncio.sleep(0)
        if is_cancelled:
            first.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else Refused):
            await first
        assert await second == b"done"

    asyncio.run(program())
