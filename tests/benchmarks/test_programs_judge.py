"""The judge of orders and room, at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plotting
from benchmarks.fleet.cells import Cells
from benchmarks.programs import try_one
from benchmarks.programs.arena import SHARES, ProgramArena
from benchmarks.programs.benchmark import FIRST_REPORTED_SEED, ProgramsSize, measure
from benchmarks.programs.contestants import ARRIVAL, ATTAINED, BEFORE, CLAIRVOYANT
from benchmarks.programs.grid import ProgramGrid, ProgramScene
from benchmarks.programs.measures import by_kind, share_of_gain
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.simulated import JudgedServers
from benchmarks.programs.tables import DEADLINES, MEANS, SECONDS, TENANTS
from benchmarks.programs.work import BATCH, WARM_SHARE
from benchmarks.registry import BenchmarkOptions

TINY = 0.03


def arena(folder: Path) -> ProgramArena:
    return ProgramArena(JudgedServers(sequences=4), Cells(folder), TINY)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> ProgramArena:
    """An arena whose runs are stored, so that each is made once."""
    return arena(tmp_path_factory.mktemp("cells"))


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_depends_on_its_seed_alone(mix: str) -> None:
    first, again, other = (MIXES[mix].draw(seed, TINY) for seed in ("1", "1", "2"))
    assert first == again
    assert first != other
    assert all(0 <= one.at < 1 for one in first)
    assert len({query.name for one in first for query in one.queries}) == sum(
        len(one.queries) for one in first
    )


@pytest.mark.parametrize("name", [ARRIVAL, BEFORE, ATTAINED, CLAIRVOYANT])
def test_every_program_ends_once_with_every_contestant(name: str, place: ProgramArena) -> None:
    run = place.run(name, "four_apps", 1.1, "0")
    programs = place.programs("four_apps", "0")
    assert set(run.times) == {one.name for one in programs}
    assert set(run.usages) == set(place.lone("four_apps", "0").work_s)


def test_work_does_not_depend_on_the_contestant(place: ProgramArena) -> None:
    runs = [place.run(name, "four_apps", 1.1, "0") for name in (ARRIVAL, CLAIRVOYANT)]
    written = [{key: usage.num_output_tokens for key, usage in run.usages.items()} for run in runs]
    assert written[0] == written[1]


def test_a_stored_run_has_the_same_figures(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        place = arena(tmp_path)
        lone, programs = place.lone("pareto", "0"), place.programs("pareto", "0")
        found.append(by_kind(place.run(ARRIVAL, "pareto", 0.9, "0"), lone, programs))
    assert found[0] == found[1]


def test_twice_the_load_takes_half_the_time(place: ProgramArena) -> None:
    assert place.duration_s("pareto", 0.5, "0") == 2 * place.duration_s("pareto", 1.0, "0")


def test_offline_work_has_a_window_and_does_not_count(place: ProgramArena) -> None:
    offline = [one for one in place.programs("batch", "0") if one.is_offline]
    assert {one.kind for one in offline} == {BATCH}
    assert {one.due_s(3.0, 100.0) for one in offline} == {150.0}
    found = by_kind(
        place.run(ARRIVAL, "batch", 1.1, "0"), place.lone("batch", "0"), place.programs("batch", "0")
    )
    assert found[""].missed is None
    assert found[BATCH].missed is not None


def test_programs_of_the_beginning_are_not_counted(place: ProgramArena) -> None:
    programs = place.programs("chats", "0")
    found = by_kind(place.run(ARRIVAL, "chats", 0.9, "0"), place.lone("chats", "0"), programs)
    assert found[""].count == sum(one.at >= WARM_SHARE for one in programs) < len(programs)


def test_a_share_is_counted_where_there_is_something_to_gain() -> None:
    assert share_of_gain(2.0, 1.5, 1.0) == pytest.approx(1 / 3)
    assert share_of_gain(1.04, 1.0, 1.0) is None


def test_one_cell_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try_one.main(["chats", "0.9", "0", BEFORE, "--scale", "0.02", "--cells", str(tmp_path)])
    assert BEFORE in capsys.readouterr().out


def test_a_seed_of_reports_is_not_tuned_with() -> None:
    with pytest.raises(SystemExit):
        try_one.main(["chats", "0.9", str(FIRST_REPORTED_SEED)])


def test_a_report_has_its_tables_and_goals(tmp_path: Path) -> None:
    size = ProgramsSize(mixes=("pareto",), loads=(1.1,), seeds=2, layouts=((1, 4),), scale=TINY, workers=1)
    report = measure(size, BenchmarkOptions(cells=tmp_path))
    assert [*report.table(MEANS)] == ["1 × 4, pareto, 110 %"]
    assert {goal.name for goal in report.goals} >= {"least p99 of arrival order over ours"}


@pytest.mark.long
def test_a_report_on_all_mixes(tmp_path: Path) -> None:
    size = ProgramsSize(loads=(1.1,), seeds=1, scale=0.1, workers=1)
    report = measure(size, BenchmarkOptions(cells=tmp_path / "cells"))
    assert len(report.table(SECONDS)) == len(MIXES)
    assert [*report.table(DEADLINES)] == ["deadlines, 110 %", "batch, 110 %, windows of offline work"]
    assert [*report.table(TENANTS)] == [f"bursts, 110 %, {share}" for share in SHARES]
    assert len(report.goals) >= 6
    pytest.importorskip("matplotlib")
    plotting.plot(report, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size


@pytest.mark.long
def test_runs_of_several_processes_are_those_of_one(tmp_path: Path) -> None:
    figures = []
    for workers in (1, 2):
        scene = ProgramScene(JudgedServers(sequences=4), "pareto", 1.1, 0)
        grid = ProgramGrid((scene,), (ARRIVAL, CLAIRVOYANT), tmp_path / str(workers), TINY)
        grid.run(lambda _: None, workers)
        figures.append({path.name: path.read_text() for path in (tmp_path / str(workers)).iterdir()})
    assert figures[0] == figures[1]
