"""Instances that come and go while queries run: no query notices more than it has to."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.fleets import FleetWatch
from support.runtime_engines import (
    COMPLETE,
    LET_GO,
    SHOUT,
    ActingConfig,
    Log,
    Server,
    ServerEngine,
    acting,
    fake_llm,
    graph,
    server,
)
from support.virtual_loop import in_real_time, in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.cluster.kv_events import KVEvent
from stretto.cluster.machine import Machine
from stretto.cluster.messages import DrainHow
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Failed, LLMEvent, LLMTask
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.messages import Event

pytest_plugins = ("support.llm_fixtures",)

OTHER = graph(
    """
    graph other(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @other
      %answer = decode(%kv) {max_tokens=50} : text @other
      return %answer
    """
)
PATIENT: dict[str, Any] = {"no_replica_s": math.inf, "recover_s": math.inf, "max_attempts": 1000}


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds that no event announces."""
    while not is_so():
        await asyncio.sleep(0.002)


# --- under load


@dataclass
class Mortality:
    """The servers that live now, and how often requests are refused."""

    draw: random.Random
    refused: float = 0.0
    living: list[Mortal] = field(default_factory=list)
    log: Log = field(default_factory=Log)


class Mortal(Server):
    """A server that can be killed, and refuses some requests."""

    def __init__(self, config: Mortality) -> None:
        super().__init__(config.log)
        self._config = config
        self.death = asyncio.Event()
        config.living.append(self)

    async def start(self) -> None:
        await asyncio.sleep(self._config.draw.choice((0.0, 2.0)))

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        await self.death.wait()
        raise EngineUnavailable("it was killed")

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        if self._config.draw.random() < self._config.refused:
            emit(Failed(task.id, EngineUnavailable("come back later")))
            return
        await super().generate(task, emit, rank)

    async def aclose(self) -> None:
        self._config.living.remove(self)
        await super().aclose()


@pytest.mark.parametrize("seed", range(15))
def test_servers_come_and_go_under_load(seed: int) -> None:
    draw = random.Random(seed)
    watch = FleetWatch()
    mortality = Mortality(draw, refused=draw.choice((0.0, 0.1)))
    llm = deploy(
        "llm", Mortal, mortality, contract="llm", runs_in="loop", instances=2, keeps_state=True, **PATIENT
    )

    async def main() -> None:
        async with Runtime([llm], observers=[watch], max_queries=100) as runtime:
            queries = []
            for number in range(60):
                text = " ".join(f"word{n}" for n in range(1 + number % 7))
                queries.append((text, await runtime.submit(COMPLETE, {"text": text})))
                await asyncio.sleep(draw.uniform(0.0, 1.0))
                match draw.randrange(8):
                    case 0 | 1:
                        runtime.add_instance("llm", llm.replicas[0])
                    case 2 | 3:
                        drain_one(runtime, watch, "llm", draw)
                    case 4 if mortality.living:
                        draw.choice(mortality.living).death.set()
            runtime.add_instance("llm", llm.replicas[0])
            for text, query in queries:
                assert await query == {"answer": text.upper() + " "}
            runtime.system.check_invariants()
            assert runtime.system.is_idle()
            await asyncio.sleep(100)
            assert not runtime.observers.dropped
            assert watch.state == fleet_states(runtime)
            assert len(mortality.living) == len(watch.of("llm", "serving", "suspect", "starting", "draining"))
        watch.check_end()
        assert not mortality.living

    in_virtual_time(main)()
    assert watch.reached["started"] > 5


def drain_one(runtime: Runtime, watch: FleetWatch, engine: str, draw: random.Random) -> None:
    """Drain one of the instances that can be, if there is one."""
    fleet = runtime.system.schedulers[engine].instances.fleet
    if found := [i for i in fleet.live if fleet.state[i] != "draining"]:
        how: DrainHow = draw.choice(("finish", "suspend"))
        runtime.drain_instance(engine, draw.choice(found), how)


def fleet_states(runtime: Runtime) -> dict[tuple[str, int], str]:
    """Return the state of every instance as the schedulers see it."""
    return {
        (name, instance): state
        for name, scheduler in runtime.system.schedulers.items()
        for instance, state in scheduler.instances.fleet.state.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_threads_come_and_go_under_load(seed: int) -> None:
    """Some requests kill the instance that they run on, whoever else runs there."""
    draw = random.Random(seed)
    crashes = random.Random(seed)
    watch = FleetWatch()

    def fail_on(task: LLMTask) -> BaseException | None:
        return ZeroDivisionError("a bug") if crashes.random() < 0.05 else None

    engines = [
        acting(ActingConfig(log=Log()), instances=2, max_batch=3, keeps_state=True, **PATIENT),
        deploy("llm", FakeLLM, FakeLLMConfig(fail_on=fail_on), contract="llm", instances=2, **PATIENT),
    ]
    plain = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm")

    async def main() -> None:
        async with Runtime([plain]) as runtime:
            wanted = [await runtime.run(COMPLETE, {"text": str(number)}) for number in range(10)]
        async with Runtime(engines, observers=[watch], max_queries=500) as runtime:
            shouted, completed = [], []
            for number in range(120):
                shouted.append(await runtime.submit(SHOUT, {"text": f"text {number}"}))
                completed.append(await runtime.submit(COMPLETE, {"text": str(number % 10)}))
                await asyncio.sleep(draw.choice((0.0, 0.001, 0.01)))
                engine = draw.choice(engines)
                match draw.randrange(8):
                    case 0 | 1:
                        runtime.add_instance(engine.name, engine.replicas[0])
                    case 2 | 3:
                        drain_one(runtime, watch, engine.name, draw)
            for engine in engines:
                runtime.add_instance(engine.name, engine.replicas[0])
            for number, query in enumerate(shouted):
                assert await query == {"loud": f"TEXT {number}"}
            for number, query in enumerate(completed):
                assert await query == wanted[number % 10]
            runtime.system.check_invariants()
            assert runtime.system.is_idle()
            assert not runtime.observers.dropped
            await until(lambda: not watch.of("acting", "draining") and not watch.of("llm", "draining"))
        watch.check_end()

    in_real_time(main)()
    assert watch.reached["started"] > 4


# --- one after the other


@in_virtual_time
async def test_an_instance_that_closes_already_is_closed_once() -> None:
    class Slow(Server):
        async def aclose(self) -> None:
            await asyncio.sleep(5)
            await super().aclose()

    log = Log()
    async with Runtime([deploy("llm", Slow, log, contract="llm", runs_in="loop")]) as runtime:
        runtime.drain_instance("llm", 0)
        await asyncio.sleep(1)
        assert not log.closed
    assert log.closed == [1]


@in_real_time
async def test_two_models_in_processes_take_turns_on_one_device() -> None:
    watch = FleetWatch()
    (replica,) = fake_llm(runs_in="process", devices=("cuda:0",)).replicas
    first = Deployment(Engine("llm", contract="llm"), (replica,))
    second = Deployment(Engine("other", contract="llm", no_replica_s=math.inf))
    machine = Machine(("cuda:0",))
    async with Runtime([first, second], machine=machine, observers=[watch]) as runtime:
        early = await runtime.submit(OTHER, {"text": "a"})
        running = [await runtime.submit(COMPLETE, {"text": str(n)}) for n in range(5)]
        with pytest.raises(ConfigError, match=r"engine 'other', new replica: device cuda:0 holds llm/0"):
            runtime.add_instance("other", replica)
        await asyncio.sleep(0)
        runtime.drain_instance("llm", 0)
        for query in running:
            assert (await query)["answer"]
        await until(lambda: watch.state["llm", 0] == "gone")
        assert not early.is_done()
        runtime.add_instance("other", replica)
        assert (await early)["answer"]
        with pytest.raises(EngineUnavailable, match="engine 'llm' has no instance that serves"):
            await runtime.run(COMPLETE, {"text": "a"})
        runtime.drain_instance("other", 0)
        await until(lambda: watch.state["other", 0] == "gone")
        runtime.add_instance("llm", replica)
        assert (await runtime.run(COMPLETE, {"text": "a"}))["answer"]
        assert watch.of("llm", "serving") == [1]


@in_virtual_time
async def test_the_last_replica_ends_its_work_and_then_there_is_none() -> None:
    loop = asyncio.get_running_loop()
    async with Runtime([server()]) as runtime:
        running = await runtime.submit(COMPLETE, {"text": "a b c"})
        await asyncio.sleep(1.5)
        runtime.drain_instance("llm", 0)
        with pytest.raises(EngineUnavailable) as caught:
            await runtime.run(COMPLETE, {"text": "late"})
        assert loop.time() == 1.5, "nothing is to be hoped for"
        assert str(caught.value) == (
            "step 'answer': engine 'llm' has no instance that serves; it has no replica"
        )
        assert await running == {"answer": "A B C "}
        assert loop.time() == 3.0
        await asyncio.sleep(1)
        runtime.add_instance("llm", server().replicas[0])
        query = await runtime.submit(COMPLETE, {"text": "a"}, deadline_s=5.0)
        assert await query == {"answer": "A "}


@in_virtual_time
async def test_what_cannot_be_added_or_drained_is_refused() -> None:
    async with Runtime([server()]) as runtime:
        (replica,) = server().replicas
        with pytest.raises(ConfigError, match="there is no engine 'x'; there are llm"):
            runtime.add_instance("x", replica)
        with pytest.raises(ConfigError, match="there is no engine 'x'; there are llm"):
            runtime.drain_instance("x", 0)
        with pytest.raises(ConfigError, match=r"engine 'llm', new replica: port is 80; only an LLM server"):
            runtime.add_instance("llm", Replica(FakeLLM, FakeLLMConfig(), port=80))
        with pytest.raises(ConfigError, match="instance 7 is unknown; instances to drain: 0"):
            runtime.drain_instance("llm", 7)
        with pytest.raises(
            ConfigError, match=r"instance 0 is the last one, .*; add a replica first, or drain"
        ):
            runtime.drain_instance("llm", 0, force=False)
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "A "}, "nothing has happened"
        runtime.drain_instance("llm", 0)
        runtime.drain_instance("llm", 0)  # the first has not been handled yet, so the second changes nothing
        await asyncio.sleep(1)
        with pytest.raises(ConfigError, match="instance 0 is gone already; instances to drain: none"):
            runtime.drain_instance("llm", 0)


@in_virtual_time
async def test_two_drains_at_once_leave_the_last_instance() -> None:
    engines = [server(instances=2), Deployment(Engine("other", contract="llm"), server().replicas)]
    async with Runtime(engines) as runtime:
        first, second = runtime.system.schedulers["llm"].instances.fleet.live
        (alone,) = runtime.system.schedulers["other"].instances.fleet.live
        runtime.drain_instance("llm", first, force=False)
        with pytest.raises(ConfigError, match=rf"instance {second} is the last one"):
            runtime.drain_instance("llm", second, force=False)
        with pytest.raises(ConfigError, match=rf"instance {alone} is the last one"):
            runtime.drain_instance("other", alone, force=False)
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "A "}
        runtime.drain_instance("llm", second)


