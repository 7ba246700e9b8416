"""Docstrings stand alone: the first word of each is not one that hangs on the name above it.

They explain no term of the glossary in passing: `support/glosses.py` has the asides that are refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.glosses import asides, documentation, pasted

CLONE = Path(__file__).resolve().parents[1]
FOLDERS = ("stretto", "benchmarks", "checks", "tools")
HANGING = {
    *("as", "at", "behind", "beside", "between", "beyond", "by", "for", "from", "in", "likewise", "of", "on"),
    *("than", "to", "unless", "until", "whom", "whose", "with"),
    *("it", "its", "that", "their", "they", "those"),
}
ENTRY = re.compile(r"[\w`*., ]+?: (.+)")


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((CLONE / folder).rglob("*.py"))]


def entries(text: str) -> Iterator[str]:
    """Yield the texts of the `name: text` lines under Attributes and Args."""
    section: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() in ("Attributes:", "Args:"):
            section = indent
        elif section is not None and line.strip() and indent <= section:
            section = None
        elif section is not None and indent == section + 4 and (entry := ENTRY.match(line.strip())):
            yield entry[1]


def hangs(text: str) -> bool:
    word = re.match(r"\W*([\w']*)", text)
    return word is not None and word[1].lower() in HANGING


@pytest.mark.parametrize(
    ("text", "is_hanging"),
    [
        ("Of its numbers.", True),
        ("of its numbers.", True),
        ('"As" is a word.', True),
        ("Official numbers.", False),
        ("Type of the numbers.", False),
        ("", False),
    ],
)
def test_a_hanging_word_is_recognised(text: str, is_hanging: bool) -> None:
    assert hangs(text) == is_hanging


def test_entries_are_found() -> None:
    text = """A size.

    Attributes:
        a: of b,
            or c: d.
        e, f: the rest.
    End: no.
    """
    assert list(entries(text)) == ["of b,", "the rest."]


def test_docstrings_begin_with_a_verb_or_a_noun_phrase() -> None:
    found = [
        f"{path.relative_to(CLONE)}:{line}: {start.strip().splitlines()[0]}"
        for path in sources()
        for line, text in documentation(ast.parse(path.read_text("utf-8")))
        for start in (text, *entries(text))
        if hangs(start)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "num_asides"),
    [
        ("Each query (run of an app) has nodes (steps).", 2),
        ("Each query (one run\n    of an app) ends.", 1),
        ("A query (run of the test) ends.", 0),
        ("The policy (`least_seconds`) chooses.", 0),
        ("A step (of several) ends.", 0),
    ],
)
def test_an_aside_is_recognised(text: str, num_asides: int) -> None:
    assert len(list(asides(text))) == num_asides


def test_terms_are_explained_in_the_glossary_and_where_they_are_defined() -> None:
    folders = (*FOLDERS, "tests", "examples", "docs")
    paths = [p for folder in folders for kind in ("*.py", "*.md") for p in (CLONE / folder).rglob(kind)]
    own = {"glosses.py", "test_docstrings.py"}
    found = [
        f"{path.relative_to(CLONE)}:{line}" for path in paths if path.name not in own for line in pasted(path)
    ]
    assert not found, "\n".join(found)
