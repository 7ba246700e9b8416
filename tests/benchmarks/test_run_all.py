"""All benchmarks one after the other."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import registry, run_all


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run. "passes" fails, all others write a report of this commit."""
    commands: list[list[str]] = []

    async def ended(command: list[str], *_: object) -> int:
        commands.append(command)
        path = Path(command[command.index("--json") + 1])
        if path.stem != "passes":
            goals = [{"met": True}, {"met": False}]
            path.write_text(json.dumps({"commit": "abc", "goals": goals}), "utf-8")
        return int(path.stem == "passes")

    monkeypatch.setattr(run_all, "commit", lambda: "abc")
    monkeypatch.setattr(run_all, "_ended", ended)
    return commands


def test_each_benchmark_is_run_and_each_name_is_known() -> None:
    assert {run.arguments[0] for run in run_all.RUNS} == set(registry.BENCHMARKS)
    assert len({run.file for run in run_all.RUNS}) == len(run_all.RUNS)


def test_what_is_of_this_commit_is_not_run_again(
    tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.main(["retain", "passes", "--out", str(tmp_path)]) == 1
    assert "passes: failed" in capsys.readouterr().out
    assert len(ran) == 2
    assert run_all.main(["retain", "--out", str(tmp_path)]) == 0
    assert len(ran) == 2
    assert "retain: is of this commit" in capsys.readouterr().out


def test_what_was_made_from_changed_files_is_made_anew(
    tmp_path: Path, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "commit", lambda: "abc+")
    for _ in range(2):
        (tmp_path / "retain.json").write_text(json.dumps({"commit": "abc+", "goals": []}), "utf-8")
        assert run_all.main(["retain", "--out", str(tmp_path)]) == 0
    assert len(ran) == 2


def test_stored_runs_of_other_code_are_not_used(tmp_path: Path, ran: list[list[str]]) -> None:
    mine, others = (tmp_path / "cells" / "parrot" / name for name in ("abc", "of old code"))
    for folder in (mine, others):
        folder.mkdir(parents=True)
    run_all.main(["parrot", "--out", str(tmp_path)])
    assert ran[0][ran[0].index("--cells") + 1] == str(mine)
    assert mine.exists()
    assert not others.exists()


def test_all_benchmarks_usually_take_less_than_four_hours() -> None:
    assert run_all.usual_minutes(run_all._IN_VIRTUAL_TIME, run_all._IN_REAL_TIME) <= 240


def test_a_damaged_file_is_made_anew(tmp_path: Path, ran: list[list[str]]) -> None:
    (tmp_path / "retain.json").write_text("{", "utf-8")
    assert run_all.main(["retain", "--out", str(tmp_path)]) == 0
    assert len(ran) == 1


def test_data_is_handed_on_where_it_is_of_use(
    tmp_path: Path, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run_all.main(["overhead", "costs", "retain", "--out", str(tmp_path)])
    assert "costs: left out" in capsys.readouterr().out
    run_all.main(["costs", "--out", str(tmp_path), "--data", str(tmp_path)])
    assert "--data" not in ran[0]
    assert ran[-1][-2:] == ["--data", str(tmp_path)]


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all.main(["retian"]) == 2
    assert "retain" in capsys.readouterr().out


def test_a_benchmark_that_takes_too_long_leaves_no_process() -> None:
    starts_another = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        with os.fdopen(write, "w") as writer:
            assert (
                asyncio.run(run_all._ended([sys.executable, "-c", starts_another], writer, 0.5))
                == "more than 0.5 s"
            )
        assert reader.read() == "", "the end of the pipe says that no process holds it"
