"""Replicas in Ray, as far as it goes without a cluster. `make ray-check` runs them on a real one."""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.runtime_engines import SHOUT, Acting, ActingConfig

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
from stretto.engines.server_process.refusals import wait_until_refusing
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.references import Reference, load_references
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Task
from stretto.runtime.instances import ray_values
from stretto.runtime.instances.ray_demand import (
    RayDemand,
    RayNode,
    check_feasible,
    demand_of,
    parse_head_address,
    to_avoid,
)
from stretto.runtime.instances.ray_values import RayValues
from stretto.runtime.instances.ray_worker import BatchWorker
from stretto.runtime.worker import InstanceJob, RunBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, InstanceReady
from stretto.sched.messages import Event

SMALL = RayNode("1", "10.0.0.1", {"CPU": 4.0, "node:10.0.0.1": 1.0})
LARGE = RayNode("2", "10.0.0.2", {"CPU": 8.0, "GPU": 2.0, "node:10.0.0.2": 1.0})
SERVER = ServerProcessConfig("vllm", "some/model")


def replica(**settings: Any) -> Replica:
    return Replica(ServerProcess, SERVER, runs_in="ray", **settings)


@pytest.mark.parametrize(
    ("settings", "demand"),
    [
        ({}, RayDemand(1, 0)),
        ({"threads": 3}, RayDemand(3, 0, threads=3)),
        ({"devices": ("cpu:0", "cpu:5")}, RayDemand(2, 0, threads=2)),
        ({"devices": ("cpu:0", "cpu:5"), "threads": 4}, RayDemand(2, 0, threads=4)),
        ({"devices": ("cuda:6",), "host": "10.0.0.2"}, RayDemand(1, 1, host="10.0.0.2")),
        ({"devices": ("cuda:0", "cuda:1"), "tp": 2, "threads": 2}, RayDemand(2, 2, threads=2)),
        ({"tp": 4}, RayDemand(1, 4)),
    ],
)
def test_a_replica_asks_for_its_devices_by_their_number(settings: dict[str, Any], demand: RayDemand) -> None:
    assert demand_of(replica(**settings)) == demand


def test_what_no_node_has_is_refused_with_what_there_is() -> None:
    check_feasible(RayDemand(8, 2), [SMALL, LARGE])
    check_feasible(RayDemand(4, 0, "10.0.0.1"), [SMALL, LARGE])
    with pytest.raises(
        ConfigError, match=r"has 1 cores, 3 accelerators; its nodes: 10\.0\.0\.1 with 4 cores; "
    ):
        check_feasible(RayDemand(1, 3), [SMALL, LARGE])
    with pytest.raises(ConfigError, match=r"has 1 cores, the address 10\.0\.0\.3; its nodes:"):
        check_feasible(RayDemand(1, 0, "10.0.0.3"), [SMALL, LARGE])
    with pytest.raises(ConfigError, match="its nodes: none"):
        check_feasible(RayDemand(1, 0), [])


def test_a_node_that_failed_is_passed_over_where_another_one_will_do() -> None:
    assert to_avoid(RayDemand(1, 0), [SMALL, LARGE], ["1"]) == ["1"]
    assert to_avoid(RayDemand(1, 0), [SMALL, LARGE], ["2", "1"]) == []
    assert to_avoid(RayDemand(1, 1), [SMALL, LARGE], ["2"]) == []
    assert to_avoid(RayDemand(1, 0), [SMALL, LARGE], []) == []


@pytest.mark.parametrize(
    "address", ["", "10.0.0.1", "ray://10.0.0.1:10001", ":6379", "head:no", "head:70000", "auto"]
)
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be the host and port of the cluster's head"):
        parse_head_address(address)


def test_an_address_has_a_host_and_a_port() -> None:
    assert parse_head_address("head:6379") == ("head", 6379)


def test_a_server_on_a_node_leaves_the_devices_to_ray() -> None:
    replica_ = replica(devices=("cpu:1", "cpu:2"), port=8000)
    config = replica_.instance_config()
    assert isinstance(config, ServerProcessConfig)
    there = config.on_node("10.0.0.2")
    assert (there.address, there.port, there.devices, there.threads) == ("10.0.0.2", 8000, (), 2)


def test_an_llm_in_ray_is_a_server_process() -> None:
    Runtime([Deployment(Engine("llm", "llm"), (replica(),))], ray_address="head:6379")
    fake = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", runs_in="ray")
    with pytest.raises(ConfigError, match=r"'llm': FakeLLM runs in no Ray worker; in Ray an LLM is a server"):
        Runtime([fake], ray_address="head:6379")


