"""Snippets of the documentation have their imports, use public names, and run in a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_models import models_loaded_once
from support.pages import CLONE, DOCS, blocks, imported_modules, pages, python_of, unknown_names

PUBLIC = ("stretto", "stretto.apps", "stretto.components", "stretto.engines", "stretto.programs")
FOR_DEVELOPERS = (DOCS / "design", DOCS / "reference")
WITH_SNIPPETS = [page for page in pages() if python_of(page)]
RUN_ELSEWHERE = {
    "agents.md": "apps/test_agents_page.py",
    "apps.md": "test_examples.py",
    "batches.md": "service/test_batches_by_openai.py",
    "deployed_apps.md": "service/test_apps_page.py",
    "http.md": "service/test_service_pages.py",
    "openai.md": "service/test_openai_clients.py",
    "planner.md": "planner/test_deciding_apps.py",
    "reading.md": "schema/test_typed.py",
    "semantic_variables.md": "programs/test_documentation.py",
    "service.md": "service/test_service_pages.py",
    **dict.fromkeys(("agent.md", "app.md", "program.md", "serve.md"), "test_tutorial.py"),
}
"""The tests that run the snippets of a page. Those of the README run here."""
MADE_BY_READERS = {"my_app", "my_apps"}


def by_name(page: Path) -> str:
    return str(page.relative_to(CLONE))


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=by_name)
def test_snippets_have_their_imports(page: Path) -> None:
    assert not unknown_names(python_of(page))


@pytest.mark.parametrize(
    "page", [page for page in WITH_SNIPPETS if page.parent not in FOR_DEVELOPERS], ids=by_name
)
def test_snippets_for_users_import_public_modules(page: Path) -> None:
    ours = {name for name in imported_modules(python_of(page)) if name.partition(".")[0] == "stretto"}
    assert ours <= set(PUBLIC)


def test_every_page_with_snippets_is_run_by_a_test() -> None:
    assert {page.name for page in WITH_SNIPPETS} == {"README.md", *RUN_ELSEWHERE}
    for page, test in RUN_ELSEWHERE.items():
        text = (CLONE / "tests" / test).read_text("utf-8")
        assert page in text or repr(page.removesuffix(".md")).replace("'", '"') in text


def test_the_snippets_of_the_readme_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in quotes the documents as the default model does, and cannot summarise."""
    monkeypatch.chdir(CLONE)
    rag, program = (block.text for block in blocks(CLONE / "README.md") if block.kind == "python")
    answer, _ = (block.text for block in blocks(CLONE / "README.md") if block.kind == "text")
    with models_loaded_once():
        exec(compile(rag, "README.md", "exec"), {"__name__": "page"})
        assert capsys.readouterr().out == answer
        exec(compile(program, "README.md", "exec"), {"__name__": "page"})
        assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("import a.b\nfrom c import d as e\na.b(e, print)", set()),
        ("def f(x, *, y): return x + y + z", {"z"}),
        ("for i in range(3):\n    try: pass\n    except OSError as error: print(error, i, j)", {"j"}),
        ("with open('f') as file: [line for line in file]\nclass C: pass\nC(P)", {"P"}),
    ],
)
def test_unknown_names_are_found(code: str, unknown: set[str]) -> None:
    assert unknown_names(code) == unknown
