"""A recorder holds a bounded part of a long run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.runtime_engines import SHOUT, acting
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto import Runtime
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, EngineFailure
from stretto.model.tasks import LLMTask
from stretto.model.values import Segment
from stretto.sched.actions import Admit, Reply, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, InstanceStopped, Suspended
from stretto.sched.messages import Submit
from stretto.sim.driver import VirtualDriver
from stretto.trace.recorder import MAX_SPANS, Recorder
from stretto.trace.run_file import RunRecorder
from stretto.trace.run_reading import read_run
from stretto.trace.summary import summarise


def run_query(recorder: Recorder, number: int) -> None:
    """Run a query of one batch that takes a second."""
    name = f"q{number}"
    recorder.on_event(Submit(name, SHOUT, {}), number)
    recorder.on_action(StartBatch("e", 0, number, (), 1), number)
    recorder.on_event(BatchDone("e", 0, number, ()), number + 1.0)
    recorder.on_action(Reply(name, {}), number + 1.0)


def test_the_oldest_of_what_has_ended_is_dropped_and_counted() -> None:
    recorder = Recorder(max_spans=16)
    for number in range(100):
        run_query(recorder, number)
        assert len(recorder.spans) <= 16
        assert len(recorder.queries) <= 16
    assert recorder.spans[-1].start_s == 99.0
    assert [span.start_s for span in recorder.spans] == list(range(100 - len(recorder.spans), 100))
    assert list(recorder.queries) == [f"q{n}" for n in range(100 - len(recorder.queries), 100)]
    assert recorder.num_dropped_spans + len(recorder.spans) == 100
    assert recorder.num_dropped_queries + len(recorder.queries) == 100
    assert summarise(recorder).wall_s > 0


def test_what_runs_is_kept_however_old_it_is() -> None:
    recorder = Recorder(max_spans=4)
    recorder.on_event(Submit("old", SHOUT, {}), 0.0)
    recorder.on_action(StartBatch("slow", 0, 1, (), 1), 0.0)
    for number in range(1, 50):
        run_query(recorder, number)
    assert recorder.spans[0].engine == "slow"
    assert next(iter(recorder.queries)) == "old"
    recorder.on_event(BatchDone("slow", 0, 1, ()), 60.0)
    recorder.on_action(Reply("old", {}), 60.0)
    assert len(recorder.spans) <= 4
    assert len(recorder.queries) <= 4


def test_a_request_keeps_why_it_went_where_it_did() -> None:
    recorder = Recorder()
    task = LLMTask(1, "q", "a", (Segment("Say "),), None)
    terms = {"wait_s": 0.5, "hopeless_s": math.inf}
    recorder.on_action(Admit("llm", 3, task, (), terms, "lowest score; holds 64 of 90 tokens"), 1.0)
    (span,) = recorder.spans
    assert (span.instance, span.reason) == (3, "lowest score; holds 64 of 90 tokens")
    assert span.terms == {"wait_s": 0.5}


def test_what_leaves_an_instance_that_is_drained_has_ended_there(tmp_path: Path) -> None:
    """A suspended request goes on elsewhere, in another span; what is left at the end is lost."""
    recorder, file = Recorder(), RunRecorder(tmp_path / "run.jsonl", [])
    for observer in (recorder, file):
        for number in range(2):
            task = LLMTask(number, "q", "a", (Segment("Say "),), None)
            observer.on_action(Admit("llm", 0, task, ()), 1.0)
        observer.on_event(Suspended("llm", 0, 0, (5, 6)), 2.0)
        observer.on_event(InstanceStopped("llm", 0), 3.0)
    assert [(span.end_s, span.outcome) for span in recorder.spans] == [
        (2.0, "suspended"),
        (3.0, "lost: the instance was stopped"),
    ]
    assert not recorder._requests
    assert not file._open
    file.close()


def test_without_a_bound_all_is_kept() -> None:
    assert MAX_SPANS >= 10_000
    recorder = Recorder(max_spans=None)
    for number in range(200):
        run_query(recorder, number)
    assert (len(recorder.spans), len(recorder.queries)) == (200, 200)
    assert recorder.num_dropped_spans == recorder.num_dropped_queries == 0


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_spans=0"):
        Recorder(max_spans=0)


def test_a_run_in_a_file_remembers_nothing_of_what_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorder = RunRecorder(path, [])
    lost = EngineFailure("lost")
    recorder.on_event(Submit("q", SHOUT, {}), 0.0)
    for batch in range(4):
        recorder.on_action(StartBatch("e", batch % 2, batch, (), 1), 0.0)
    recorder.on_event(BatchDone("e", 0, 0, ()), 1.0)
    recorder.on_event(BatchFailed("e", 1, 1, lost), 1.0)
    recorder.on_event(InstanceLost("e", 0, lost), 1.0)
    recorder.on_event(InstanceLost("e", 1, lost), 1.0)
    recorder.on_action(Reply("q", None, lost), 2.0)
    recorder.close()
    assert not recorder._open
    assert not recorder._open_queries
    assert json.loads(path.read_text().splitlines()[-1])["error"] == "EngineFailure: lost"


@in_virtual_time
async def test_a_run_whose_fleet_stays_as_declared_leaves_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    engine = acting(runs_in="loop", instances=2)
    recorder = RunRecorder(path, [engine])
    async with Runtime([engine], observers=[recorder]) as runtime:
        await runtime.run(SHOUT, {"text": "a"}, tenant="acme", objective="latency", deadline_s=5.0)
    recorder.close()
    run = read_run(path)
    assert run.not_repeated == ()
    (query,) = run.queries
    assert (query.tenant, query.objective) == ("acme", "latency")
    assert query.deadline_s == pytest.approx(5.0), "from the arrival, not from the start of the clock"


def test_a_file_that_can_no_longer_be_written_ends_no_query(tmp_path: Path) -> None:
    engine = deploy("acting", FakeBatch, FakeBatchConfig())
    recorder = RunRecorder(tmp_path / "run.jsonl", [engine])
    recorder.close()
    run = VirtualDriver([engine], observers=[recorder])
    run.submit("q", SHOUT, {"text": "a"})
    assert run.run()["q"].error is None
    assert [type(error) for _, error in run.observers.dropped] == [ValueError]
