"""Stretto's own engines work against emulated servers: as a URL, and as a program that they start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.emulated import MODEL, emulating, fleet_of

from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.http import Http
from stretto.engines.openai_server.metrics import ServerLoad, read_load
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
from stretto.engines.server_process.programs import command_line
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece
from stretto.model.values import Segment
from stretto.wire import paths

TASK = LLMTask(1, "q", "answer", (Segment("Every house has a kitchen. "),), Decode(max_tokens=6))


def generated(url: str, task: LLMTask = TASK, rank: tuple[float, ...] = (), **config: Any) -> list[LLMEvent]:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        server = OpenAIServer(OpenAIServerConfig(url, **config))
        await server.generate(task, events.append, rank)
        await server.aclose()
        return events

    return asyncio.run(main())


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_task_is_answered_in_pieces(api: str) -> None:
    with emulating(fleet_of()) as (url,):
        events = generated(url, api=api)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.value == "".join(event.value for event in events if isinstance(event, Piece))
    assert done.usage.num_output_tokens == 6


def test_a_rank_is_taken_where_requests_are_served_by_priority() -> None:
    with emulating(fleet_of(scheduling="priority")) as (url,):
        assert isinstance(generated(url, rank=(3.0, 1.0), priorities=True)[-1], Done)


def test_its_load_is_understood() -> None:
    async def main(url: str) -> ServerLoad:
        http = Http(OpenAIServerConfig(url))
        metrics = await http.fetch(paths.METRICS)
        await http.aclose()
        return read_load(metrics.decode())

    with emulating(fleet_of()) as (url,):
        assert asyncio.run(main(url)) == ServerLoad(0, 0)


def test_an_emulated_server_is_started_as_a_process() -> None:
    async def main() -> list[LLMEvent]:
        events: list[LLMEvent] = []
        server = ServerProcess(
            ServerProcessConfig(
                "emulated", MODEL, arguments=("--loading-s", "0"), start_timeout_s=60, grace_s=2
            )
        )
        await server.start()
        await server.generate(TASK, events.append)
        await server.aclose()
        return events

    assert isinstance(asyncio.run(main())[-1], Done)


def test_limits_of_a_replica_become_options_of_its_server() -> None:
    config = ServerProcessConfig("emulated", MODEL, memory_share=0.5, tp=2, num_slots=8, arguments=("--x",))
    _, _, _, *options = command_line(config, 8001)
    assert options == [
        *("emulate", "--model", MODEL, "--host", "127.0.0.1", "--port", "8001"),
        *("--tensor-parallel-size", "2", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.5", "--x"),
    ]
