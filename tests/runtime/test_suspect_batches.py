"""Instances of batch engines whose servers end and come back: their work is done elsewhere, or later."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.pooling_stub import PoolingStub, answering
from support.runtime_engines import graph
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.engines.batch.server.embedding import EmbeddingServer
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineUnavailable
from stretto.model.replica import Engine, Replica, RunsIn
from stretto.sched.engine_events import InstanceReady, InstanceSuspected
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

EMBED = graph(
    """
    graph embedding(%texts: list[text])
      %vectors = embed(texts=each %texts) : list[vector] @embedding
      return %vectors
    """
)


class Watching(Observer):
    """An observer that notes which instances were suspected and which came up."""

    def __init__(self) -> None:
        self.suspected: list[int] = []
        self.ready: list[int] = []

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case InstanceSuspected(_, instance):
                self.suspected.append(instance)
            case InstanceReady(_, instance):
                self.ready.append(instance)


def stub() -> PoolingStub:
    return PoolingStub(
        {
            "GET /v1/models": lambda _: {"data": [{"id": "bge"}]},
            "POST /v1/embeddings": lambda body: {
                "data": [
                    {"index": index, "embedding": [float(len(text)), 1.0]}
                    for index, text in enumerate(body["input"])
                ]
            },
        }
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


def embedding(*urls: str, recover_s: float = 30.0, runs_in: RunsIn = "thread") -> Deployment:
    engine = Engine("embedding", max_attempts=2, recover_s=recover_s)
    replicas = [Replica(EmbeddingServer, BatchServerConfig(url), runs_in=runs_in) for url in urls]
    return Deployment(engine, tuple(replicas))


async def embedded(runtime: Runtime, *texts: str) -> object:
    async with asyncio.timeout(100):
        (vectors,) = (await runtime.run(EMBED, {"texts": list(texts)})).values()
    return [len(vector) for vector in vectors]


@in_real_time
async def test_a_server_that_refuses_is_suspected_once_and_the_work_goes_elsewhere() -> None:
    watching = Watching()
    with answering(stub()) as url:
        deployment = embedding(f"http://127.0.0.1:{free_port()}", url)
        async with Runtime([deployment], observers=[watching]) as runtime:
            for number in range(6):
                assert await embedded(runtime, "a" * number, "b") == [2, 2]
    assert watching.suspected == [0]


@pytest.mark.parametrize("runs_in", ["thread", "process"])
@in_real_time
async def test_a_server_that_comes_back_gets_the_work_that_waits(runs_in: RunsIn) -> None:
    watching, port = Watching(), free_port()
    deployment = embedding(f"http://127.0.0.1:{port}", runs_in=runs_in)
    async with Runtime([deployment], observers=[watching]) as runtime:
        waiting = asyncio.create_task(embedded(runtime, "one", "two"))
        while not watching.suspected:
            await asyncio.sleep(0.01)
        with answering(stub(), port):
            assert await waiting == [2, 2]
            assert await embedded(runtime, "three") == [2]
    assert watching.suspected == [0]
    assert watching.ready == [0, 0]


@in_real_time
async def test_a_server_that_stays_away_fails_the_query_after_a_while() -> None:
    async with Runtime([embedding(f"http://127.0.0.1:{free_port()}", recover_s=0.2)]) as runtime:
        with pytest.raises(EngineUnavailable, match="cannot reach"):
            await embedded(runtime, "one")
