"""Instances of a system of schedulers: they come, are suspected, drained and lost, and work follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machines import CheckedSystem, batch_engine, llm_engine
from support.systems import KV_HELLO, error_of, started, steps, submit

from stretto.cluster.kv_events import BlockStored
from stretto.cluster.messages import KVReport, StartInstance, StopInstance
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineFailure, EngineUnavailable
from stretto.model.tasks import Done, Failed, Piece
from stretto.sched.actions import Admit, Reply, StartBatch
from stretto.sched.engine_events import (
    AddInstance,
    BatchDone,
    BatchFailed,
    Drain,
    InstanceLost,
    InstanceReady,
    InstanceStopped,
    InstanceSuspected,
    LLMReport,
    Suspended,
)
from stretto.sched.engines.batch_scheduler import BatchScheduler
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.messages import Event, Wake


def test_nothing_starts_by_itself_and_work_waits_for_an_instance_that_is_ready() -> None:
    engine = batch_engine(recover_s=7.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    assert system.handle([AddInstance("e", replica), submit("1")], 0.0) == [StartInstance("e", 0, replica)]
    assert min(system.alarms_s) == 7.0
    assert system.handle([Wake()], 6.9) == []
    assert steps(system.handle([InstanceReady("e", 0)], 6.95)) == ["1.v"]


def test_work_that_no_instance_came_for_fails_with_what_is_known() -> None:
    engine = batch_engine(recover_s=7.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    system.handle([AddInstance("e", replica), submit("1")], 0.0)
    lost = InstanceLost("e", 0, EngineFailure("no such model"))
    assert system.handle([lost], 1.0) == [StartInstance("e", 1, replica)]
    system.handle([submit("2")], 2.0)
    assert system.handle([Wake()], 6.9) == []
    system.handle([Wake()], 7.0)
    error = error_of(system, "1")
    assert isinstance(error, EngineUnavailable)
    assert str(error) == (
        "step 'v': engine 'e' has no instance that serves; the last one was lost: no such model"
    )
    assert "2" not in system.replies, "it came later"
    assert steps(system.handle([InstanceReady("e", 1)], 8.0)) == ["2.v"]


@pytest.mark.parametrize(("loading_s", "fails_s"), [(None, 7.0), (2.0, 7.0), (30.0, 60.0)])
def test_work_waits_for_as_long_as_a_start_may_take(loading_s: float | None, fails_s: float) -> None:
    engine = batch_engine(recover_s=7.0)
    replica = replace(engine.replicas[0], loading_s=loading_s)
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    system.handle([AddInstance("e", replica), submit("1")], 0.0)
    assert min(system.alarms_s) == fails_s
    system.handle([Wake()], fails_s - 0.1)
    assert "1" not in system.replies
    system.handle([Wake()], fails_s)
    assert isinstance(error_of(system, "1"), EngineUnavailable)


def test_work_waits_for_a_restart_as_long_as_the_last_start_lets_expect() -> None:
    engine = batch_engine(recover_s=7.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    system.handle([AddInstance("e", replica)], 0.0)
    system.handle([InstanceReady("e", 0)], 40.0)
    lost = InstanceLost("e", 0, EngineUnavailable("it died"))
    assert system.handle([lost, submit("1")], 100.0) == [StartInstance("e", 1, replica)]
    system.handle([Wake()], 179.9)
    assert "1" not in system.replies
    assert steps(system.handle([InstanceReady("e", 1)], 179.9)) == ["1.v"]


def test_a_replica_that_cannot_start_is_given_up_and_waiting_work_with_it() -> None:
    engine = batch_engine(recover_s=1000.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    actions = system.handle([AddInstance("e", replica), submit("1")], 0.0)
    now_s, num_starts = 0.0, 0
    while "1" not in system.replies:
        if actions:
            assert actions == [StartInstance("e", num_starts, replica)]
            actions = system.handle([InstanceLost("e", num_starts, EngineFailure("no"))], now_s)
            num_starts += 1
        else:
            now_s = min(system.alarms_s)
            actions = system.handle([Wake()], now_s)
    assert num_starts == 9, "a start and eight restarts"
    assert now_s == pytest.approx(0.1 * (2**7 - 1))
    assert isinstance(error_of(system, "1"), EngineUnavailable)


def test_a_drained_instance_ends_its_work_and_gets_no_more() -> None:
    system = CheckedSystem([batch_engine(instances=2, max_batch=1), llm_engine()])
    (first,) = system.handle([submit("1")], 0.0)
    assert isinstance(first, StartBatch)
    assert system.handle([Drain("e", 0), Drain("e", 0), Drain("e", 0, "suspend")], 1.0) == []
    (second,) = started(system.handle([submit("2"), submit("3")], 2.0))
    assert second.instance == 1
    done = system.handle([BatchDone("e", 0, first.batch, [[(1,)]])], 3.0)
    assert done == [Reply("1", {"v": [(1,)]}), StopInstance("e", 0, "finish")]
    assert system.handle([InstanceStopped("e", 0)], 4.0) == []
    (given_up,) = system.handle([Drain("e", 1)], 5.0)
    assert isinstance(given_up, Reply)
    assert given_up.query == "3", "it could only have gone to that instance"
    assert isinstance(error_of(system, "3"), EngineUnavailable)
    actions = system.handle([BatchDone("e", 1, second.batch, [[(1,)]])], 6.0)
    assert actions == [Reply("2", {"v": [(1,)]}), StopInstance("e", 1, "finish")]
    assert system.handle([Drain("llm", 0, "suspend")], 7.0) == [StopInstance("llm", 0, "suspend")]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_late_messages_of_a_dead_instance_change_nothing(is_stopped: bool) -> None:
    """Whatever it still says: its successor runs its work, and answers."""
    engines = [llm_engine(keeps_state=True), batch_engine(keeps_state=True)]
    system = CheckedSystem(engines)
    text = (
        "graph g(%k: kv, %xs: list[text])\n%a = decode(%k) : text @llm\n"
        "%v = embed(each %xs) : list[vector] @e\nreturn %a, %v"
    )
    admit, batch = system.handle([submit("1", text, k=KV_HELLO, xs=["x"])], 0.0)
    assert isinstance(admit, Admit)
    assert isinstance(batch, StartBatch)
    if is_stopped:
        system.handle([AddInstance(engine.name, engine.replicas[0]) for engine in engines], 0.5)
        system.handle([Drain("llm", 0, "suspend"), Drain("e", 0)], 0.6)
        system.handle([Suspended("llm", 0, admit.task.id, ()), InstanceStopped("llm", 0)], 0.7)
        system.handle([BatchFailed("e", 0, batch.batch, EngineUnavailable("no"))], 0.7)
        system.handle([InstanceStopped("e", 0)], 0.8)
    else:
        died = EngineUnavailable("it died")
        system.handle([InstanceLost("llm", 0, died), InstanceLost("e", 0, died)], 1.0)
    task = admit.task.id
    late: list[Event] = [
        LLMReport("llm", 0, Piece(task, "late")),
        LLMReport("llm", 0, Done(task, "late")),
        LLMReport("llm", 0, Failed(task, EngineFailure("late"))),
        Suspended("llm", 0, task, (1, 2)),
        KVReport("llm", 0, (BlockStored(b"x", b"", (1,)),)),
        BatchDone("e", 0, batch.batch, [[(9,)]]),
        BatchFailed("e", 0, batch.batch, EngineFailure("late")),
    ]
    for name in ("llm", "e"):
        late += [
            InstanceReady(name, 0),
            InstanceSuspected(name, 0, "late"),
            InstanceLost(name, 0, EngineUnavailable("late")),
            InstanceStopped(name, 0),
            Drain(name, 0),
        ]
    for event in [*late, *late[::-1]]:
        assert system.handle([event], 2.0) == [], event
    llm = system.schedulers["llm"]
    assert isinstance(llm, LLMScheduler)
    assert isinstance(policy := llm._loads.policy.placement, LeastSeconds)
    assert not policy.reported.held_by(0)
    again = llm._loads.of(1)
    (running,) = again
    system.handle([LLMReport("llm", 1, Done(running, "Hello"))], 3.0)
    batches = system.schedulers["e"]
    assert isinstance(batches, BatchScheduler)
    number = batches._running[1].id
    actions = system.handle([BatchDone("e", 1, number, [[(1,)]])], 3.0)
    assert Reply("1", {"a": "Hello", "v": [(1,)]}) in actions
    assert system.is_idle()


def test_suspect_instances_get_one_request_at_a_time_until_they_answer() -> None:
    system = CheckedSystem([llm_engine(max_attempts=9)])
    text = "graph g(%k: kv)\n%a = decode(%k) : text @llm\nreturn %a"
    (first,) = system.handle([submit("1", text, k=KV_HELLO)], 0.0)
    assert isinstance(first, Admit)
    refused = LLMReport("llm", 0, Failed(first.task.id, EngineUnavailable("refused")))
    events: list[Event] = [InstanceSuspected("llm", 0, "refused"), refused, submit("2", text, k=KV_HELLO)]
    (probe,) = system.handle(events, 1.0)
    assert isinstance(probe, Admit)
    again = LLMReport("llm", 0, Failed(probe.task.id, EngineUnavailable("refused")))
    assert system.handle([InstanceSuspected("llm", 0, "refused"), again], 1.0) == [], "not at once again"
    assert min(system.alarms_s) == pytest.approx(1.1)
    assert len(system.handle([Wake()], 1.1)) == 1
    assert len(system.handle([InstanceReady("llm", 0)], 1.2)) == 1, "the other one follows"