@in_virtual_time
async def test_two_replicas_added_at_once_do_not_get_the_same_device() -> None:
    replica = Replica(Server, Log(), runs_in="loop", devices=("cuda:0",))
    engines = [Deployment(Engine(name, contract="llm")) for name in ("llm", "other")]
    async with Runtime(engines, machine=Machine(("cuda:0",))) as runtime:
        runtime.add_instance("llm", replica)
        message = r"engine 'other', new replica: device cuda:0 holds the new replica of engine 'llm' already"
        with pytest.raises(ConfigError, match=message):
            runtime.add_instance("other", replica)


# --- instances that are not up


class SlowStart(ServerEngine):
    """A server whose start takes as many seconds as the next number says."""

    def __init__(self, starts_s: list[float]) -> None:
        self._start_s = starts_s.pop(0)

    async def start(self) -> None:
        await asyncio.sleep(self._start_s)

    async def watch(self, report: object) -> None:
        await asyncio.sleep(10)
        raise EngineUnavailable("it died")

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Failed(task.id, EngineUnavailable("it is down")))


class ThenWell(SlowStart):
    """A server that answers once it has started."""

    async def watch(self, report: object) -> None:
        await asyncio.sleep(10)
        raise EngineUnavailable("it died")

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        await Server(Log()).generate(task, emit, rank)


