"""Spans, and lanes in which they do not overlap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.recorded_runs import driver

from stretto.cluster.messages import StopInstance
from stretto.model.tasks import Decode, LLMTask, Started
from stretto.sched.actions import Admit, CancelTask, StartBatch
from stretto.sched.engine_events import LLMReport
from stretto.trace.lanes import covered, horizon_s, lanes, pack_rows, running_s
from stretto.trace.recorder import Recorder

_INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=30,
)


@given(_INTERVALS)
def test_packed_intervals_share_no_time_and_use_as_few_lanes_as_possible(
    intervals: list[tuple[int, int]],
) -> None:
    numbers = pack_rows(intervals)
    for number in set(numbers):
        own = sorted(i for i, at in zip(intervals, numbers, strict=True) if at == number)
        assert all(a[1] <= b[0] for a, b in pairwise(own))
    most = max((sum(a <= t < b for a, b in intervals) for t in range(40)), default=0)
    assert max(numbers, default=-1) + 1 <= max(most, bool(intervals)) or any(a == b for a, b in intervals)


@given(_INTERVALS)
def test_covered_counts_every_instant_once(intervals: list[tuple[int, int]]) -> None:
    assert covered(intervals) == sum(any(a <= t < b for a, b in intervals) for t in range(40))


def test_every_batch_and_request_is_one_span_in_one_lane() -> None:
    run = driver(4)
    run.run()
    started = [action for _, action in run.actions if isinstance(action, StartBatch | Admit)]
    drawn = [span for lane in lanes(run.recorder) for span in lane.spans]
    assert len(drawn) == len(started) == len({id(span) for span in drawn})
    until_s = horizon_s(run.recorder)
    for lane in lanes(run.recorder):
        assert all(running_s(a, until_s)[1] <= running_s(b, until_s)[0] for a, b in pairwise(lane.spans)), (
            lane
        )


def test_a_batch_engine_needs_one_lane_per_instance() -> None:
    run = driver(4)
    run.run()
    assert {lane.number for lane in lanes(run.recorder) if lane.engine != "llm"} == {0}
    assert max(lane.number for lane in lanes(run.recorder) if lane.engine == "llm") > 0


def test_an_instance_that_is_given_up_ends_its_spans() -> None:
    recorder = Recorder()
    for task_id in (1, 2):
        recorder.on_action(
            Admit("llm", 0, LLMTask(task_id, "q", "step", (), Decode()), (1.0,)), float(task_id)
        )
    recorder.on_event(LLMReport("llm", 0, Started(1)), 3.0)
    recorder.on_action(StopInstance("llm", 0, "kill"), 9.0)
    first, second = recorder.spans
    assert (first.started, first.start_s, first.end_s) == (True, 3.0, 9.0)
    assert (second.started, second.end_s) == (False, 9.0)
    assert first.outcome.startswith("lost")
    assert running_s(second, 9.0) == (9.0, 9.0)


def test_a_request_cancelled_in_the_queue_never_ran() -> None:
    recorder = Recorder()
    recorder.on_action(Admit("llm", 0, LLMTask(1, "q", "step", (), None), (1.0,)), 1.0)
    recorder.on_action(CancelTask("llm", 0, 1), 5.0)
    (span,) = recorder.spans
    assert (span.started, span.outcome, span.queued_s) == (False, "cancelled", 1.0)


def test_a_lost_instance_ends_what_ran_on_it() -> None:
    calm = driver(2)
    calm.run()
    span = max((s for s in calm.recorder.spans if s.engine == "llm"), key=lambda s: len(s.marks_s))
    run = driver(2)
    run.lose("llm", span.instance, at_s=span.marks_s[1])
    run.run()
    lost = [s for s in run.recorder.spans if s.outcome.startswith("lost: ")]
    assert lost
    assert {(s.engine, s.instance, s.end_s) for s in lost} == {("llm", span.instance, span.marks_s[1])}
    assert all(s.end_s is not None for s in run.recorder.spans)
