"""`stretto ask`, without processes and without a database."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, serving
from support.local_models import models_loaded_once
from support.openai_stub import Reply
from test_documents import write_pdf

from stretto.apps import naive_rag
from stretto.cli.indexing import Indexed, IndexingRecorder, indexing_template
from stretto.engines.catalogue import local_engines
from stretto.graph.passes.pipeline import PASSES
from stretto.model.errors import EngineFailure
from stretto.model.references import Reference
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Section
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import StartBatch
from stretto.sched.engine_events import BatchDone

QUESTION = "Where did the captain live?"
SOURCE_KEYS = {"file", "page", "pages", "section", "sections", "passage", "lines", "quote", "score", "text"}
ANSWER = "The captain lived at the inn with his sea chest."


def test_a_question_is_answered_with_its_sources(stretto: CommandLine, doc: Path) -> None:
    ended = stretto("ask", QUESTION, "--docs", doc)
    assert (ended.code, ended.out) == (0, f"{ANSWER}\n  1. {doc}, lines 1–2: “{ANSWER}”\n")
    assert "The LLM is SmolLM2-135M-Instruct" in ended.err
    assert "each call of `stretto ask` loads them again" in ended.err
    assert "in all" in ended.err


@pytest.mark.parametrize("app", ["naive", "advanced"])
def test_passes_do_not_change_the_answer(stretto: CommandLine, doc: Path, app: str) -> None:
    outs = [
        stretto("ask", QUESTION, "--docs", doc, "--app", app, "--json", "--passes", passes).out
        for passes in ("all", "none", "prune_order, split_prefill", *PASSES)
    ]
    assert len(set(outs)) == 1
    assert json.loads(outs[0])["answer"] == ANSWER


def test_json_is_all_there_is_on_stdout(stretto: CommandLine, tmp_path: Path, doc: Path) -> None:
    (tmp_path / "more").mkdir()
    write_pdf(tmp_path / "more" / "b.pdf", [[], ["Rum was the captain's drink."]])
    ended = stretto("ask", QUESTION, "--docs", doc, "--docs", tmp_path / "more", "--json")
    row = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    assert row.keys() == {"question", "answer", "finish_reason", "sources", "error"}
    assert (row["question"], row["answer"], row["error"]) == (QUESTION, ANSWER, None)
    assert [(source["file"], source["page"]) for source in row["sources"]] == [
        (str(doc), None),
        (str(tmp_path / "more" / "b.pdf"), 2),
    ]
    assert all(source.keys() == SOURCE_KEYS for source in row["sources"])


def test_settings_are_of_the_query(stretto: CommandLine, doc: Path) -> None:
    settings = ("indexing.tokens=32", "indexing.overlap=0", "reranking.best=2", "synthesis.mode=one_shot")
    ended = stretto("ask", QUESTION, "--docs", doc, "--json", *(f"--set={setting}" for setting in settings))
    sources = json.loads(ended.out)["sources"]
    assert len(sources) == 2
    assert all(len(source["text"]) < 110 for source in sources)


def test_questions_of_a_file_are_answered_in_order_and_one_may_fail(
    stretto: CommandLine, tmp_path: Path, doc: Path
) -> None:
    def answer(request: Mapping[str, Any]) -> Reply:
        prompt = " ".join(message["content"] for message in request["messages"])
        if "JSON" in prompt:
            return Reply(('["a captain", "an inn"]',) if "captain" in prompt else ("I know none.",))
        return Reply(("It", " is", " so."))

    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '\ufeff"Where did the captain live?"\n\n{"question": "Is there rum?", "id": 2}\r\n'
        '"Did\u2028the captain\u0085pay?"\n'
    )
    with serving(answer) as url:
        settings = ("--set", "query_expansion.fallback=false")
        args = ("ask", "--questions", questions, "--docs", doc, "--llm", url, *settings)
        ended = stretto(*args, "--json")
        text = stretto(*args)
    rows = [json.loads(line) for line in ended.out.split("\n")[:-1]]
    assert ended.code == 1
    assert [row["answer"] for row in rows] == ["It is so.", None, "It is so."]
    assert [row["question"] for row in rows][1:] == ["Is there rum?", "Did\u2028the captain\u0085pay?"]
    assert rows[1]["error"].startswith("BadReply: step 'queries': ")
    assert rows[1]["sources"] == []
    assert "1 of 3 questions failed" in ended.err
    assert text.code == 1
    assert text.out.startswith(
        f"{QUESTION}\nIt is so.\n  1. {doc}, lines 1–2: “The captain lived at the inn with his sea chest.”\n"
        "Is there rum?\nBadReply: step 'queries'"
    )


def _graphs_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object, object]]:
    """Return a list that gets all that is submitted from now on: template, files, deadline."""
    submitted: list[tuple[str, object, object]] = []
    submit = Runtime.submit

    async def note(self: Runtime, app: Any, inputs: Any, **options: Any) -> Any:
        submitted.append((app.name, len(inputs["files"]), options.get("deadline_s")))
        return await submit(self, app, inputs, **options)

    monkeypatch.setattr(Runtime, "submit", note)
    return submitted


def test_documents_of_several_questions_are_indexed_first_and_without_a_deadline(
    stretto: CommandLine, tmp_path: Path, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('"Where did the captain live?"\n"Who had dinner?"\n')
    submitted = _graphs_of(monkeypatch)
    trace = tmp_path / "t.html"
    args = ("--docs", doc, "--timeout", 50, "--trace", trace, "--json")
    ended = stretto("ask", "--questions", questions, *args)
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert rows[0]["answer"] == ANSWER
    assert [row["error"] for row in rows] == [None, None]
    assert submitted == [("advanced_rag_indexing", 1, None), *2 * [("advanced_rag", 0, 50.0)]]
    assert "advanced_rag_indexing" in trace.read_text("utf-8")
    submitted.clear()
    stretto("ask", QUESTION, "--docs", doc, "--timeout", 50)
    assert submitted == [("advanced_rag", 1, 50.0)]


def test_failed_indexing_ends_all_questions(
    stretto: CommandLine, tmp_path: Path, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, applications: object) -> list[object]:
        raise EngineFailure("the disk is full")

    monkeypatch.setattr("stretto.engines.batch.vectors.MemoryVectors._ingest", fail)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('"Where?"\n"Who?"\n')
    args = ("ask", "--questions", questions, "--docs", doc)
    line = stretto.refuses(*args, code=1)
    assert line == "EngineFailure: step 'indexed': the disk is full"
    ended = stretto(*args, "--json")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, [row["question"] for row in rows]) == (1, ["Where?", "Who?"])
    assert {row["error"] for row in rows} == {line}


def test_progress_of_indexing_counts_documents_and_chunks(doc: Path) -> None:
    told: list[Indexed] = []
    recorder = IndexingRecorder()
    recorder.on_progress = lambda indexed: told.append(replace(indexed))
    files = [Document(name, (Section("A sentence of some words. " * 100),), name) for name in ("a", "b")]

    async def index() -> None:
        async with Runtime(local_engines(), observers=[recorder]) as runtime:
            template = indexing_template(naive_rag(named_collection=True))
            await (await runtime.submit(template, {"files": files, "collection": "c"}))

    with models_loaded_once():
        asyncio.run(index())
    assert told[0].num_documents >= 1
    last = told[-1]
    assert last.num_documents == 2
    assert last.num_chunks == last.num_embedded == last.num_stored > 2


def test_chunks_that_are_only_referred_to_are_counted_too() -> None:
    class Nowhere:
        def load(self, index: int) -> object:
            raise AssertionError("nobody needs its text")

    chunk = Chunk("a.txt", 0, "text")
    recorder = IndexingRecorder()
    inputs = {"files": ["two", "files"]}
    tasks = (
        Task(1, "q", "chunks", "chunk", inputs, {}, 2, ("files",)),
        Task(2, "q", "vectors", "embed", {"texts": [chunk]}, {}, 1, ("texts",)),
    )
    recorder.on_action(StartBatch("cpu", 0, 7, tasks, 3), 0.0)
    results = [[[chunk, Reference(Nowhere(), 0)], [Reference(Nowhere(), 1)]], [Reference(Nowhere(), 2)]]
    recorder.on_event(BatchDone("cpu", 0, 7, results), 1.0)
    assert recorder.indexed == Indexed(num_documents=2, num_chunks=3, num_embedded=1)


def test_the_small_model_is_named_right_before_its_answer(stretto: CommandLine, doc: Path) -> None:
    assert stretto("ask", QUESTION, "--docs", doc).err.startswith("The LLM is SmolLM2-135M-Instruct")
    assert "The LLM is SmolLM2" not in stretto("ask", QUESTION, "--docs", doc / "nowhere").err


def test_an_answer_is_printed_while_it_is_decoded(stretto: CommandLine, doc: Path) -> None:
    def answer(request: Mapping[str, Any]) -> Reply:
        return Reply(("The ", "inn."), "cut" if "Draft" in request["messages"][-1]["content"] else "done")

    with serving(answer) as url:
        args = ("--docs", doc, "--llm", url, "--app", "naive", "--set", "synthesis.num_hits=1")
        ended = stretto("ask", QUESTION, *args)
    assert (ended.code, ended.out) == (
        0,
        f"The inn.\n  1. {doc}, lines 1–2: “The captain lived at the inn with his sea chest.”\n",
    )
    assert "The LLM is SmolLM2" not in ended.err


def test_a_trace_is_a_page_and_a_file_for_chrome(stretto: CommandLine, tmp_path: Path, doc: Path) -> None:
    ended = stretto("ask", QUESTION, "--docs", doc, "--trace", tmp_path / "where.html")
    assert ended.code == 0
    assert "advanced_rag" in (tmp_path / "where.html").read_text("utf-8")
    events = json.loads((tmp_path / "where.trace.json").read_text())
    assert events
    assert f"wrote {tmp_path / 'where.html'} and {tmp_path / 'where.trace.json'}" in ended.err


def test_a_query_that_fails_leaves_its_trace(stretto: CommandLine, tmp_path: Path, doc: Path) -> None:
    with serving(lambda request: Reply(status=404)) as url:
        args = ("--docs", doc, "--llm", url, "--trace", tmp_path / "t.html")
        assert stretto("ask", QUESTION, *args).code == 1
    assert (tmp_path / "t.html").is_file()


def test_nothing_found_is_said(stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.batch.vectors.MemoryVectors._hits", lambda self, application: [])
    for mode in ("refine", "tree", "one_shot"):
        ended = stretto("ask", QUESTION, "--docs", doc, "--set", f"synthesis.mode={mode}")
        assert (ended.code, ended.out) == (0, "No passage was found.\n")
        row = json.loads(stretto("ask", QUESTION, "--docs", doc, "--json").out)
        assert (row["answer"], row["sources"]) == (None, [])


@pytest.mark.parametrize("name", ["caf\udce9.txt", "a[/]b.txt", "[bold]über.txt"])
def test_documents_may_have_any_name(stretto: CommandLine, tmp_path: Path, doc: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    doc.rename(tmp_path / name)
    ended = stretto("ask", QUESTION, "--docs", tmp_path / name)
    assert ended.code == 0
    assert ended.out.startswith(ANSWER)
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert shown in ended.out
    file = json.loads(stretto("ask", QUESTION, "--docs", tmp_path / name, "--json").out)["sources"][0]["file"]
    assert file == str(tmp_path / name)


def test_latin_text_is_read(stretto: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("The café opens at nine. Nobody knows why.".encode("latin-1"))
    ended = stretto("ask", "When does the café open?", "--docs", tmp_path / "latin.txt")
    assert ended.out.startswith("The café opens at nine.\n")


# --- what is refused


def _refused(tmp_path: Path) -> list[tuple[tuple[object, ...], str]]:
    doc, empty = tmp_path / "inn.txt", tmp_path / "empty.txt"
    empty.touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "t.trace.json").mkdir()
    (tmp_path / "binary.txt").write_bytes(b"\x00\x01\x02" * 100)
    (tmp_path / "corrupt.pdf").write_bytes(b"%PDF-1.7 and then nothing")
    write_pdf(tmp_path / "secret.pdf", [["secret"]], password="x")
    for name, text in {
        "none.jsonl": "\n\n",
        "bad.jsonl": '"fine"\n{"question": \n',
        "number.jsonl": "5\n",
        "deep.jsonl": "[" * 100_000,
        "other.jsonl": '{"q": "x"}\n',
        "blank.jsonl": '"fine"\n" "\n',
        "surrogate.jsonl": '"\\ud800"\n',
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.jsonl").write_bytes(b'"caf\xe9"\n')

    def docs(path: object, *more: object) -> tuple[object, ...]:
        return ("ask", QUESTION, "--docs", path, *more)

    def questions(name: str) -> tuple[object, ...]:
        return ("ask", "--docs", doc, "--questions", tmp_path / name)

    return [
        (("ask", QUESTION), "UserError: give documents with --docs, or the name of a --collection"),
        (("ask", "--docs", doc), "UserError: give one question, or a file of them with --questions"),
        (
            ("ask", QUESTION, "--docs", doc, "--questions", tmp_path / "none.jsonl"),
            "UserError: give one question, or a file",
        ),
        (docs(tmp_path / "nowhere"), f"DocumentError: {tmp_path}/nowhere: No such file or directory"),
        (docs(empty), f"DocumentError: {empty}: is empty"),
        (
            docs(tmp_path / "folder"),
            f"DocumentError: {tmp_path}/folder: no documents in this directory (read are .pdf, .html",
        ),
        (docs(tmp_path / "secret.pdf"), f"DocumentError: {tmp_path}/secret.pdf: "),
        (docs(tmp_path / "corrupt.pdf"), f"DocumentError: {tmp_path}/corrupt.pdf: "),
        (docs(tmp_path / "binary.txt"), f"DocumentError: {tmp_path}/binary.txt: "),
        (
            docs(doc, "--max-bytes", 10),
            f"DocumentError: {doc}: has {doc.stat().st_size} bytes, more than the 10",
        ),
        (("ask", "", "--docs", doc), "UserError: the question is empty"),
        (("ask", " \n", "--docs", doc), "UserError: the question is empty"),
        (("ask", "x" * 4001, "--docs", doc), "UserError: the question has 4001 characters; at most 4000"),
        (("ask", "caf\udce9", "--docs", doc), "UserError: the question is not Unicode"),
        (questions("nowhere.jsonl"), f"UserError: --questions {tmp_path}/nowhere.jsonl: "),
        (questions("folder"), f"UserError: --questions {tmp_path}/folder: "),
        (questions("latin.jsonl"), f"UserError: --questions {tmp_path}/latin.jsonl: "),
        (questions("none.jsonl"), f"UserError: --questions {tmp_path}/none.jsonl: the file has no questions"),
        (
            questions("bad.jsonl"),
            f"UserError: --questions {tmp_path}/bad.jsonl, line 2: neither a string nor an object with",
        ),
        (questions("number.jsonl"), f"UserError: --questions {tmp_path}/number.jsonl, line 1: neither"),
        (questions("other.jsonl"), f"UserError: --questions {tmp_path}/other.jsonl, line 1: neither"),
        (questions("blank.jsonl"), f"UserError: --questions {tmp_path}/blank.jsonl, line 2: the question is"),
        (
            questions("surrogate.jsonl"),
            f"UserError: --questions {tmp_path}/surrogate.jsonl, line 1: the quest",
        ),
        (docs(doc, "--app", "clever"), "ConfigError: there is no app 'clever'; there are naive, advanced"),
        (
            docs(doc, "--app", "my.py:app"),
            "ConfigError: --app my.py:app",
        ),
        (docs(doc, "--passes", "faster"), "ConfigError: there is no pass 'faster'; there are prune_order"),
        (docs(doc, "--passes", ""), "ConfigError: there is no pass ''"),
        (
            docs(doc, "--set", "top_k=3"),
            "ConfigError: --set 'top_k=3' is not of the form component.setting=value",
        ),
        (docs(doc, "--set", "search.top_k=3"), "ConfigError: advanced_rag has no component 'search'"),
        (docs(doc, "--set", "searching.k=3"), "ConfigError: searching: there is no setting 'k'"),
        (docs(doc, "--set", "searching.top_k=many"), "ConfigError: searching: top_k must be int, got 'many'"),
        (docs(doc, "--set", "searching.top_k=true"), "ConfigError: searching: top_k must be int, got True"),
        (docs(doc, "--set", "synthesis.prompt={question}"), "ConfigError: synthesis: a prompt does not use"),
        (
            docs(doc, "--llm", tmp_path / "nowhere"),
            f"ConfigError: --llm '{tmp_path}/nowhere' is neither a URL",
        ),
        (
            docs(doc, "--llm", "localhost:80"),
            "ConfigError: --llm 'localhost:80' is neither a URL, nor a folder",
        ),
        (
            docs(doc, "--set", "indexing.tokens=257"),
            "ConfigError: chunk: tokens is 257, must be 16 to 256 (the embedder reads no more)",
        ),
        (
            docs(doc, "--set", "indexing.tokens=15", "--set", "indexing.overlap=0"),
            "ConfigError: chunk: tokens is 15",
        ),
        (
            docs(doc, "--embedder", tmp_path / "folder"),
            f"ConfigError: the model '{tmp_path}/folder' cannot be found, or does",
        ),
        (docs(doc, "--set", "searching.top_k=10001"), "ConfigError: searching: top_k=10001 is more than"),
        (docs(doc, "--set", "synthesis.num_hits=257"), "ConfigError: synthesis: num_hits=257 is more than"),
        (docs(doc, "--set", "synthesis.fan_in=257"), "ConfigError: synthesis: fan_in=257 is more than"),
        (
            docs(doc, "--llm", "http://127.0.0.1:9", "--set", "query_expansion.num_queries=65"),
            "ConfigError: query_expansion: num_queries=65 ",
        ),
        (
            docs(doc, "--set", "searching.top_k=" + "[" * 100_000),
            "ConfigError: --set searching.top_k: the value is nested too deeply",
        ),
        (
            docs(doc, "--set", "searching.top_k=" + "[" * 900 + "]" * 900),
            "ConfigError: searching: top_k must be int, got ",
        ),
        (questions("deep.jsonl"), f"UserError: --questions {tmp_path}/deep.jsonl, line 1: neither"),
        (docs(doc, "--trace", tmp_path / "t.html"), f"UserError: --trace {tmp_path}/t.trace.json: is a fold"),
        (docs(doc, "--collection", " "), "UserError: the collection has no name"),
        (docs(doc, "--trace", tmp_path), f"UserError: --trace {tmp_path}: is a folder"),
        (
            docs(doc, "--trace", tmp_path / "no" / "t.html"),
            f"UserError: --trace {tmp_path}/no/t.html: there is no",
        ),
    ]


def test_what_cannot_be_is_refused_in_one_line(stretto: CommandLine, tmp_path: Path, doc: Path) -> None:
    for args, message in _refused(tmp_path):
        assert stretto.refuses(*args).startswith(message), args


def test_wrong_options_are_usage_errors(stretto: CommandLine, doc: Path) -> None:
    for args in (("--timeout", "0"), ("--timeout", "soon"), ("--quickly",), ("--max-bytes", "x")):
        ended = stretto("ask", QUESTION, "--docs", doc, *args)
        assert (ended.code, ended.out) == (2, "")
        assert "Error" in ended.err


def test_a_server_that_is_away_is_named_before_models_are_loaded(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(config: object) -> None:
        raise AssertionError("models are loaded")

    monkeypatch.setattr("stretto.engines.catalogue.Embedding", load)
    args = ("ask", QUESTION, "--docs", doc, "--llm", "http://127.0.0.1:9")
    message = "EngineUnreachable: engine 'llm': cannot reach http://127.0.0.1:9: "
    assert stretto.refuses(*args, code=1).startswith(message)
    assert json.loads(stretto(*args, "--json").out)["error"].startswith(message)


def test_an_engine_that_fails_is_exit_code_one(stretto: CommandLine, doc: Path) -> None:
    args = ("ask", QUESTION, "--docs", doc, "--set", "query_expansion.fallback=false")
    for replies, message in (
        (Reply(("no JSON at all",)), "BadReply: step 'queries': "),
        (Reply(("[1, 2]",)), "BadReply: step 'queries': "),
        (Reply(('["cut', " short")), "BadReply: step 'queries': "),
        (Reply(raw=b"<html>"), "BadServer: step 'queries': "),
        (Reply(status=404), "NotFound: step 'queries': "),
    ):

        def answer(request: Mapping[str, Any], reply: Reply = replies) -> Reply:
            return reply

        with serving(answer) as url:
            assert stretto.refuses(*args, "--llm", url, code=1).startswith(message)
            ended = stretto(*args, "--llm", url, "--json")
        row = json.loads(ended.out)
        assert (ended.code, row["question"], row["answer"], row["sources"]) == (1, QUESTION, None, [])
        assert row["error"].startswith(message)
    with serving(lambda request: Reply(ending="hang")) as url:
        late = stretto.refuses(*args, "--llm", url, "--timeout", "0.5", code=1)
    assert late == "DeadlineExceeded: the deadline passed"


def test_a_failure_after_the_first_words_ends_the_line(stretto: CommandLine, doc: Path) -> None:
    with serving(lambda request: Reply(("It ", "was "), "cut")) as url:
        ended = stretto(
            "ask", QUESTION, "--docs", doc, "--llm", url, "--app", "naive", "--set=synthesis.num_hits=1"
        )
    assert ended.code == 1
    assert ended.out == "It was\n"
    assert re.search(r"^(BadReply|EngineUnavailable): step 'leaf1'", ended.err, re.MULTILINE)


def test_an_interruption_is_exit_code_130(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupt(self: Runtime, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(Runtime, "submit", interrupt)
    ended = stretto("ask", QUESTION, "--docs", doc)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.endswith("interrupted\n")
    assert "Traceback" not in ended.err


def test_a_trace_that_cannot_be_written_hides_nothing(stretto: CommandLine, doc: Path) -> None:
    ended = stretto("ask", QUESTION, "--docs", doc, "--trace", "/dev/full")
    assert (ended.code, ended.out) == (1, f"{ANSWER}\n  1. {doc}, lines 1–2: “{ANSWER}”\n")
    assert "UserError: --trace /dev/full: No space left on device" in ended.err
    ended = stretto("ask", QUESTION, "--docs", doc, "--trace", "/dev/full", "--timeout", "0.001")
    assert ended.code == 1
    assert "--trace /dev/full" in ended.err
    assert "DeadlineExceeded: " in ended.err


def test_what_would_steer_a_terminal_is_shown(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda _: Reply(("a\x1b[2Jb\tc\x9b",))) as url:
        args = ("ask", QUESTION, "--docs", doc, "--app", "naive", "--llm", url)
        assert stretto(*args).out.startswith("a\x1b[2Jb\tc\x9b")
        line = stretto(*args, "--json").out
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
        text = stretto(*args).out
    assert "\x9b" not in line
    assert json.loads(line)["answer"] == "a\x1b[2Jb\tc\x9b"
    assert text.startswith(r"a\x1b[2Jb" + "\t" + r"c\x9b")
