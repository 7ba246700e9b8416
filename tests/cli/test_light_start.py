"""Help, the version and errors of arguments come before anything that does the work is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

import stretto
from stretto.apps import APPS
from stretto.cli import names
from stretto.cli.commands import app
from stretto.cluster.placements.table import PLACEMENTS
from stretto.costs.loading import Source
from stretto.engines.batch.embedding import DTYPES
from stretto.engines.batch.local_models import MINILM
from stretto.engines.llms import RECOVER_S
from stretto.planner.cores import CPU
from stretto.planner.planners.table import PLANNERS
from stretto.router.config import RouterConfig
from stretto.sched.orders import ORDERS
from stretto.service.config import ServiceConfig

HEAVY = {
    "torch",
    "transformers",
    "sentence_transformers",
    "numba",
    "ortools",
    "ray",
    "uvicorn",
    "pypdfium2",
    "psycopg",
    "triton",
}
MAX_OWN_MODULES = 45
"""Modules of this package that help may import; engines and schedulers are some hundreds."""
_FORKING = """
import json, os, pathlib, sys
import typer.rich_utils
import stretto.cli.commands
from stretto.cli.main import main
for line in sys.stdin:
    folder, *arguments = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.argv = ["-c", *arguments]
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            pathlib.Path(folder, "modules").write_text(json.dumps(sorted(sys.modules)))
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each line of arguments in a fork of a process that has imported what all commands import."""


@dataclass(frozen=True)
class Ended:
    """The end of a command, and the modules that it had imported by then."""

    code: int
    out: str
    err: str
    modules: frozenset[str]

    @property
    def packages(self) -> set[str]:
        """Names of the imported packages."""
        return {module.partition(".")[0] for module in self.modules}

    @property
    def own(self) -> set[str]:
        """The imported modules of this package."""
        return {module for module in self.modules if module.partition(".")[0] == "stretto"}


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """Return the process that forks: most of the time of a start is Python's own."""
    command = [sys.executable, "-c", _FORKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate()


@pytest.fixture
def run(forking: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Return what runs a command in a process of its own."""

    def run(*arguments: object) -> Ended:
        assert forking.stdin
        assert forking.stdout
        print(json.dumps([str(tmp_path), *map(str, arguments)]), file=forking.stdin, flush=True)
        code = int(forking.stdout.readline())
        out, err = ((tmp_path / name).read_text("utf-8") for name in ("out", "err"))
        return Ended(code, out, err, frozenset(json.loads((tmp_path / "modules").read_text())))

    return run


def commands() -> list[str]:
    group = get_command(app)
    return group.list_commands(None)  # type: ignore[attr-defined, no-any-return]


def test_the_version_needs_nothing() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "stretto", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    modules = frozenset(line.rpartition("|")[2].strip() for line in ended.stderr.splitlines())
    version = Ended(0, ended.stdout, "", modules)
    assert version.out == f"{metadata.version('stretto')}\n" == f"{stretto.__version__}\n"
    assert "stretto.cli.main" in modules
    assert not version.packages & {"typer", "rich", "numpy", *HEAVY}
    assert len(version.own) <= 10


def test_help_lists_all_commands(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    for command in commands():
        assert f" {command} " in ended.out
    assert not ended.packages & {"numpy", *HEAVY}
    assert len(ended.own) < MAX_OWN_MODULES


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=() if at % 3 == 0 else pytest.mark.long) for at, one in enumerate(commands())],
)
def test_help_of_a_command_imports_its_options_alone(run: Run, command: str) -> None:
    ended = run(command, "--help")
    assert ended.code == 0
    assert "Usage:" in ended.out
    assert not ended.packages & {"numpy", *HEAVY}
    assert len(ended.own) < MAX_OWN_MODULES


def test_a_misspelt_command_is_suggested(run: Run) -> None:
    ended = run("aks")
    assert ended.code == 2
    assert "Did you mean 'ask'?" in ended.err
    assert not ended.packages & {"numpy", *HEAVY}


ERRORS = (
    ("ask Where? --docs {none}", "No such file or directory"),
    ("ask Where? --docs {doc} --docs {none}", "No such file or directory"),
    ("ask Where? --docs {none} --embedder some/model", "No such file or directory"),
    ("ask Where? --docs {doc} --llm {none}", "neither a URL, nor a folder"),
    ("ask Where? --docs {doc} --engines {none}", "No such file or directory"),
    ("ask Where? --docs {doc} --engines {engines}", "unknown key 'layers'"),
    ("ask Where? --docs {doc} --dtype int3", "there is no dtype 'int3'"),
    ("ask Where? --docs {doc} --device tpu", "'tpu' is unknown"),
    ("ask Where? --docs {doc} --policy luck", "there is no policy 'luck'"),
    ("ask Where? --docs {doc} --app nosuch", "there is no app 'nosuch'"),
    ("ask Where? --docs {doc} --passes nosuch", "nosuch"),
    ("ask Where? --docs {doc} --set searching.top_k=-1", "top_k=-1 is less than 1"),
    ("ask Where? --docs {doc} --trace {none}/page.html", "there is no folder"),
    ("ask --questions {none} --docs {doc}", "No such file or directory"),
    ("ask Where?", "give documents with --docs"),
    ("explain --app nosuch", "there is no app 'nosuch'"),
    ("explain --html {none}/page.html", "there is no folder"),
    ("profile nosuch", "there is no engine 'nosuch'"),
    ("profile llm --llm {none}", "neither a URL, nor a folder"),
    ("profile --fit {none}", "--fit takes --model-config"),
    ("collections --nosuch", "No such option"),
    ("bench", "Missing argument"),
    ("emulate", "give either --model or --fleet"),
    ("emulate --model nosuch", "there are no costs of the model 'nosuch'"),
    ("emulate --model llama-2-7b --dialect nosuch", "'nosuch' is not one of"),
    ("replay {none}", "cannot be read"),
    ("replay {doc} --instances llm=none", "not of the form engine=number"),
    ("load {none} --url http://127.0.0.1:9", "cannot be read"),
    ("workload {none}", "cannot be read"),
    ("route", "give the servers with --worker"),
    ("route --config {none}", "No such file or directory"),
    ("serve --docs {none}", "No such file or directory"),
    ("serve --app nosuch", "nosuch"),
    ("serve --llm {none}", "neither a URL, nor a folder"),
    ("serve --offline-app {doc}", "has no use without --offline"),
    ("plan {none} --requests {doc}", "No such file or directory"),
    ("plan {doc} --requests {doc} --planner nosuch", "there is no planner 'nosuch'"),
    ("plan {doc} --requests {doc} --weights moon", "there is no place of weights 'moon'"),
    ("run-plan --requests {none} --out {answers}", "No such file or directory"),
    ("run-plan --requests {doc} --out {none}/out", "there is no folder"),
    ("ask --questions {folder} --docs {doc}", "folder: Is a directory"),
    ("ask --questions {latin} --docs {doc}", "latin: byte 0xf6 is not UTF-8"),
    ("ask Where? --docs {doc} --engines {latin}", "latin: cannot be read: byte 0xf6 is not UTF-8"),
    ("ask Where? --docs {doc} --max-bytes 0", "Invalid value for '--max-bytes'"),
    ("serve --app {doc}.py:app", "there is no file"),
    ("serve --app {folder}:app", "folder is a folder"),
    ("size {folder}", "folder: cannot be read: Is a directory"),
    ("plan {latin} --requests {doc}", "latin: byte 0xf6 is not UTF-8"),
    ("explain --program x --url nonsense", "'nonsense' must be a URL like"),
)
"""Arguments that are wrong, and what is said of them."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [pytest.param(*row, marks=() if at % 4 == 0 else pytest.mark.long) for at, row in enumerate(ERRORS)],
)
def test_an_argument_is_refused_before_anything_heavy_is_imported(
    run: Run, tmp_path: Path, arguments: str, message: str
) -> None:
    paths = {name: tmp_path / name for name in ("none", "doc", "answers", "engines", "latin", "folder")}
    paths["folder"].mkdir()
    paths["latin"].write_bytes("Köln".encode("latin-1"))
    paths["doc"].write_text("The captain lived at the inn.\n")
    paths["engines"].write_text(
        '[[engine]]\nname = "llm"\ncontract = "llm"\n'
        '[[replica]]\nengine = "llm"\nexecutable = "transformer"\n'
        'config = { path = "checkpoints/small", layers = 3 }\n'
    )
    ended = run(*(word.format(**paths) for word in arguments.split()))
    assert ended.code == 2, ended.err
    assert message in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err
    assert not ended.packages & HEAVY


def test_names_in_help_are_those_of_the_tables() -> None:
    assert tuple(APPS) == names.APPS
    assert tuple(ORDERS) == names.POLICIES
    assert tuple(PLACEMENTS) == names.PLACEMENTS
    assert tuple(PLANNERS) == names.PLANNERS
    assert get_args(Source) == names.WEIGHTS
    assert DTYPES == names.DTYPES
    assert MINILM == names.EMBEDDER
    assert RECOVER_S == names.RECOVER_S
    assert CPU == names.CPU
    assert (ServiceConfig().host, ServiceConfig().port) == (names.HOST, names.SERVICE_PORT)
    assert (RouterConfig().host, RouterConfig().port) == (names.HOST, names.ROUTER_PORT)
    assert RouterConfig().max_held_bytes == names.MAX_HELD_BYTES


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(stretto.__all__) <= set(dir(stretto))
    for name in stretto.__all__:
        assert getattr(stretto, name).__class__ is not None
    with pytest.raises(AttributeError, match="module 'stretto' has no attribute 'Runtimes'"):
        stretto.Runtimes  # type: ignore[attr-defined]  # noqa: B018
