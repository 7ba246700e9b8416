"""Requests that no instance serves: they fail in time, once, and are not run afterwards."""

from __future__ import annotations

import sys
from types import FrameType

from support.machines import CheckedSystem, batch_engine, compiled, llm_engine
from support.systems import error_of, started, submit

from stretto.cluster.messages import StartInstance
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineUnavailable
from stretto.model.tasks import QueryRecord
from stretto.model.values import Failure
from stretto.sched.actions import Admit, Settled
from stretto.sched.engine_events import AddInstance, BatchDone, Drain, InstanceReady
from stretto.sched.messages import Event, Extend, Open, Provide, Submit, Wake
from stretto.sched.system import System

CALL = compiled("graph g(%q: text)\n%A = prefill([%q]) : kv @llm\n%B = decode(%A) : text @llm\nreturn %B")
EMBED_ONE = compiled("graph g(%x: text)\n%v = embed(%x) : vector @e\nreturn %v")
RETRIED = (
    "graph g(%xs: list[text])\n"
    '%v = embed(each %xs) : list[vector] @e with {"retries": 3, "backoff_s": 1.0}\nreturn %v'
)


def test_an_engine_that_was_never_given_a_replica_refuses_at_once() -> None:
    system = CheckedSystem([Deployment(batch_engine().engine)], readies=False)
    system.handle([submit("1")], 3.0)
    assert str(error_of(system, "1")) == (
        "step 'v': engine 'e' has no instance that serves; it has no replica"
    )


def test_an_engine_without_a_replica_waits_for_one_as_long_as_it_says() -> None:
    system = CheckedSystem([Deployment(batch_engine(no_replica_s=2.0).engine)], readies=False)
    system.handle([submit("1")], 3.0)
    assert system.alarms_s == [5.0]
    assert "1" not in system.replies
    system.handle([Wake()], 5.0)
    assert isinstance(error_of(system, "1"), EngineUnavailable)


def test_what_has_failed_without_an_instance_is_not_run_when_one_comes() -> None:
    """The session goes on; only its variable has failed."""
    engine = batch_engine()
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    opened: list[Event] = [Open("s", QueryRecord()), Extend("s", EMBED_ONE, {}), Provide("s", "x", "hi")]
    settled = [action for action in system.handle(opened, 0.0) if isinstance(action, Settled)]
    assert isinstance(settled[-1].value, Failure)
    assert not system.schedulers["e"].queue
    system.handle([AddInstance("e", replica)], 1.0)
    assert started(system.handle([InstanceReady("e", 0)], 2.0)) == []


def test_a_further_attempt_replaces_the_one_that_no_instance_took() -> None:
    engine = batch_engine()
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    system.handle([submit("q", RETRIED)], 0.0)
    assert system.alarms_s == [1.0]
    system.handle([AddInstance("e", replica)], 0.5)
    system.handle([Wake()], 1.0)
    (batch,) = started(system.handle([InstanceReady("e", 0)], 1.5))
    assert len(batch.tasks) == 1
    assert started(system.handle([BatchDone("e", 0, batch.batch, [["v"]])], 2.0)) == []
    assert system.replies["q"].outputs == {"v": ["v"]}


def test_each_request_fails_when_its_own_time_is_over() -> None:
    engine = llm_engine(recover_s=10.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    system.handle([AddInstance("llm", replica)], 0.0)
    for name, now_s in (("1", 1.0), ("2", 2.0), ("3", 4.0)):
        system.handle([Submit(name, CALL, {"q": "x"})], now_s)
    for now_s, failed in ((10.9, []), (11.0, ["1"]), (12.5, ["1", "2"])):
        system.handle([Wake()], now_s)
        assert list(system.replies) == failed
    assert system.alarms_s[-1] == 14.0
    ready = system.handle([InstanceReady("llm", 0)], 13.0)
    assert [action.task.query for action in ready if isinstance(action, Admit)] == ["3"]


def test_what_waits_for_its_deadline_fails_when_hope_is_lost() -> None:
    engine = llm_engine(recover_s=1.0, no_replica_s=0.0)
    (replica,) = engine.replicas
    system = CheckedSystem([Deployment(engine.engine)], readies=False)
    (start,) = system.handle([AddInstance("llm", replica)], 0.0)
    assert isinstance(start, StartInstance)
    system.handle([Submit("patient", CALL, {"q": "x"}, 100.0), Submit("other", CALL, {"q": "x"})], 0.0)
    system.handle([Wake()], 1.0)
    assert list(system.replies) == ["other"]
    system.handle([Drain("llm", start.instance)], 2.0)
    assert isinstance(error_of(system, "patient"), EngineUnavailable)


def test_an_event_does_not_look_at_all_that_waits_for_an_instance() -> None:
    assert _num_calls(400) < _num_calls(100) + 50


def _num_calls(num_waiting: int) -> int:
    """Return how many functions are called when one more request comes."""
    engine = llm_engine(recover_s=1000.0)
    system = System([Deployment(engine.engine)])
    system.handle([AddInstance("llm", engine.replicas[0])], 0.0)
    for number in range(num_waiting):
        system.handle([Submit(str(number), CALL, {"q": "x"})], 0.0)
    num_calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    system.handle([Submit("last", CALL, {"q": "x"})], 1.0)
    sys.setprofile(None)
    return num_calls