@pytest.mark.parametrize(("recover_s", "is_answered"), [(29.9, False), (30.1, True)])
@in_virtual_time
async def test_requests_wait_for_a_starting_instance_as_long_as_the_engine_says(
    recover_s: float, is_answered: bool
) -> None:
    """The instance dies after 10 s, its successor is up 40 s later; the request comes 10 s after the
    death.
    """
    llm = deploy("llm", ThenWell, [0.0, 40.0], contract="llm", runs_in="loop", recover_s=recover_s)
    loop = asyncio.get_running_loop()
    async with Runtime([llm]) as runtime:
        await asyncio.sleep(20)
        query = await runtime.submit(COMPLETE, {"text": "a"})
        if is_answered:
            assert await query == {"answer": "A "}
            assert loop.time() == 51
        else:
            with pytest.raises(EngineUnavailable, match="the last one was lost: llm/0 died"):
                await query
            assert loop.time() == pytest.approx(20 + recover_s)


@in_virtual_time
async def test_a_query_with_a_deadline_waits_for_a_starting_instance_until_then() -> None:
    llm = deploy("llm", ThenWell, [0.0, 40.0], contract="llm", runs_in="loop", recover_s=1.0)
    async with Runtime([llm]) as runtime:
        await asyncio.sleep(20)
        patient = await runtime.submit(COMPLETE, {"text": "a"}, deadline_s=100.0)
        with pytest.raises(EngineUnavailable):
            await runtime.run(COMPLETE, {"text": "a"})
        assert await patient == {"answer": "A "}


