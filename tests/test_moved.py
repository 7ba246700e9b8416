"""Import paths and names of the release before: each leads to what has taken its place, with a warning."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import stretto
from stretto.moved import MOVED, RENAMED, new_path

ROOT = Path(stretto.__file__).parent


def file_of(module: str) -> Path:
    """The file of a module of the package, or the folder of a package."""
    place = ROOT.joinpath(*module.split(".")[1:])
    return place if place.is_dir() else place.with_suffix(".py")


def names_in(module: str) -> set[str]:
    """The names that a module defines at its top."""
    place = file_of(module)
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place).read_text("utf-8"))
    return {
        node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) else target.id
        for node in tree.body
        for target in ([node] if not isinstance(node, ast.Assign | ast.AnnAssign) else targets(node))
        if isinstance(target, ast.Name | ast.ClassDef | ast.FunctionDef)
    }


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, which has imported nothing of the package."""
    return subprocess.run([sys.executable, "-W", "always", "-c", source], capture_output=True, text=True)


@pytest.mark.parametrize("old", MOVED)
def test_each_moved_path_leads_to_a_module(old: str) -> None:
    new = new_path(f"stretto.{old}")
    assert new is not None
    assert file_of(new).exists(), new


@pytest.mark.parametrize("module", RENAMED)
def test_each_changed_name_leads_to_a_definition(module: str) -> None:
    defined = names_in(module)
    assert set(RENAMED[module].values()) <= defined
    assert not set(RENAMED[module]) & defined


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("stretto.components.rag", "Synthesis", "stretto.apps.components.rag"),
        ("stretto.components.agent", "Agent", "stretto.apps.components.agent"),
        ("stretto.components.tools", "Tool", "stretto.model.tools"),
        ("stretto.programs.current", "current_client", "stretto.programs.variable"),
        ("stretto.cluster.confined", "confined", "stretto.model.devices"),
        ("stretto.frontend.template", "Template", "stretto.apps.template"),
        ("stretto.sched.request", "Request", "stretto.sched.queries.request"),
        ("stretto.errors", "UserError", "stretto.model.errors"),
    ],
)
def test_an_old_path_gives_the_same_object_and_warns(old: str, name: str, new: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        module = importlib.import_module(old)
    found = getattr(module, name)
    now = RENAMED.get(new, {}).get(name, name)
    assert found is getattr(importlib.import_module(new), now)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("stretto.planner.application", "Request", "AppRequest"),
        ("stretto.graph.compile", "Tables", "ConnectionTables"),
        ("stretto.runtime.worker", "Job", "InstanceJob"),
        ("stretto.cluster.prefix_tree", "Run", "IndexRun"),
    ],
)
def test_an_old_name_in_a_module_that_stayed_gives_the_same_object_and_warns(
    module: str, old: str, new: str
) -> None:
    ended = run(f"from {module} import {old}, {new}; print({old} is {new})")
    assert ended.stdout == "True\n", ended.stderr
    assert f"{module}.{old} is {new} now" in ended.stderr


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import stretto.graph.compile as m; m.Nothing", "has no attribute 'Nothing'"),
        ("import stretto.nothing", "No module named 'stretto.nothing'"),
        ("import stretto.components.nothing", "No module named 'stretto.apps.components.nothing'"),
    ],
)
def test_what_never_was_is_not_found(source: str, error: str) -> None:
    ended = run(source)
    assert ended.returncode == 1
    assert error in ended.stderr
