"""Runs of a study in processes: the same answer as in one, and no process that is left."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from stretto.sizing.asked import parse_servers
from stretto.sizing.load import Load
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.processes import in_processes
from stretto.sizing.sources import read_traffic
from stretto.sizing.study import Study
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TriedFleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.jsonl"
(SERVER,) = parse_servers("A100", "Llama-2-7b-hf")
FLEET, PAIR = TriedFleet(((SERVER, 1),)), TriedFleet(((SERVER, 2),))


def study() -> Study:
    traffic = traffic_of(read_traffic(EXAMPLE), 4.0, 5.0)
    return Study(traffic, parse_objectives("p50 per_token 1ms"), "sessions", draws=2, num_samples=10)


def test_runs_in_processes_find_what_runs_in_this_one_find() -> None:
    here, apart = study(), study()
    guesses = [2, 2, 2]
    found = [(fleet, one.levels) for fleet in (FLEET, PAIR) for one in here.capacities(fleet, guesses)]
    with in_processes(apart, 2) as told:
        beside = told.capacities_of({FLEET: guesses, PAIR: guesses})
        pairs = [(fleet, one.levels) for fleet, one in beside]
        assert sorted(pairs, key=lambda pair: pair[0].num_servers) == found
        assert not told.serves(FLEET, Load("sessions", 4))
    assert not here.serves(FLEET, Load("sessions", 4))
    assert len(here.outcomes) > 3
    assert apart.outcomes == here.outcomes
    assert not multiprocessing.active_children()


def interrupted() -> None:
    with in_processes(study(), 2) as told:
        assert told.submit is not None
        assert len(multiprocessing.active_children()) == 2, "all begin with Ctrl-C blocked"
        for draw in range(8):
            told.submit((FLEET, Load("sessions", 4000), draw))
        assert multiprocessing.active_children()
        raise KeyboardInterrupt


def test_an_interrupt_ends_processes_in_the_middle_of_their_runs() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not multiprocessing.active_children()