@in_virtual_time
async def test_a_snapshot_shows_how_long_a_start_takes() -> None:
    llm = deploy("llm", ThenWell, [0.0, 40.0], contract="llm", runs_in="loop", loading_s=30.0)

    def shown(runtime: Runtime) -> list[tuple[str, float | None]]:
        (engine,) = runtime.snapshot().engines
        return [(instance.state, instance.loading_s) for instance in engine.instances]

    async with Runtime([llm]) as runtime:
        await asyncio.sleep(20)
        assert shown(runtime) == [("starting", 30.0)], "predicted"
        await asyncio.sleep(40)
        assert shown(runtime) == [("serving", 40.0)], "measured"


@in_virtual_time
async def test_a_start_that_takes_too_long_is_given_up_and_repeated() -> None:
    watch = FleetWatch()
    llm = deploy("llm", ThenWell, [0.0, 1000.0, 2.0], contract="llm", runs_in="loop", start_timeout_s=5.0)
    loop = asyncio.get_running_loop()
    async with Runtime([llm], observers=[watch]) as runtime:
        await asyncio.sleep(10.5)
        assert watch.of("llm", "starting") == [1]
        assert await runtime.run(COMPLETE, {"text": "a"}) == {"answer": "A "}
        assert loop.time() == pytest.approx(10 + 5 + 0.1 + 2 + 1)
        assert watch.of("llm", "serving") == [2]
        assert watch.reached["killed"] == 1


# --- ids


