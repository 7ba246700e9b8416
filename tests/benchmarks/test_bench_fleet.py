"""Parts of the harness `bench fleet`: cells, figures, queries, and programs in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import httpx
import pytest
from support.fleet_corpus import small_corpus

from benchmarks.fleet.apps import APPS
from benchmarks.fleet.bounds import bounds, least_mean_of
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.fleet.clairvoyant import KNOWN_SCHEMES, Won, best_by_true_work, what_could_be_won
from benchmarks.fleet.contestants import Contestant
from benchmarks.fleet.layout import Layout, Planned
from benchmarks.fleet.measures import Ran, different_answers, figures
from benchmarks.fleet.questions import cut, poisson_gaps_s, queries
from benchmarks.fleet.runs import Arena, Load, Scene
from benchmarks.fleet.schemes import SIMULATED_BY_HAND, SIMULATED_OURS
from benchmarks.fleet.servers import RunningFleet, fleet_toml
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.work import Answered, ServerUrls, Work, read_work, write_work
from stretto.emulate.fleet import read_fleet
from stretto.model.errors import EngineFailure, EngineTimeout

CORPUS = small_corpus()
FLEET = SimulatedFleet(Planned(Layout(num_llms=2, max_sequences=4)))


def key(**changes: object) -> CellKey:
    return CellKey(**{"contestant": "a", "app": "naive", "load": 0.5, "seed": 0, "settings": {}, **changes})  # type: ignore[arg-type]


def ran(*latencies_s: float | None, answer: str = "yes") -> Ran:
    """A run with an arrival each second; None stands for a query that fails after a second."""
    answered = tuple(
        Answered(f"q{place}", place + 1.0, None, error="lost")
        if latency_s is None
        else Answered(f"q{place}", place + latency_s, answer)
        for place, latency_s in enumerate(latencies_s)
    )
    return Ran(tuple(map(float, range(len(latencies_s)))), answered)


def work(app: str = "naive", **settings: object) -> Work:
    asked = queries(CORPUS, 2, [0.0, 1.5], "seed")
    return Work(
        app,
        2.0,
        ServerUrls(("http://a", "http://b"), "http://c", "http://d"),
        "model",
        4,
        APPS[app].prompts,
        APPS[app].settings,
        asked,
        options={"passes": ["prune_order"]},
    )


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    Cells(tmp_path).get(key(), lambda: {"seconds": 1})
    assert Cells(tmp_path).get(key(), lambda: pytest.fail("run again")) == {"seconds": 1}


def test_a_run_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    def interrupted() -> dict[str, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cells(tmp_path).get(key(), interrupted)
    assert Cells(tmp_path).get(key(), lambda: {"seconds": 2}) == {"seconds": 2}


@pytest.mark.parametrize("change", [{"seed": 1}, {"contestant": "b"}, {"settings": {"speed": 2}}])
def test_a_run_with_other_settings_is_another_one(tmp_path: Path, change: dict[str, object]) -> None:
    cells = Cells(tmp_path)
    cells.get(key(), lambda: {"seconds": 1})
    assert cells.get(key(**change), lambda: {"seconds": 2}) == {"seconds": 2}


def test_goodput_counts_answers_in_time() -> None:
    found = figures([ran(1.0, 3.0, None, 1.0)], deadline_s=2.0, num_gpus=2)
    assert found["in_time"] == 2 / 4
    assert found["goodput_per_s"] == 2 / 4.0
    assert found["jobs_per_hour_gpu"] == 3600 * 3 / 4.0 / 2


def test_different_answers_are_found() -> None:
    one, other = ran(1.0, 1.0), ran(2.0, 2.0)
    assert different_answers({"a": one, "b": other}) == []
    changed = Ran(other.at_s, (other.answered[0], Answered("q1", 3.0, "no")))
    assert different_answers({"a": one, "b": changed}) == ["q1"]


def test_different_sources_are_different_answers() -> None:
    one = Ran((0.0,), (Answered("q0", 1.0, "yes", (("a", 1),)),))
    other = Ran((0.0,), (Answered("q0", 1.0, "yes", (("a", 2),)),))
    assert different_answers({"a": one, "b": other}) == ["q0"]


def test_a_query_that_failed_is_no_different_answer() -> None:
    assert different_answers({"a": ran(1.0), "b": ran(None)}) == []


def test_work_travels_as_it_is(tmp_path: Path) -> None:
    write_work(work(), tmp_path / "work.json")
    assert read_work(tmp_path / "work.json") == work()


def test_queries_depend_on_the_seed_alone() -> None:
    gaps_s = poisson_gaps_s(6, 2.0, "one")
    assert gaps_s == poisson_gaps_s(6, 2.0, "one")
    assert gaps_s != poisson_gaps_s(6, 2.0, "two")
    assert queries(CORPUS, 3, gaps_s, "one") == queries(CORPUS, 3, gaps_s, "one")
    for asked in queries(CORPUS, 3, gaps_s, "one"):
        assert len({document.source for document in asked.documents}) == 3
        own = next(source for question, source in CORPUS.questions if question == asked.question)
        assert own in {document.source for document in asked.documents}


def test_a_long_paragraph_is_cut_between_words() -> None:
    paragraph = " ".join(["word"] * 500)
    pieces = cut(paragraph)
    assert len(pieces) > 1
    assert " ".join(pieces) == paragraph


def test_the_fleet_file_says_what_is_planned(tmp_path: Path) -> None:
    wanted = Layout(num_llms=2).wanted((8001, 8002, 8003, 8004), 0.5)
    (tmp_path / "fleet.toml").write_text(fleet_toml(wanted), "utf-8")
    machine, servers = read_fleet(tmp_path / "fleet.toml")
    assert machine.devices == wanted.devices
    assert servers == wanted.servers


def test_a_program_that_cannot_start_is_reported() -> None:
    absent = Contestant("absent", "benchmarks.fleet.programs.absent", ("naive",), Path(sys.executable))
    with pytest.raises(EngineFailure, match=r"absent ended before it was ready: .*No module"):
        absent.started(work(), 10.0).__enter__()


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Contestant:
    """A contestant that is a script."""
    (folder / "scripted_contestant.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Contestant("scripted", "scripted_contestant", ("naive",))


def test_a_program_that_hangs_before_it_is_ready_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = program(tmp_path, monkeypatch, "import time; time.sleep(100)")
    with pytest.raises(EngineTimeout, match=r"scripted was not ready in 1 s"):
        hangs.started(work(), 10.0, 1.0).__enter__()


def test_a_program_that_says_something_else_than_that_it_is_ready_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chatty = program(tmp_path, monkeypatch, "print('hello', flush=True); import time; time.sleep(100)")
    with pytest.raises(EngineFailure, match=r"scripted wrote 'hello\\n' before it was ready"):
        chatty.started(work(), 10.0).__enter__()


FAILS = """
import json, sys
names = [one["name"] for one in json.load(open(sys.argv[1]))["queries"]]
print("ready", flush=True)
sys.stdin.readline()
answered = [{"name": name, "end_s": 1.0, "answer": None, "sources": [], "error": "Boom"} for name in names]
json.dump({"answered": answered, "cpu_s": 0.0}, open(sys.argv[2], "w"))
"""


def test_a_run_without_any_answer_is_an_error_and_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"stretto_emulate:{name}_seconds_total 1\n" for name in ("late", "waited", "slipped"))
    http = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, text=text)))
    fleet = RunningFleet(ServerUrls(("http://a",), "http://b", "http://c"), http)
    arena = Arena(Planned(Layout(num_llms=1)), fleet, CORPUS, Cells(tmp_path / "cells"), 1.0)
    with pytest.raises(EngineFailure, match="scripted answered no query: Boom"):
        arena.run(program(tmp_path, monkeypatch, FAILS), Scene("naive", Load(0.5, 2), 0, 4.0, 1.0))
    assert list((tmp_path / "cells").iterdir()) == []


@pytest.mark.parametrize("app", APPS)
def test_schemes_answer_equally_and_no_faster_than_the_bound(app: str) -> None:
    asked = queries(CORPUS, 2, [0.0, 0.1, 0.1], app)
    runs = {scheme.name: FLEET.run(scheme, app, asked) for scheme in (SIMULATED_BY_HAND, SIMULATED_OURS)}
    assert different_answers(runs) == []
    assert all(one.answer for one in runs["ours"].answered)
    found = bounds(FLEET, app, asked)
    for run in runs.values():
        for latency_s, bound in zip(run.latencies_s, found, strict=True):
            assert latency_s >= bound.seconds - 0.001  # prompts are cut into tokens a little differently
    assert [one.outputs["answer"] for one in found] == [one.answer for one in runs["ours"].answered]


def test_the_clairvoyant_schedule_is_the_best_of_all_candidates() -> None:
    known = dict(zip(KNOWN_SCHEMES, (4.0, 2.5, 3.0, 3.0), strict=True))
    assert what_could_be_won(known, (2.0, "true work")) == Won(4.0, 2.5, 2.0, "true work")
    assert what_could_be_won(known, (2.7, "true work")) == Won(4.0, 2.5, 2.5, "ours")


def test_who_knows_the_lengths_of_answers_is_faster_where_queries_queue() -> None:
    asked = queries(CORPUS, 2, [0.0] * 12, "all at once")
    mean_s, name = best_by_true_work(FLEET, "naive", asked)
    assert "true work" in name
    assert least_mean_of(asked, bounds(FLEET, "naive", asked)) <= mean_s
    assert mean_s < fmean(FLEET.run(SIMULATED_OURS, "naive", asked).latencies_s)


def test_the_share_of_what_could_be_won() -> None:
    assert Won(by_hand_s=4.0, ours_s=3.0, clairvoyant_s=2.0, best="").share == 0.5
    assert not Won(by_hand_s=4.0, ours_s=4.0, clairvoyant_s=4.0, best="").could_be_won
