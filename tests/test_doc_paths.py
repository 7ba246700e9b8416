"""Documentation names files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stretto

CLONE = Path(stretto.__file__).parents[1]
FOLDERS = ("stretto", "benchmarks", "checks", "docs", "examples", "tests", "tools")
PAGES = [
    page
    for page in [
        *CLONE.glob("*.md"),
        *(page for folder in FOLDERS for page in (CLONE / folder).rglob("*.md")),
    ]
    if page.name != "CHANGELOG.md"
]
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md)|(?:[\w.-]+/)+[\w-]*)`")
_MADE_BY_READERS = ("runs/", "NAME/")


def named_paths(page: Path) -> Iterator[str]:
    """Return the names of modules, pages and folders that stand in a page as code."""
    for name in _NAMED.findall(page.read_text("utf-8")):
        if not name.startswith(_MADE_BY_READERS):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    files = [path for folder in FOLDERS for path in (CLONE / folder).rglob("*")]
    paths = {f"/{path.relative_to(CLONE)}/" for path in files} | {
        f"/{path.name}/" for path in CLONE.iterdir()
    }
    for name in named_paths(page):
        if not any(path.endswith(f"/{name.strip('/')}/") for path in paths):
            missing.append(name)
    assert not missing