class Everything(FleetWatch):
    """An observer that notes every event, and which instance sent it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[int] = []

    def on_event(self, event: Event, now_s: float) -> None:
        super().on_event(event, now_s)
        if (instance := getattr(event, "instance", None)) is not None:
            self.said.append(instance)


@in_real_time
async def test_an_instance_that_was_given_up_is_not_heard_again(tmp_path: Path) -> None:
    """The batch of the lost instance ends after all, when another instance has the number 1 and the work."""
    watch = Everything()
    config = ActingConfig(folder=tmp_path, log=Log())
    async with Runtime([acting(config, timeout_s=0.1)], observers=[watch]) as runtime:
        assert await runtime.run(SHOUT, {"text": "once hang"}) == {"loud": "ONCE HANG"}
        assert watch.state == {("acting", 0): "gone", ("acting", 1): "serving"}
        num_said = watch.said.count(0)
        LET_GO.set()
        await until(lambda: len(config.log.closed) == 1)
        for _ in range(5):
            await runtime.run(SHOUT, {"text": "a"})
        assert watch.said.count(0) == num_said == 1, "it said that it was ready"


# --- what instances hold


def test_reports_of_caches_are_what_each_instance_holds(tiny_checkpoint: Path) -> None:
    """The placement policy's index is right after instances came, went and died."""
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    watch = FleetWatch()
    made: list[TransformerLLM] = []
    killing = [False]

    class Mortal(TransformerLLM):
        def __init__(self, config: TransformerConfig) -> None:
            super().__init__(config)
            made.append(self)

        def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
            if killing[0]:
                killing[0] = False
                raise ZeroDivisionError("a bug")
            super().admit(task, rank)

    def blocks_of(engine: TransformerLLM) -> frozenset[bytes]:
        return frozenset(block for node in engine.scheduler.cache._tree.nodes() for block in node.hashes)

    config = TransformerConfig(
        tiny_checkpoint, block_tokens=8, with_kv_events=True, keeps_released=True, kv_bytes=2**18
    )
    llm = deploy("llm", Mortal, config, contract="llm", instances=2, keeps_state=True, **PATIENT)
    draw = random.Random(3)

    async def main() -> None:
        async with Runtime([llm], observers=[watch]) as runtime:
            for round_ in range(4):
                queries = [
                    await runtime.submit(COMPLETE, {"text": f"rule {number % 5}, " * (1 + number % 6)})
                    for number in range(12)
                ]
                await asyncio.sleep(draw.random() * 0.05)
                match round_:
                    case 0:
                        runtime.add_instance("llm", llm.replicas[0])
                    case 1:
                        runtime.drain_instance("llm", watch.of("llm", "serving")[0], "suspend")
                    case 2:
                        killing[0] = True
                for query in queries:
                    await query
            await until(lambda: not watch.of("llm", "draining", "starting"))
            scheduler = runtime.system.schedulers["llm"]
            assert isinstance(scheduler, LLMScheduler)
            policy = scheduler._loads.policy.placement
            assert isinstance(policy, LeastSeconds)
            held, live = policy.reported, watch.of("llm", "serving")
            assert watch.reached["started"] == 4
            assert len(live) == 2
            await until(lambda: {*map(held.held_by, live)} <= {*map(blocks_of, made)})
            assert any(map(held.held_by, live))
            held.check_invariants()
            assert not any(held.held_by(instance) for instance in watch.of("llm", "gone"))

    in_real_time(main)()


def test_an_instance_is_drained_while_it_starts_in_a_runtime_that_began_with_none() -> None:
    """No error has ended it, so that nobody may look for one."""

    async def run() -> str:
        engine = Deployment(Engine("llm", contract="llm", **PATIENT))
        async with Runtime([engine]) as runtime:
            runtime.add_instance("llm", Replica(FakeLLM, FakeLLMConfig()))
            while not (live := runtime.system.schedulers["llm"].instances.fleet.live):
                await asyncio.sleep(0)
            runtime.drain_instance("llm", live[0])
            runtime.add_instance("llm", Replica(FakeLLM, FakeLLMConfig()))
            return str((await runtime.run(COMPLETE, {"text": "hi"}))["answer"])

    assert asyncio.run(run())
