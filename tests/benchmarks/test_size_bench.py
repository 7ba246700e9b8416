"""The check of predicted capacities: loads in real time, and where measured times cross the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.size.benchmark import crossings, medians
from benchmarks.size.real_time import run_real
from stretto.sizing.asked import parse_servers
from stretto.sizing.load import Load
from stretto.sizing.measured import Window
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.sources import read_traffic
from stretto.sizing.traffic_of_trace import traffic_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.jsonl"


def test_the_capacity_is_where_times_rise_above_the_limit() -> None:
    assert list(crossings([(80, 0.5), (100, 1.0), (120, 4.0)], 2.0)) == [pytest.approx(110)]
    assert list(crossings([(80, 0.5), (100, 1.0)], 2.0)) == []
    assert list(crossings([(80, 3.0), (100, 4.0)], 2.0)) == []


def test_the_median_over_draws_counts_at_each_load() -> None:
    counted = [{"load": load, "measured_s": value} for load, value in ((9, 1), (8, 3), (8, 1), (8, 2))]
    assert medians(counted, "measured_s") == [(8, 2.0), (9, 1.0)]


def test_a_load_of_recorded_traffic_runs_on_an_emulated_server() -> None:
    traffic = traffic_of(read_traffic(EXAMPLE), 16.0, 0.2)
    (server,) = parse_servers("A100", "Llama-3.1-8B-Instruct")
    objectives = parse_objectives("p95 first_token 2s")
    window = Window(0.2, 1.0, 3.4)
    jobs, lag, slipped_s = run_real(
        server, traffic, Load("sessions", 4), objectives, window, seed=3, speed=1.0
    )
    samples = jobs.samples
    assert 0 < samples.num_requests <= len(samples.seconds["first_token"])
    assert 0 < samples.num_cached < samples.num_prompt
    assert lag >= 0
    assert slipped_s >= 0
