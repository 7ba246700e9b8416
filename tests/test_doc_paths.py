"""Documentation names files that exist, and its links lead to pages and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.pages import blocks

import stretto

CLONE = Path(stretto.__file__).parents[1]
FOLDERS = ("deploy", "stretto", "benchmarks", "checks", "docs", "examples", "tests", "tools")
PAGES = [
    page
    for page in [
        *CLONE.glob("*.md"),
        *(page for folder in FOLDERS for page in (CLONE / folder).rglob("*.md")),
    ]
    if page.name != "CHANGELOG.md"
]
_LINK = re.compile(r"\]\(([^)\s:]+)\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md)|(?:[\w.-]+/)+[\w-]*)`")
_MADE_BY_READERS = ("runs/", "NAME/")


def named_paths(page: Path) -> Iterator[str]:
    """Return the names of modules, pages and folders that stand in a page as code."""
    for name in _NAMED.findall(page.read_text("utf-8")):
        if not name.startswith(_MADE_BY_READERS):
            yield name


@cache
def paths_of_the_clone() -> frozenset[str]:
    """Return the paths of all files and folders that pages may name, between slashes."""
    files = [path for folder in FOLDERS for path in (CLONE / folder).rglob("*")]
    return frozenset(
        [*(f"/{path.relative_to(CLONE)}/" for path in files), *(f"/{path.name}/" for path in CLONE.iterdir())]
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", one) for one in words} | {re.sub(r"[-\s]+", "-", one) for one in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CLONE)))
def test_what_a_page_names_exists(page: Path) -> None:
    missing = []
    made = {block.file for block in blocks(page)}
    for name in named_paths(page):
        end = f"/{name.strip('/')}/"
        if name not in made and not any(path.endswith(end) for path in paths_of_the_clone()):
            missing.append(name)
    assert not missing


def test_the_page_on_architecture_is_short_and_follows_one_request_in_ten_steps() -> None:
    """What does not fit stands on pages by topic, in `docs/design/`, all of which it links to."""
    text = (CLONE / "docs" / "architecture.md").read_text("utf-8")
    assert len(text.split()) <= 900
    life = text.split("## The life of one request")[1].split("\n## ")[0]
    steps = re.split(r"^(\d+)\. ", life, flags=re.MULTILINE)[1:]
    assert steps[::2] == [str(number) for number in range(1, 11)]
    assert all(re.search(r"`[\w/]+\.py`", step) for step in steps[1::2])
    topics = {f"design/{page.name}" for page in (CLONE / "docs" / "design").glob("*.md")}
    assert topics <= set(_LINK.findall(text))


def test_the_readme_is_short() -> None:
    assert len((CLONE / "README.md").read_text("utf-8").splitlines()) <= 180
