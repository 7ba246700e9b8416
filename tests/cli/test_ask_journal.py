"""`stretto ask --journal`: a batch of questions that was ended goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, serving
from support.openai_stub import Reply

from stretto.cli.ask.saved_answers import saved_answer_entry, saved_in
from stretto.model.errors import JournalError
from stretto.model.values import Chunk, Hit, Mark
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry

NUM_QUESTIONS = 6


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f'"Where did captain {at} live?"\n' for at in range(NUM_QUESTIONS)), "utf-8")
    return path


def test_sources_are_saved_with_their_sections() -> None:
    marked = Hit(Chunk("a.pdf", 0, "one two", None, 1, marks=(Mark(3, None, 2),)), 0.5)
    entry = saved_answer_entry(3, "Which?", {"answer": "yes", "sources": [marked]})
    read = JournalEntry(entry.key, json.loads(json.dumps(entry.value)))
    assert saved_in([read], ["", "Which?"]) == {1: ({"answer": "yes", "sources": [marked]}, None)}


def test_an_answer_saved_by_an_earlier_version_is_read() -> None:
    chunk = {"source": "a.pdf", "index": 1, "text": "t", "title": None, "page": 2, "document_sha256": "00"}
    entry = JournalEntry(("0",), ["yes", [[0.5, {**chunk, "num_chunks": 3}]]])
    hit = Hit(Chunk("a.pdf", 1, "t", None, 2, "00", 3), 0.5)
    assert saved_in([entry], ["Which?"]) == {0: ({"answer": "yes", "sources": [hit]}, None)}


def test_only_unanswered_questions_are_asked_again(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    asked: set[str] = set()

    def answer(request: Mapping[str, Any]) -> Reply:
        number = next(at for at in range(NUM_QUESTIONS) if f"captain {at}" in str(request["messages"]))
        asked.add(str(number))
        return Reply((f"In house {number}.",))

    journal = tmp_path / "journal"
    with serving(answer) as url:
        command = "ask", "--questions", questions, "--docs", doc, "--app", "naive", "--llm", url
        plain = stretto(*command)
        whole = stretto(*command, "--journal", journal)
        assert whole.code == 0, whole
        assert whole.out == plain.out
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:3]) + lines[3][:-2])
        asked.clear()
        again = stretto(*command, "--journal", journal)
        assert (again.code, again.out) == (0, plain.out)
        assert asked == {json.loads(line[:-10])[1] for line in lines[3:]}
        assert sorted(journal.read_bytes().splitlines(keepends=True)) == sorted(lines)
        asked.clear()
        last = stretto(*command, "--journal", journal)
        assert (last.code, last.out, asked) == (0, plain.out, set())


def test_appended_and_changed_questions_alone_are_asked(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    asked: list[str] = []

    def answer(request: Mapping[str, Any]) -> Reply:
        asked.append(
            next(name for name in ("harbour", "mayor", "captain") if name in str(request["messages"]))
        )
        return Reply(("There.",))

    journal = tmp_path / "journal"
    with serving(answer) as url:
        command = "ask", "--questions", questions, "--docs", doc, "--app", "naive", "--llm", url
        assert stretto(*command, "--journal", journal).code == 0
        lines = questions.read_text("utf-8").splitlines()
        changed = ['"Where is the harbour?"', *lines[2:], '"Who is the mayor?"']
        questions.write_text("\n".join(changed), "utf-8")
        asked.clear()
        assert stretto(*command, "--journal", journal).code == 0
        assert set(asked) == {"harbour", "mayor"}


def test_a_journal_without_checksums_is_gone_on_with(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    def answer(request: Mapping[str, Any]) -> Reply:
        asked.append(str(request["messages"]))
        return Reply(("There.",))

    def note(self: JournalFile, path: Path, work: str, work_before: Callable[[], str]) -> None:
        before.append(work_before())
        raise JournalError("noted")

    journal, asked, before = tmp_path / "journal", list[str](), list[str]()
    with serving(answer) as url:
        command = "ask", "--questions", questions, "--docs", doc, "--app", "naive", "--llm", url
        whole = stretto(*command, "--journal", journal)
        lines = [json.loads(line[:-10]) for line in journal.read_bytes().splitlines(keepends=True)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JournalFile, "__init__", note)
            stretto.refuses(*command, "--journal", tmp_path / "other")
        old = [{"journal": 3, "work": before[0]}, *([number, value] for _, number, value in lines[1:])]
        journal.write_text("".join(json.dumps(line) + "\n" for line in old), "utf-8")
        asked.clear()
        again = stretto(*command, "--journal", journal)
        assert (again.code, again.out, asked) == (0, whole.out, [])


def test_an_interrupted_batch_goes_on(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    def interrupt() -> None:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def answer(request: Mapping[str, Any]) -> Reply:
        if "captain 4" in str(request["messages"]) and waiting:
            waiting.pop().start()
            return Reply(ending="hang")
        return Reply(("There.",))

    journal, waiting = tmp_path / "journal", [threading.Thread(target=interrupt)]
    with serving(answer) as url:
        command = "ask", "--questions", questions, "--docs", doc, "--app", "naive", "--llm", url
        assert stretto(*command, "--journal", journal).code == 130
        assert 3 <= journal.read_bytes().count(b"\n") <= NUM_QUESTIONS
        assert stretto(*command, "--journal", journal).code == 0
    assert journal.read_bytes().count(b"\n") == NUM_QUESTIONS + 1


def test_a_journal_of_other_questions_is_refused_before_anything_runs(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    journal = tmp_path / "journal"
    command = "ask", "--questions", questions, "--docs", doc, "--llm", "stand-in", "--journal", journal
    assert stretto(*command).code == 0
    assert "other work" in stretto.refuses(*command, "--app", "naive")
    doc.write_text("Another text.", "utf-8")
    assert "other work" in stretto.refuses(*command)
    assert "is no journal" in stretto.refuses(*command[:-1], questions)


def test_a_failed_question_is_asked_again(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    def answer(request: Mapping[str, Any]) -> Reply:
        if fails and "captain 2" in str(request["messages"]):
            return Reply(status=400)
        return Reply(("There.",))

    journal, fails = tmp_path / "journal", ["captain 2"]
    with serving(answer) as url:
        command = "ask", "--questions", questions, "--docs", doc, "--app", "naive", "--llm", url, "--json"
        first = stretto(*command, "--journal", journal)
        assert first.code == 1
        errors = [json.loads(line)["error"] is not None for line in first.out.splitlines()]
        assert errors == [at == 2 for at in range(NUM_QUESTIONS)]
        fails.clear()
        again = stretto(*command, "--journal", journal)
    assert again.code == 0
    assert all(json.loads(line)["error"] is None for line in again.out.splitlines())
