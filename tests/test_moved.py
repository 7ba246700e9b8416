"""Import paths of the release before work, with a warning that names the new path."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

import stretto
from stretto.moved import OldPaths, find_name, new_path
from stretto.moved_names import MOVED, RENAMED

IMPORTER = "code_of_a_user.py"
PUBLIC = ("stretto", "stretto.components", "stretto.programs", "stretto.apps")
MOVED_MODULES = sorted(f"stretto.{old}" for old in MOVED if f"stretto.{old}" not in PUBLIC)
MOVED_WITH_FOLDERS = {
    "stretto.components.rag": "stretto.apps.components.rag",
    "stretto.frontend": "stretto.apps",
    "stretto.agent_traces.sharing": "stretto.trace.agents.sharing",
    "stretto.engines.openai_wire.answers": "stretto.wire.answers",
    "stretto.engines.http_client.client": "stretto.http.client.client",
}
"""New paths of some modules whose folder was moved, by their old paths."""


@pytest.fixture(autouse=True)
def _old_paths_are_not_imported_yet() -> Iterator[None]:
    """Forget what a test imported under old paths, which warns only once."""
    before = set(sys.modules)
    yield
    for path in set(sys.modules) - before:
        if new_path(path) is not None:
            del sys.modules[path]
            package, _, name = path.rpartition(".")
            vars(sys.modules.get(package, stretto)).pop(name, None)


def run(code: str) -> tuple[dict[str, object], list[warnings.WarningMessage]]:
    """Run code of a user; return its names, and the warnings that it gave."""
    names: dict[str, object] = {"__name__": "code_of_a_user"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(code, IMPORTER, "exec"), names)
    return names, caught


@pytest.mark.parametrize("old", [*MOVED_MODULES, *MOVED_WITH_FOLDERS])
def test_an_old_path_gives_what_the_new_one_has_and_warns_whoever_imports_it(old: str) -> None:
    new = new_path(old)
    assert new == MOVED_WITH_FOLDERS.get(old, new)
    assert new is not None
    module = importlib.import_module(new)
    _, caught = run(f"import {old}")
    last = caught[-1]
    assert last.category is DeprecationWarning
    assert str(last.message) == f"{old} is {new} now; the old path works for one more release"
    assert {warning.filename for warning in caught} == {IMPORTER}
    renamed = RENAMED.get(new, {})
    for name in [name for name in vars(module) if not name.startswith("__") and name not in renamed]:
        assert getattr(sys.modules[old], name) is getattr(module, name)


@pytest.mark.parametrize("new", RENAMED)
def test_what_was_renamed_is_found_by_its_old_name_through_the_old_path(new: str) -> None:
    """The old path of a module that stayed is its own."""
    old = next((path for path in old_paths(new) if new_path(path) == new), new)
    for old_name, new_name in RENAMED[new].items():
        names, _ = run(f"from {old} import {old_name} as found")
        module, _, name = new_name.rpartition(":")
        assert names["found"] is getattr(importlib.import_module(module or new), name)


def old_paths(new: str) -> Iterator[str]:
    """Return the paths that a module may have had before it or its folder was moved."""
    for folder, moved_to in MOVED.items():
        if f"{new}.".startswith(f"stretto.{moved_to}."):
            yield f"stretto.{folder}{new.removeprefix(f'stretto.{moved_to}')}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from stretto.vocabulary import DEFAULT as found", stretto.DEFAULT),
        ("from stretto.frontend.template import Template as found", stretto.Template),
        ("from stretto.components.rag import Indexing as found", find_name("stretto.components", "Indexing")),
        ("from stretto import errors; found = errors.StrettoError", stretto.StrettoError),
        ("import stretto.core as core; found = core.Document", stretto.Document),
    ],
)
def test_every_form_of_import_finds_the_public_objects(code: str, expected: object) -> None:
    names, caught = run(code)
    assert names["found"] is expected
    assert {warning.category for warning in caught} == {DeprecationWarning}


@pytest.mark.parametrize(
    ("module", "old_name", "expected"),
    [
        ("stretto.core", "Document", stretto.Document),
        ("stretto.deployment", "Engine", stretto.Engine),
        ("stretto.sched.request", "Request", find_name("stretto.sched.queries.request", "Request")),
        ("stretto.engines.openai_wire.requests", "Message", find_name("stretto.wire.requests", "Message")),
    ],
)
def test_a_pickle_of_the_release_before_is_read(module: str, old_name: str, expected: object) -> None:
    with pytest.warns(DeprecationWarning, match="the old path works for one more release"):
        assert pickle.loads(f"c{module}\n{old_name}\n.".encode()) is expected


@pytest.mark.parametrize(
    "unknown",
    ["stretto.nothing", "stretto.frontend.nothing", "stretto.errors.nothing", "stretto.components.nothing"],
)
def test_a_module_that_never_was_is_named_as_it_was_asked_for(unknown: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"'{unknown}'") as raised:
        run(f"import {unknown}")
    assert raised.value.name == unknown


def test_a_name_that_never_was_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'Nothing' from 'stretto\.errors'"):
        run("from stretto.errors import Nothing")


def test_public_paths_and_the_command_line_give_no_warning() -> None:
    code = "".join(f"from {path} import *; " for path in PUBLIC) + "import stretto.cli.main"
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", MOVED_MODULES)
def test_a_path_in_the_table_is_that_of_no_module_today(old: str) -> None:
    spec = importlib.util.find_spec(old)
    assert spec is not None
    assert isinstance(spec.loader, OldPaths)
