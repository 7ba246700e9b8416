"""The wheel holds the product alone, and its command line works without a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import stretto

CLONE = Path(__file__).resolve().parents[1]
SCRIPTS = ("benchmarks", "checks", "tools")
DATA = {
    "stretto/apps/components/prompts/": 8,
    "stretto/costs/presets/": 7,
    "stretto/trace/": 3,
}
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('dist')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of this clone, built without the network."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(CLONE / name, folder)
    for name in ("stretto", "tests", *SCRIPTS):
        shutil.copytree(CLONE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dist").mkdir()
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = (folder / "dist").iterdir()
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_alone(wheel: zipfile.ZipFile) -> None:
    folders = {name.partition("/")[0] for name in wheel.namelist()}
    (metadata,) = folders - {"stretto"}
    assert metadata.endswith(".dist-info")


def test_every_module_and_every_data_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    modules = {str(path.relative_to(CLONE)) for path in (CLONE / "stretto").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    for folder, count in DATA.items():
        assert len([n for n in names if n.startswith(folder) and not n.endswith(".py")]) == count, folder


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """Checkers of types use its annotations, and its first page is the README."""
    assert wheel.read("stretto/py.typed") == b""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    for line in (
        f"Version: {stretto.__version__}",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
        "Provides-Extra: local",
    ):
        assert f"\n{line}\n" in metadata, line
    assert "# Stretto" in metadata
    (entry,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "stretto = stretto.cli.main:main" in wheel.read(entry).decode()


def test_bench_outside_a_clone_says_where_the_benchmarks_are(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    command = [sys.executable, "-m", "stretto.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for arguments, code in (("bench", "list"), 2), (("bench", "overhead"), 2), (("bench", "--help"), 0):
        ended = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr
        assert not code or ended.stderr == (
            "UserError: the benchmarks are not part of the installed package: "
            "clone the project, run `pip install -e .` there, and try again\n"
        )