def test_a_runtime_without_an_address_refuses_a_replica_in_ray() -> None:
    acting = deploy("acting", Acting, ActingConfig(), runs_in="ray")
    with pytest.raises(ConfigError, match=r"engine 'acting': .* has no ray_address; give the host and port"):
        Runtime([acting])

    async def add() -> None:
        async with Runtime([deploy("acting", Acting, ActingConfig())]) as runtime:
            runtime.add_instance("acting", acting.replicas[0])

    with pytest.raises(ConfigError, match="has no ray_address"):
        asyncio.run(add())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "stretto.runtime.instances.ray", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'stretto\[ray\]'"):
        enter("127.0.0.1:1")


def test_an_address_that_does_not_answer_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    with pytest.raises(
        ConfigError, match=rf"'{address}' does not answer .* start the cluster \(ray start --head\)"
    ):
        enter(address)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_what_answers_at_the_address_but_is_not_ray_is_refused(says: bytes) -> None:
    pytest.importorskip("ray")
    with (
        saying(says) as address,
        pytest.raises(ConfigError, match=rf"answers at the Ray address '{address}' is not Ray"),
    ):
        enter(address)


def test_an_address_that_is_silent_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("stretto.runtime.instances.ray._PROBE_S", 0.05)
    with saying(None) as address, pytest.raises(ConfigError, match=r"does not answer \(timed out\)"):
        enter(address)


def test_a_port_that_refuses_is_noticed() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        refusing = asyncio.create_task(wait_until_refusing(url, look_s=0.001))
        await asyncio.sleep(0.02)
        assert not refusing.done()
        server.close()
        await asyncio.wait_for(refusing, 10)

    asyncio.run(run())


