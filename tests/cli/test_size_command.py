"""`stretto size`, on servers that are made up: each serves twenty sessions, a dear one thirty."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import CommandLine

from stretto.sizing.load import Load
from stretto.sizing.trial import TrialOutcome, TriedFleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.jsonl"
SESSIONS = {"H100-80G": 30, "A100-80G": 20}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TriedFleet, float, int]]:
    """Make up what runs measure, and return the list of those that are made."""
    made: list[tuple[TriedFleet, float, int]] = []

    def run(
        fleet: TriedFleet, _traffic: object, load: Load, _objectives: object, seed: int, _num: int
    ) -> TrialOutcome:
        made.append((fleet, load.amount, seed))
        served = sum(SESSIONS[server.gpu] * number for server, number in fleet.servers)
        return TrialOutcome((2.0 * load.amount / (served + seed % 2),), False, 0.5, 100)

    monkeypatch.setattr("stretto.sizing.study.run", run)
    monkeypatch.setattr("stretto.cli.size_table.num_cores", lambda: 1)
    return made


def test_the_answer_is_one_sentence_and_tables(
    stretto: CommandLine, runs: list[tuple[TriedFleet, float, int]], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("H100 = 2.5\nA100 = 1.0\n")
    page = tmp_path / "page.html"
    options = ("--load", "88 sessions", "--gpu", "H100,A100", "--prices", prices, "--draws", "2")
    found = stretto("size", EXAMPLE, *options, "--html", page)
    assert found.code == 0, found.err
    assert found.out.startswith(
        "5 × A100-80G serve 99 sessions (99 to 99) within p95 first token 2 s; at 104"
    )
    assert "steps of Llama-3.1-8B-Instruct on H100-80G, A100-80G: estimate, never measured" in found.out
    assert "3 × H100-80G" in found.out
    assert re.search(r"one more A100-80G +\+2\d% \(\+\d+% to \+\d+%\)", found.out)
    assert "<svg" in page.read_text()
    assert len(runs) == len(set(runs))


def test_json_has_every_run(stretto: CommandLine, runs: list[tuple[TriedFleet, float, int]]) -> None:
    found = stretto("size", EXAMPLE, "--json", "--no-what-if", "--draws", "1")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert data["is_whole"] is True
    assert [one["capacity"] for one in data["servers"]] == [30]
    assert len(data["runs"]) == len(runs)


def test_an_interrupt_shows_what_is_known(
    stretto: CommandLine, runs: list[tuple[TriedFleet, float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import stretto.sizing.study as study

    made_up: Callable[..., TrialOutcome] = vars(study)["run"]

    def interrupted(*given: object) -> TrialOutcome:
        if given[4] == 1:
            raise KeyboardInterrupt
        return made_up(*given)

    monkeypatch.setattr("stretto.sizing.study.run", interrupted)
    found = stretto("size", EXAMPLE, "--load", "50 sessions", "--draws", "3")
    assert found.code == 0, found.err
    assert "interrupted; this is known so far:" in found.err
    assert "the fleet for 50 sessions is not known yet" in found.out
    assert "1 × H100-80G: 1 of 3 draws" in found.out
    assert runs


@pytest.mark.parametrize("ended", [KeyboardInterrupt, TimeoutError])
def test_an_end_in_the_search_for_fleets_shows_the_best_so_far(
    stretto: CommandLine,
    runs: list[tuple[TriedFleet, float, int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ended: type[BaseException],
) -> None:
    import stretto.sizing.study as study

    made_up: Callable[..., TrialOutcome] = vars(study)["run"]

    def interrupted(*given: object) -> TrialOutcome:
        if given[0].num_servers > 1 and len(given[0].servers) > 1:  # type: ignore[attr-defined]
            raise ended
        return made_up(*given)

    monkeypatch.setattr("stretto.sizing.study.run", interrupted)
    prices = tmp_path / "prices.toml"
    prices.write_text("H100 = 2.5\nA100 = 1.6\n")
    options = ("--load", "110 sessions", "--gpu", "H100,A100", "--prices", prices, "--draws", "1")
    found = stretto("size", EXAMPLE, *options, "--seconds", "600")
    assert found.code == 0, found.err
    assert "this is known so far:" in found.err
    assert found.out.startswith("6 × A100-80G serve 110 sessions within p95 first token 2 s\n")
    assert "mixtures that are cheaper were not tried; their servers add up to at most" in found.out
    data = json.loads(stretto("size", EXAMPLE, *options, "--json").out)
    assert (data["is_whole"], data["cheapest"]) == (False, "6 × A100-80G")
    assert data["cheaper_not_tried"] > 0


def test_a_load_that_no_fleet_serves_is_told_with_the_nearest(
    stretto: CommandLine, runs: list[tuple[TriedFleet, float, int]]
) -> None:
    options = ("--draws", "1", "--gpu", "H100", "--no-what-if")
    found = stretto("size", EXAMPLE, "--load", "3840 sessions", *options)
    assert (
        "no fleet of up to 64 servers serves 3840 sessions within p95 first token 2 s: 64 × H100-80G at 3840 "
        in found.out
    )
    assert "misses p95 first token 2 s (4 s, 2 times the limit); 1 × H100-80G serves 30" in found.out
    num_runs = len(runs)
    assert (
        "no fleet of up to 64 servers" in stretto("size", EXAMPLE, "--load", "90000 sessions", *options).out
    )
    assert max(amount for _, amount, _ in runs[num_runs:]) < 90000, "what surely fails is not simulated"


def test_wrong_questions_are_refused_before_any_run(
    stretto: CommandLine, runs: list[tuple[TriedFleet, float, int]], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"what": 1}\n')
    assert "not a line of a known format" in stretto.refuses("size", bad)
    assert "--slo" in stretto.refuses("size", EXAMPLE, "--slo", "p95 first_token soon")
    assert "--load" in stretto.refuses("size", EXAMPLE, "--load", "much")
    assert "H900" in stretto.refuses("size", EXAMPLE, "--gpu", "H900")
    assert "--html" in stretto.refuses("size", EXAMPLE, "--html", tmp_path / "none" / "page.html")
    pauses = stretto.refuses("size", EXAMPLE, "--slo", "p95 job 1s")
    assert "no fleet meets p95 job 1 s: the pauses in" in pauses
    assert not runs
