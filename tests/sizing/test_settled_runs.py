"""A run ends when what still runs changes no statistic any more, or one is beyond all doubt."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from stretto.sizing.asked import parse_servers
from stretto.sizing.load import Load
from stretto.sizing.measured import Enough, Measures
from stretto.sizing.objectives import Objective, parse_objectives
from stretto.sizing.sources import read_traffic
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TriedFleet, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.jsonl"
OBJECTIVES = parse_objectives("p90 first_token 2s, p50 job 9s")


def settled(
    objectives: tuple[Objective, ...],
    noted: dict[str, list[float]],
    running: list[tuple[str, float]],
    stuck: list[tuple[str, float]],
) -> Measures | None:
    """Return the measures of a run if it ends."""
    measures = Measures(objectives, dict.fromkeys(noted, math.inf))
    for time, seconds in noted.items():
        measures.samples.seconds[time] += seconds
    try:
        measures.settle([], running, stuck)
    except Enough:
        return measures
    return None


@pytest.mark.parametrize("seed", range(50))
def test_a_run_that_is_known_has_the_statistics_of_its_end(seed: int) -> None:
    draw = Random(seed)
    objectives = OBJECTIVES[: 1 + seed % 2]
    ends_s = {one.time: [draw.uniform(0, 12) for _ in range(draw.randrange(1, 40))] for one in objectives}
    now_s = draw.uniform(3, 12)
    noted = {time: [end_s for end_s in ends if end_s < now_s] for time, ends in ends_s.items()}
    running = [(time, now_s) for time, ends in ends_s.items() for end_s in ends if end_s >= now_s]
    found = settled(objectives, noted, running, [])
    if found is None:
        assert running
    elif not found.samples.is_cut:
        for one in objectives:
            assert one.value_s(found.samples.seconds[one.time]) == one.value_s(ends_s[one.time])
    else:
        assert any(one.value_s(ends_s[one.time]) >= 4 * one.limit_s for one in objectives)


def test_what_waits_from_before_may_count_or_not() -> None:
    nearly = {"first_token": 9 * [1.0]}
    assert settled(OBJECTIVES[:1], nearly, [("first_token", 3.0)], []) is not None
    assert settled(OBJECTIVES[:1], nearly, [("first_token", 3.0)], [("first_token", 5.0)]) is None
    rising = {"first_token": [0.1 * at for at in range(1, 10)]}
    assert settled(OBJECTIVES[:1], rising, [("first_token", 0.5)], []) is None
    assert settled(OBJECTIVES[:1], rising, [("first_token", 0.9)], []) is not None


def test_one_objective_that_is_missed_by_far_is_enough() -> None:
    measures = settled(OBJECTIVES, {"first_token": [], "job": [1.0]}, 3 * [("job", 36.0)], [])
    assert measures is not None
    assert measures.samples.is_cut
    assert settled(OBJECTIVES, {"first_token": [], "job": [1.0]}, 3 * [("job", 35.0)], []) is None


def test_a_run_that_is_settled_says_what_a_whole_one_says() -> None:
    (server,) = parse_servers("A100", "Llama-2-7b-hf")
    traffic, objectives = traffic_of(read_traffic(EXAMPLE), 4.0, 5.0), parse_objectives("p90 job 20s")
    fleet, load = TriedFleet(((server, 1),)), Load("sessions", 1)
    early, whole = (run(fleet, traffic, load, objectives, 3, 20, cuts=cuts) for cuts in (True, False))
    assert early.num_requests < whole.num_requests
    assert early.values_s == whole.values_s
