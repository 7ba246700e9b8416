"""The pages are a site: every page is in its menu, and the reference is complete.

`make docs` builds it with mkdocs; that is tried here too where mkdocs is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from support.pages import CLONE, DOCS

import stretto
from stretto.model.extras import is_installed
from tools.site_links import is_of_site

REFERENCE = {
    "stretto": "stretto.md",
    "stretto.apps": "apps.md",
    "stretto.components": "components.md",
    "stretto.engines": "engines.md",
    "stretto.programs": "programs.md",
}


def named(menu: Any) -> Iterator[str]:
    """Yield the pages of a menu."""
    match menu:
        case str():
            yield menu
        case dict():
            for below in menu.values():
                yield from named(below)
        case list():
            for below in menu:
                yield from named(below)


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = list(named(yaml.safe_load((CLONE / "mkdocs.yml").read_text("utf-8"))["nav"]))
    assert len(menu) == len(set(menu))
    assert set(menu) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_the_reference_has_the_public_names() -> None:
    for package, page in REFERENCE.items():
        text = (DOCS / "reference" / page).read_text("utf-8")
        public = import_module(package).__all__
        assert re.findall(r"^::: (.+)$", text, re.MULTILINE) == [f"{package}.{name}" for name in public]
    index = (DOCS / "reference" / "index.md").read_text("utf-8")
    assert re.findall(r"^\| \[`([\w.]+)`\]", index, re.MULTILINE) == list(REFERENCE)


def test_public_names_have_docstrings_and_are_listed() -> None:
    for package in REFERENCE:
        module = import_module(package)
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            found = getattr(module, name)
            assert not callable(found) or found.__doc__, f"{package}.{name}"


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"'stretto.engines' has no attribute 'lm_engine'"):
        _ = stretto.engines.lm_engine  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("folder", "target", "is_there"),
    [
        ("", "ask.md", True),
        ("", "../examples/agent.py", False),
        ("design", "../ask.md", True),
        ("design", "../../examples/agent.py", False),
        ("", "measurements/door.json", False),
        ("tutorial", "../measurements.md", True),
    ],
)
def test_links_to_code_are_no_links_of_the_site(folder: str, target: str, is_there: bool) -> None:
    assert is_of_site(PurePosixPath(folder), target) == is_there


@pytest.mark.skipif(not is_installed("mkdocs", "material", "mkdocstrings"), reason="needs stretto[docs]")
def test_the_site_builds(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    assert mkdocs is not None
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=CLONE, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "llm_engine" in (tmp_path / "reference" / "engines.html").read_text("utf-8")


def test_packages_that_are_not_public_say_so() -> None:
    for folder in sorted(path.parent for path in Path(stretto.__file__).parent.glob("*/__init__.py")):
        module = import_module(f"stretto.{folder.name}")
        is_internal = "Internal: it may change with any release." in (module.__doc__ or "")
        assert is_internal == (module.__name__ not in REFERENCE), module.__name__
