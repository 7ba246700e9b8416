"""`stretto ask --journal`: a batch of questions that was ended goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, serving
from support.openai_stub import Reply

from stretto.cli.ask.saved_answers import entry_of, outputs_of
from stretto.core import Chunk, Hit, Mark
from stretto.runtime.journal.lines import Entry

NUM_QUESTIONS = 6


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f'"Where did captain {at} live?"\n' for at in range(NUM_QUESTIONS)), "utf-8")
    return path


def test_sources_are_saved_with_their_sections() -> None:
    marked = Hit(Chunk("a.pdf", 0, "one two", None, 1, marks=(Mark(3, None, 2),)), 0.5)
    entry = entry_of(3, {"answer": "yes", "sources": [marked]})
    read = Entry(entry.key, json.loads(json.dumps(entry.value)))
    assert outputs_of([read]) == {3: {"answer": "yes", "sources": [marked]}}


def test_an_answer_saved_by_an_earlier_version_is_read() -> None:
    chunk = {"source": "a.pdf", "index": 1, "text": "t", "title": None, "page": 2, "document_sha256": "00"}
    entry = Entry(("0",), ["yes", [[0.5, {**chunk, "num_chunks": 3}]]])
    hit = Hit(Chunk("a.pdf", 1, "t", None, 2, "00", 3), 0.5)
    assert outputs_of([entry]) == {0: {"answer": "yes", "sources": [hit]}}


def test_only_unanswered_questions_are_asked_again(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    asked: set[str] = set()

    def answer(request: Mapping[str, Any]) -> Reply:
        number = next(at for at in range(NUM_QUESTIONS) if f"captain {at}" in request["prompt"])
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
        assert asked == {json.loads(line)[0] for line in lines[3:]}
        assert sorted(journal.read_bytes().splitlines(keepends=True)) == sorted(lines)
        asked.clear()
        last = stretto(*command, "--journal", journal)
        assert (last.code, last.out, asked) == (0, plain.out, set())


def test_an_interrupted_batch_goes_on(
    stretto: CommandLine, tmp_path: Path, doc: Path, questions: Path
) -> None:
    def interrupt() -> None:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def answer(request: Mapping[str, Any]) -> Reply:
        if "captain 4" in request["prompt"] and waiting:
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
        if fails and "captain 2" in request["prompt"]:
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
