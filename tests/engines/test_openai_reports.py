"""What a server tells while it is watched: its KV events from the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.kv_publisher import publishing, stored
from support.openai_stub import MODEL, OpenAIStub, Reply

from stretto.cluster.kv_events import AllBlocksCleared, BlockStored, KVEvent
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig, known_server
from stretto.engines.openai_server.config import KVEventsConfig

pytest_plugins = ("support.llm_fixtures",)

Report = Sequence[KVEvent]


async def watched(
    config: OpenAIServerConfig, is_enough: Callable[[list[Report]], bool], timeout_s: float = 100
) -> list[Report]:
    """Return what is reported until there is enough."""
    reports: list[Report] = []
    instance = OpenAIServer(config)
    watching = asyncio.create_task(instance.watch(reports.append))
    try:
        async with asyncio.timeout(timeout_s):
            while not is_enough(reports):
                assert not watching.done()
                await asyncio.sleep(0.001)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await instance.aclose()
    return reports


def test_nothing_is_asked_that_nobody_wants_to_know() -> None:
    """The server gets no request by default before the first task."""

    async def main() -> int:
        async with OpenAIStub(lambda _: Reply()) as stub:
            with pytest.raises(TimeoutError):
                await watched(OpenAIServerConfig(stub.url), bool, timeout_s=0.2)
            return len(stub.heads)

    assert asyncio.run(main()) == 0


def test_kv_events_are_followed_before_the_first_task(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server is not there yet, and until what it tells cannot be understood."""
    monkeypatch.setattr(known_server, "LOOK_S", 0.01)
    asked: list[int] = []

    def models(_: object) -> str:
        asked.append(1)
        return "{}" if len(asked) < 3 else json.dumps({"data": [{"id": MODEL}]})

    async def main() -> list[Report]:
        async with (
            asyncio.timeout(100),
            publishing() as publisher,
            OpenAIStub(lambda _: Reply(("so",)), pages={"GET /v1/models": models}) as stub,
        ):
            config = OpenAIServerConfig(
                stub.url,
                tokenizer=str(tiny_checkpoint),
                kv_events=KVEventsConfig(publisher.endpoint),
            )

            async def publish() -> None:
                await publisher.subscribed()
                await publisher.publish(0, stored([7], None, [1, 2]))
                await publisher.publish(1, payload=b"\xc1")

            publishing_all = asyncio.create_task(publish())
            reports = await watched(config, lambda reports: len(reports) >= 2)
            await publishing_all
            assert stub.requests == []
            return reports

    first, last = asyncio.run(main())
    assert [type(event) for event in first] == [BlockStored]
    assert list(last) == [AllBlocksCleared()]
    assert len(asked) == 3
