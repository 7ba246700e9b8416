"""Files that the release before has written are read: journals, records of runs, profiles, applications."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.command_line import CommandLine

from stretto.cli.saved import saved_profiles
from stretto.model.profile import Profile

BEFORE = Path(__file__).parent / "files_before"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, in which commands run."""
    shutil.copytree(BEFORE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_journal_of_answers(stretto: CommandLine, folder: Path) -> None:
    journal = folder / "ask.journal"
    before = journal.read_bytes()
    asked = "--docs", "notes.md", "--questions", "questions.jsonl", "--llm", "stand-in", "--app", "naive"
    done = stretto("ask", *asked, "--journal", journal, "--json")
    assert done.code == 0, done
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [answer["answer"] for answer in answers] == ["The harbour was built in 1820 by captain Hill."] * 2
    assert journal.read_bytes() == before  # nothing was asked again


def test_a_journal_of_a_planned_run(stretto: CommandLine, folder: Path) -> None:
    journal = folder / "run-plan.journal"
    before = journal.read_bytes()
    files = "--requests", "requests.jsonl", "--out", "out.jsonl", "--journal", journal
    assert stretto("run-plan", "app.yaml", *files, "--serve", "local").code == 0
    assert (folder / "out.jsonl").read_text("utf-8").count("Judge this") == 2
    assert journal.read_bytes() == before


def test_a_record_of_a_run(stretto: CommandLine, folder: Path) -> None:
    assert stretto("replay", "run.jsonl", "--instances", "llm=2").code == 0


def test_profiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "stretto").mkdir()
    (folder / "profiles.json").rename(folder / "stretto" / "profiles.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    expected = Profile(0.004, 0.012, 8, per_token_s=4e-5, unit_tokens=128.0)
    assert saved_profiles() == {"embedding|all-MiniLM-L6-v2|float32|2": expected}
