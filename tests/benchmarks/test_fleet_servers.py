"""The harness `bench fleet` on emulated servers: programs in their own processes, a server that dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fleet_corpus import small_corpus

from benchmarks.fleet.apps import APPS
from benchmarks.fleet.cells import Cells
from benchmarks.fleet.contestants import BY_HAND, CONTESTANTS, OURS
from benchmarks.fleet.layout import Layout, Planned
from benchmarks.fleet.measures import different_answers
from benchmarks.fleet.runs import Arena, Load, Scene, lengths_file
from benchmarks.fleet.schemes import SIMULATED_OURS
from benchmarks.fleet.servers import running_fleet
from benchmarks.fleet.simulated import SimulatedFleet
from stretto.emulate.faults import ServerFault

pytest.importorskip("uvloop")
LAYOUT = Layout(num_llms=2, max_sequences=4)
CORPUS = small_corpus()


@contextmanager
def arena(folder: Path) -> Iterator[Arena]:
    with running_fleet(LAYOUT, 4.0, lengths_file(folder)) as fleet:
        yield Arena(Planned(LAYOUT), fleet, CORPUS, Cells(folder / "cells"), 4.0)


def scene(app: str, num_queries: int = 2) -> Scene:
    return Scene(app, Load(0.5, num_queries), 0, 4.0, 1.0)


@pytest.mark.parametrize("name", [pytest.param(BY_HAND, marks=pytest.mark.long), OURS])
def test_a_program_answers_as_in_virtual_time(tmp_path: Path, name: str) -> None:
    if name == BY_HAND:
        pytest.importorskip("openai")
    with arena(tmp_path) as place:
        for app in APPS:
            ran = place.run(CONTESTANTS[name], scene(app))
            simulated = SimulatedFleet(place.planned).run(SIMULATED_OURS, app, scene(app).queries(CORPUS))
            assert ran.errors == []
            assert different_answers({"emulated": ran, "simulated": simulated}) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [BY_HAND, OURS])
def test_no_query_is_lost_when_a_server_dies(tmp_path: Path, name: str) -> None:
    if name == BY_HAND:
        pytest.importorskip("openai")
    with arena(tmp_path) as place:
        faults = ((0, ServerFault("die", after_s=0.5)),)
        assert place.run(CONTESTANTS[name], scene("naive", 6), faults).errors == []


def test_a_list_is_read_as_it_is_written() -> None:
    pytest.importorskip("openai")
    from benchmarks.fleet.programs.by_hand_servers import complete_texts

    assert complete_texts('["one", "t') == ["one"]
    assert complete_texts('["one", "a \\"quoted\\" one"') == ["one", 'a "quoted" one']
    assert complete_texts('["one", "two"]') == ["one", "two"]
    assert complete_texts("") == []
