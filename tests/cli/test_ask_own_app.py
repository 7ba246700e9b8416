"""`stretto ask` with an app of the user, in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import CommandLine

APP = """
from stretto import Input, Template
from stretto.components import Indexing, LLMCall, Searching, Synthesis, ToolCall

print("imported")
question, files = Input("question", "text"), Input("files", "list[document]")
indexing = Indexing(files=files)
searching = Searching(queries=question, indexed=indexing["indexed"], top_k=1)
synthesis = Synthesis(question=question, hits=searching["hits"], mode="one_shot")
notes = Template("notes", indexing >> searching >> synthesis, {"answer": synthesis["answer"]})
call = LLMCall(prompt="{question} The captain!", question=question, max_tokens=8)
plain = Template("plain", call, {"answer": call["text"]})
unanswered = Template("unanswered", call, {"said": call["text"]})
other = LLMCall(prompt="{day}", day=Input("day", "text"))
daily = Template("daily", other, {"answer": other["text"]})
loud = ToolCall(function="upper", text=question)
tool = Template("tool", loud, {"answer": loud["result"]})
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "my_app.py"
    path.write_text(APP)
    return path


def test_an_app_in_a_file_is_asked_and_traced(
    stretto: CommandLine, app: Path, doc: Path, tmp_path: Path
) -> None:
    page = tmp_path / "run.html"
    asked = "ask", "Where did the captain live?", "--llm", "stand-in", "--trace", page, "--json"
    ended = stretto(*asked, "--app", f"{app}:notes", "--docs", doc)
    assert ended.code == 0, ended
    row = json.loads(ended.out)
    assert ("captain" in row["answer"], row["sources"], row["error"]) == (True, [], None)
    assert "imported" in ended.err
    assert "notes" in page.read_text("utf-8")
    assert json.loads(page.with_suffix(".trace.json").read_text("utf-8"))


def test_many_questions_of_an_app_that_reads_nothing_start_the_llm_alone(
    stretto: CommandLine, app: Path, tmp_path: Path
) -> None:
    questions, journal = tmp_path / "questions.jsonl", tmp_path / "saved"
    questions.write_text('"Who?"\n"Where?"\n')
    command = "ask", "--questions", questions, "--app", f"{app}:plain", "--llm", "stand-in"
    first = stretto(*command, "--journal", journal)
    assert (first.code, first.out.count("?")) == (0, 2), first
    assert "embedding" not in first.err
    assert stretto(*command, "--journal", journal).out == first.out
    app.write_text(APP.replace("The captain!", "The cook!"))
    assert "is the journal of other work" in stretto(*command, "--journal", journal).err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("notes", (), "give documents with --docs"),
        ("plain", ("--docs", "."), "takes no documents; leave out --docs"),
        ("plain", ("--collection", "c"), "--collection is for the ready-made apps"),
        ("unanswered", (), "the app has no output 'answer' that is a text"),
        ("daily", (), "input 'day' is text; `stretto ask` brings question (text) and files"),
        ("tool", (), "the app uses the engine 'calls'; describe it in a file with --engines"),
        ("missing", (), "there is no missing in"),
    ],
)
def test_an_app_that_cannot_be_asked_is_refused(
    stretto: CommandLine, app: Path, name: str, options: tuple[str, ...], message: str
) -> None:
    command = "ask", "Who?", "--llm", "stand-in", "--app", f"{app}:{name}", *options
    ended = stretto(*command)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