class LocalWorker:
    """A stand-in for a Ray worker: its methods are those of `does`, called here."""

    def __init__(self, **does: Callable[..., Any]) -> None:
        self._does = {"start": lambda *_: None, "close": lambda: None, **does}
        self.calls: list[str] = []
        self.is_blamed = False
        self.timeout_s: float | None = None

    async def placed(self) -> str:
        return "node"

    async def call(self, method: str, *arguments: object) -> Any:
        self.calls.append(method)
        answer = self._does[method](*arguments)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def run_batch(self, batch: int, tasks: object) -> Any:
        return await self.call("run", batch, tasks)

    def blame(self) -> None:
        self.is_blamed = True

    async def end(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


class LocalCluster:
    """A stand-in for a Ray cluster that places everything on one worker."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker

    def place(self, kind: type, demand: RayDemand) -> LocalWorker:
        return self._worker


def batch_events(worker: LocalWorker) -> list[Event]:
    """Return what an instance posts that is given one batch."""
    pytest.importorskip("ray")
    from stretto.runtime.instances.ray_batch import RayBatchInstance

    events: list[Event] = []

    async def run() -> None:
        job = InstanceJob("acting", 7, False, Acting, ActingConfig())
        cluster: Any = LocalCluster(worker)
        instance = RayBatchInstance(job, events.append, cluster, RayDemand(1, 0))
        while not events:
            await asyncio.sleep(0)
        instance.send(RunBatch(3, (Task(1, "q", "step", "call", {"text": "hello"}, {}),)))
        for _ in range(10):
            await asyncio.sleep(0)
        await instance.close()

    asyncio.run(run())
    return events


def test_a_batch_goes_to_the_worker_and_its_answer_comes_back() -> None:
    worker = LocalWorker(run=lambda batch, tasks: BatchDone("acting", 7, batch, ["HELLO"]))
    assert batch_events(worker) == [InstanceReady("acting", 7), BatchDone("acting", 7, 3, ["HELLO"])]
    assert worker.calls == ["start", "run"]
    assert worker.timeout_s
    assert not worker.is_blamed


def test_a_lost_worker_is_a_lost_instance_and_is_not_asked_to_close() -> None:
    def run(batch: int, tasks: object) -> Any:
        raise EngineUnavailable("its Ray worker is lost")

    worker = LocalWorker(run=run)
    ready, lost = batch_events(worker)
    assert ready == InstanceReady("acting", 7)
    assert isinstance(lost, InstanceLost)
    assert isinstance(lost.error, EngineUnavailable)
    assert worker.timeout_s == 0


def test_what_cannot_be_sent_fails_its_batch_alone() -> None:
    def run(batch: int, tasks: object) -> Any:
        raise TypeError("cannot pickle a lock")

    _, failed = batch_events(LocalWorker(run=run))
    assert isinstance(failed, BatchFailed)
    assert isinstance(failed.error, EngineFailure)
    assert "cannot pass through Ray: cannot pickle a lock" in str(failed.error)


class Vectors(Acting):
    """A `BatchEngine` whose answers are as large as its texts say."""

    op_names: Sequence[str] = ()

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return [[np.full(int(size), 7.0) for size in task.inputs["sizes"]] for task in tasks]  # type: ignore


@pytest.mark.parametrize(("sizes", "num_left"), [((100, 200), 0), ((20_000, 3, 10_000), 2)])
def test_large_values_of_a_ray_worker_stay_in_the_object_that_it_returns(
    sizes: tuple[int, ...], num_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = object.__new__(BatchWorker)  # a whole one ends this process when its parent ends
    worker._job, worker._engine = InstanceJob("vectors", 7, False, Vectors, None), Vectors(ActingConfig())
    answer, values = worker.run(3, (Task(1, "q", "step", "embed", {"sizes": sizes}, {}),))
    answer = pickle.loads(pickle.dumps(answer))
    assert isinstance(answer.event, BatchDone)
    (told,) = answer.event.results
    assert isinstance(told, list)
    assert sum(isinstance(value, Reference) for value in told) == num_left
    assert (answer.stored is None) == (values is None) == (not num_left)
    if answer.stored is not None:
        answer.stored.object = "the object"
        monkeypatch.setattr(ray_values, "_object", {"the object": values}.__getitem__)
    there = pickle.loads(pickle.dumps(told))
    assert np.array_equal(np.concatenate(load_references(there)), np.full(sum(sizes), 7.0))  # type: ignore[call-overload]


def test_what_a_ray_worker_cannot_fetch_is_sent() -> None:
    pytest.importorskip("ray")
    from stretto.runtime.instances.ray_batch import RayBatchInstance

    class Here:
        def load(self, index: int) -> object:
            return f"value {index}"

    there = Reference(RayValues([10]), 0)
    given: list[Task] = []

    async def run() -> None:
        worker = LocalWorker(run=lambda batch, tasks: given.extend(tasks))
        cluster: Any = LocalCluster(worker)
        job = InstanceJob("acting", 7, False, Acting, ActingConfig())
        instance = RayBatchInstance(job, lambda event: None, cluster, RayDemand(1, 0))
        inputs = {"texts": [Reference(Here(), 5), there]}
        instance.send(RunBatch(3, (Task(1, "q", "step", "call", inputs, {}),)))
        while not given:
            await asyncio.sleep(0)
        await instance.close()

    asyncio.run(run())
    assert given[0].inputs == {"texts": ["value 5", there]}


def test_an_engine_that_cannot_be_constructed_is_reported() -> None:
    def start(*_: object) -> Any:
        raise ConfigError("there is no such model")

    worker = LocalWorker(start=start, run=lambda *_: None)
    (lost, *_) = batch_events(worker)
    assert isinstance(lost, InstanceLost)
    assert isinstance(lost.error, ConfigError)


@pytest.mark.parametrize("how", ["refuses", "says so", "worker lost"])
def test_a_server_in_ray_has_ended_as_soon_as_anything_shows_it(how: str) -> None:
    """Ray alone would notice only after 20 seconds."""
    pytest.importorskip("ray")
    from stretto.runtime.instances.ray_server import RayLaunched

    async def run() -> tuple[EngineUnavailable, LocalWorker]:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def ended() -> str:
            if how == "refuses":
                await asyncio.Event().wait()
            if how == "worker lost":
                raise EngineUnavailable("its Ray worker is lost")
            return "server 'vllm' ended with exit code 1"

        worker = LocalWorker(start=lambda config: f"http://127.0.0.1:{port}", ended=ended)
        cluster: Any = LocalCluster(worker)
        launched = RayLaunched(cluster, SERVER, RayDemand(1, 0))
        assert await launched.start() == f"http://127.0.0.1:{port}"
        if how == "refuses":
            server.close()
        error = await asyncio.wait_for(launched.ended(), 10)
        await launched.aclose()
        server.close()
        return error, worker

    error, worker = asyncio.run(run())
    assert isinstance(error, EngineUnavailable)
    assert {"refuses": "nobody listens at", "says so": "exit code 1", "worker lost": "lost"}[how] in str(
        error
    )
    assert worker.is_blamed
    assert worker.timeout_s == 0, "what is lost is not asked to close"


def enter(address: str) -> None:
    """Open a runtime that is to join a cluster."""

    async def run() -> None:
        async with Runtime(
            [deploy("acting", Acting, ActingConfig(), runs_in="ray")], ray_address=address
        ) as runtime:
            await runtime.run(SHOUT, {"text": "never"})

    asyncio.run(run())


@contextmanager
def saying(words: bytes | None) -> Iterator[str]:
    """Start a server that sends `words` to each connection and hangs up, or sends nothing; return its
    address.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        accepted: list[socket.socket] = []

        def serve() -> None:
            one, _ = server.accept()
            accepted.append(one)
            if words is not None:
                one.recv(64)
                one.sendall(words)
                one.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)
        for one in accepted:
            one.close()
