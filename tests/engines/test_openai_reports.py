"""What a server tells while it is watched: its load by `/metrics`, and its KV events from the start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.kv_publisher import publishing, stored
from support.openai_stub import MODEL, OpenAIStub, Reply

from stretto.cluster.kv_events import AllBlocksCleared, BlockStored, KVEvent
from stretto.cluster.messages import InstanceLoad
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig, known_server, server
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.errors import EngineUnavailable

pytest_plugins = ("support.llm_fixtures",)

Report = Sequence[KVEvent] | InstanceLoad


def metrics(num_running: int) -> str:
    """Return metrics that say: two requests wait, and half of the KV cache is taken."""
    counts = {"num_requests_running": num_running, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.5}
    return "".join(f"vllm:{name} {value}\n" for name, value in counts.items())


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


def test_its_load_is_reported_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    answers = iter([metrics(1), metrics(2), metrics(3)])

    async def main() -> list[Report]:
        pages = {"GET /metrics": lambda _: next(answers, metrics(9))}
        async with OpenAIStub(lambda _: Reply(), pages=pages) as stub:
            config = OpenAIServerConfig(stub.url, reports_load=True)
            return await watched(config, lambda reports: len(reports) >= 3)

    assert asyncio.run(main())[:3] == [
        InstanceLoad(1, 2),
        InstanceLoad(2, 2),
        InstanceLoad(3, 2),
    ]


@pytest.mark.parametrize("page", [None, "up 1\n"])
def test_a_server_that_does_not_tell_is_asked_once(monkeypatch: pytest.MonkeyPatch, page: str | None) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.001)

    async def main() -> list[Mapping[str, str]]:
        asked: list[str] = []

        def answer(_: object) -> str:
            asked.append("metrics")
            assert page is not None
            return page

        pages = {} if page is None else {"GET /metrics": answer}
        async with OpenAIStub(lambda _: Reply(), pages=pages) as stub:
            config = OpenAIServerConfig(stub.url, reports_load=True)
            turns = iter(range(100))  # it could ask again in each
            assert await watched(config, lambda _: bool(stub.heads) and next(turns, None) is None) == []
            return stub.heads

    assert len(asyncio.run(main())) == 1


def test_a_server_that_is_away_for_a_while_tells_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.01)

    async def fetched(instance: OpenAIServer) -> InstanceLoad:
        asked.append(1)
        if len(asked) < 4:
            raise EngineUnavailable("it refuses")
        return InstanceLoad(1, 0)

    asked: list[int] = []
    monkeypatch.setattr(OpenAIServer, "load", fetched)

    async def main() -> list[Report]:
        return await watched(OpenAIServerConfig("http://127.0.0.1:1", reports_load=True), bool)

    assert asyncio.run(main())[0] == InstanceLoad(1, 0)
    assert len(asked) >= 4


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
    assert isinstance(first, list | tuple)
    assert [type(event) for event in first] == [BlockStored]
    assert list(last) == [AllBlocksCleared()]  # type: ignore[arg-type]
    assert len(asked) == 3
