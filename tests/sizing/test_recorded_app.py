"""Recorded runs of apps as traffic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.virtual_engines import Lengths, inputs, profiles_of, virtual_engines
from stretto.apps import APPS
from stretto.apps.plan_cache import PlanCache
from stretto.sim.driver import VirtualDriver
from stretto.sizing.asked import parse_servers
from stretto.sizing.load import Load
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.sources import read_traffic
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TriedFleet, run
from stretto.trace.lines import TraceError
from stretto.trace.run_file import RunRecorder


def recorded(path: Path, num: int) -> Path:
    """Record queries of the advanced app in virtual time."""
    engines = virtual_engines(Lengths(answer_tokens=30))
    plan_cache, template = PlanCache(profiles_of(engines)), APPS["advanced"]()
    recorder = RunRecorder(path, engines, before_passes=[template.lower({})])
    driver = VirtualDriver(engines, observers=[recorder])
    for number in range(num):
        plan = plan_cache.plan(template, {}, ())
        driver.submit(f"q{number}", plan, inputs(12, number), at_s=2.0 * number)
    driver.run()
    recorder.close()
    return path


def test_queries_are_jobs_whose_calls_wait_as_they_did(tmp_path: Path) -> None:
    traffic = traffic_of(read_traffic(recorded(tmp_path / "run.jsonl", 3)))
    assert len(traffic.jobs) == 3
    assert traffic.is_of_sessions
    for job in traffic.jobs:
        first, *later = job.trace.requests
        assert first.arrival_s == 0
        assert all(one.after and all(after.delay_s >= 0 for after in one.after) for one in later[-1:])
        assert all(call.num_prompt > 1 and call.num_output >= 1 for call in job.calls.values())
        assert all(call.text(5) for call in job.calls.values())
    assert traffic.per_s == pytest.approx(0.5, rel=0.1)


def test_queries_a_second_are_simulated(tmp_path: Path) -> None:
    traffic = traffic_of(read_traffic(recorded(tmp_path / "run.jsonl", 2)))
    objectives = parse_objectives("p95 job 60s")
    fleet = TriedFleet(((parse_servers("A100", "Llama-2-7b-hf")[0], 1),))
    outcome = run(fleet, traffic, Load("per_s", 0.5), objectives, 0, 20)
    assert not outcome.missed(objectives)
    assert outcome.values_s[0] is not None


def test_a_run_without_calls_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.jsonl", 1)
    *others, query = path.read_text().splitlines()
    path.write_text("\n".join([*others, json.dumps({**json.loads(query), "error": "it broke"})]))
    with pytest.raises(TraceError, match="no query has ended well"):
        read_traffic(path)
