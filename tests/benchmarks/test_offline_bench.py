"""The benchmark of planned runs: its measure of idle devices, and its tables, without real engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machines import compiled

pytest.importorskip("torch")

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.offline.benchmark import EMULATED, measured_rows
from benchmarks.offline.connected import APPS, work_of
from benchmarks.offline.emulated import works
from benchmarks.offline.idle import IdleWatch
from benchmarks.offline.local import SHAPES, local_works
from benchmarks.offline.measured import Measured, Work, run_measured
from stretto.cluster.messages import StartInstance
from stretto.costs.presets import load_output_lengths
from stretto.model.replica import Replica
from stretto.model.tasks import Done, LLMTask
from stretto.planner.machine import machine_of
from stretto.planner.planners.table import PLANNERS
from stretto.planner.running.replanner import Replanner
from stretto.sched.actions import Admit, Reply
from stretto.sched.engine_events import Drain, InstanceReady, LLMReport
from stretto.sched.messages import Submit

CALL = compiled("graph g(%q: text)\n%kv = prefill([%q]) : kv @a\n%x = decode(%kv) : text @a\nreturn %x")
FAKE = Replica(FakeLLM, FakeLLMConfig())


def test_devices_are_idle_while_calls_wait_for_a_replica_that_has_none() -> None:
    watch = IdleWatch()
    two = Replica(FakeLLM, FakeLLMConfig(), tp=2)
    for instance, replica in enumerate((FAKE, two)):
        watch.on_action(StartInstance("a", instance, replica), 0.0)
    watch.on_event(InstanceReady("a", 0), 1.0)
    for query in ("1", "2"):
        watch.on_event(Submit(query, CALL, {}), 2.0)
    watch.on_action(Admit("a", 0, LLMTask(1, "1", "x", (), None), ()), 3.0)
    assert watch.idle_s == 1.0  # only the first is ready
    watch.on_event(InstanceReady("a", 1), 4.0)
    watch.on_action(Admit("a", 1, LLMTask(2, "2", "x", (), None), ()), 5.0)
    assert watch.idle_s == 3.0
    watch.on_event(LLMReport("a", 0, Done(1, "x")), 6.0)
    watch.on_action(Reply("1", {}), 6.0)
    watch.on_event(Drain("a", 0), 9.0)
    assert watch.idle_s == 3.0  # no call waited


@pytest.mark.parametrize(
    "work", [*works(0), *(work_of(name, 0) for name in APPS)], ids=lambda work: work.name
)
def test_texts_have_as_many_tokens_as_planners_count(work: Work) -> None:
    for request in work.requests[:50]:
        assert -(-len(request.text) // 4) == request.planned.prompt_tokens
        assert tuple(-(-len(chunk) // 4) for chunk in request.chunks) == request.planned.chunks


def test_a_run_is_measured_from_its_plan_to_its_last_answer(tmp_path: Path) -> None:
    work = next(works(0))
    machine = machine_of("8xA100-80G")
    replanner = Replanner(work.app, machine, load_output_lengths(), PLANNERS["max_heuristic"])
    few = Work(work.name, work.app, work.requests[:3])
    found = run_measured(few, replanner, lambda _: FAKE, tmp_path)
    assert found.planned_s > found.took_s > 0.0
    assert found.low_s <= found.planned_s <= found.high_s
    assert 0.0 <= found.idle_share <= 1.0


def test_rows_compare_ours_with_both_heuristics() -> None:
    def one(planned_s: float, took_s: float) -> Measured:
        return Measured(planned_s, 0.9 * planned_s, 1.1 * planned_s, took_s, 0.1, 0.004, 2)

    found = {
        "app": {
            "stretto": [one(10.0, 9.6), one(10.0, 11.2)],
            "max_heuristic": [one(20.0, 22.0)],
            "min_heuristic": [one(16.0, 16.5)],
        }
    }
    rows, goals = measured_rows(EMULATED, found)
    ours = rows[0].values
    assert ours["bias"] == pytest.approx(0.04)
    assert ours["error"] == pytest.approx(0.08)
    assert ours["in_interval"] == 1
    assert ours["spread"] == pytest.approx(0.16)
    assert rows[1].values["of_ours"] == pytest.approx(22.0 / 10.4)
    assert [(goal.value, goal.met) for goal in goals] == [
        (pytest.approx(10.4 / 16.5), True),
        (pytest.approx(0.04), True),
        (pytest.approx(0.08), True),
        (0.004, True),
    ]


def test_small_models_have_requests_of_known_lengths() -> None:
    ensemble, routing, judged = local_works(0, len)
    assert {node.name for node in ensemble.app.nodes} == set(SHAPES)
    assert {name for one in routing.requests for name in one.planned.nodes} == set(SHAPES)
    assert judged.app.node("large").inputs == ("small", "deep")
    for request in ensemble.requests:
        assert request.decode is not None
        assert set((request.planned.answers or {}).values()) == {request.decode["max_tokens"]}
