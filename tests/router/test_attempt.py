"""One attempt at a worker: the times by which it is ended."""

from __future__ import annotations

import asyncio
from typing import Any

from support.routing import run

from stretto.engines.http_client.answer_parser import AnswerParser
from stretto.router.attempt import Attempt


class Everything:
    """Stands for a worker's connections, one of them, and the owner of an attempt; does nothing."""

    def take(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_the_time_of_a_stream_counts_from_its_head_and_not_while_it_is_paused() -> None:
    async def main() -> None:
        parts: Any = Everything()
        attempt = Attempt(parts, b"", parts, may_reuse=True)
        began_s = attempt.last_s
        await asyncio.sleep(0.01)
        attempt.on_head(AnswerParser())
        head_s = attempt.last_s
        assert head_s > began_s
        attempt.pause()
        await asyncio.sleep(0.01)
        attempt.resume()
        assert attempt.last_s > head_s

    run(main())
