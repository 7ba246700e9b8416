"""Imports run one way, and only adapters import what is heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stretto
from tools import house

ROOT = Path(stretto.__file__).parent
CLONE = ROOT.parent
LAYERS = (
    "moved moved_names",
    "model",
    "costs documents transforms",
    "cluster graph",
    "llm",
    "sched",
    "apps",
    "components http wire",
    "engines",
    "operate schema trace",
    "runtime sim",
    "emulate programs",
    "planner router sizing",
    "service",
    "cli",
    "__main__",
)
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
FINDS_BENCHMARKS = "cli/bench.py"
LIGHT = ("model", "costs", "graph", "cluster", "llm", "sched", "apps")


@cache
def trees(folder: Path) -> dict[Path, ast.Module]:
    """Return the source of all files of a folder, parsed once for all tests."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))}


@cache
def imports(folder: Path = ROOT) -> tuple[tuple[str, str, str], ...]:
    """Return (package, file, imported module) of every import in the source, wherever it stands."""
    return tuple(_imports(folder))


def _imports(folder: Path) -> Iterator[tuple[str, str, str]]:
    for path, tree in trees(folder).items():
        place = path.relative_to(folder)
        for node in house.statements(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                yield place.parts[0].removesuffix(".py"), str(place), name


def test_imports_run_one_way() -> None:
    for package, file, name in imports():
        if package == "__init__" or not name.startswith("stretto."):
            continue
        assert LEVELS[name.split(".")[1]] <= LEVELS[package], f"{file} imports {name}"


def test_neither_files_nor_folders_import_each_other_in_a_circle() -> None:
    """A folder is a whole among its siblings, at every depth, so that a layer hides no circle."""
    modules = {
        ".".join(path.relative_to(CLONE).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in trees(ROOT).items()
    }
    edges = house.imports(modules)
    assert not house.circles(edges)
    assert not house.circles(house.folder_edges(edges))


def test_engines_know_nothing_of_the_schedulers() -> None:
    users = {file for _, file, name in imports() if name.startswith("stretto.sched")}
    assert not {file for file in users if file.split("/")[0] in ("llm", "engines")}


def test_the_product_does_without_benchmarks_checks_and_tools() -> None:
    beside = {"benchmarks", "checks", "tools", "tests"}
    users = {file for _, file, name in imports() if name.split(".")[0] in beside}
    assert users == {FINDS_BENCHMARKS}
    at_import = ast.parse((ROOT / FINDS_BENCHMARKS).read_text("utf-8")).body
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "benchmarks" for node in at_import)


def test_tools_use_the_benchmarks_in_one_place_alone() -> None:
    users = {
        file for _, file, name in imports(CLONE / "tools") if name.split(".")[0] in ("benchmarks", "checks")
    }
    assert users == {"make_presets.py"}


def test_what_decides_needs_the_standard_library_and_numpy_alone() -> None:
    allowed = sys.stdlib_module_names | {"stretto", "numpy"}
    for package, file, name in imports():
        assert package not in LIGHT or name.split(".")[0] in allowed, f"{file} imports {name}"


def test_files_of_tests_have_different_names() -> None:
    """Pytest imports each by its name alone."""
    names = Counter(path.name for path in (CLONE / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


def test_starting_up_loads_no_model_library() -> None:
    script = "import sys, stretto, stretto.cli.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    heavy = {
        "torch",
        "transformers",
        "sentence_transformers",
        "psycopg",
        "pypdfium2",
        "matplotlib",
        "hypothesis",
    }
    assert not heavy & set(loaded.split())
