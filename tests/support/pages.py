"""Pages of the documentation, as tests read them: their snippets, and what these print."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).parents[2]
DOCS = CLONE / "docs"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Attributes:
        kind: word behind the fence, such as "python", "sh" (a command that is run) or "text".
        file: name of the file that a reader puts it into; "" for none.
    """

    kind: str
    file: str
    text: str


def pages() -> list[Path]:
    """Return the pages that a user reads."""
    return [CLONE / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text("utf-8"))]


def python_of(page: Path) -> str:
    """Return the snippets in Python of a page, one after the other."""
    return "\n".join(block.text for block in blocks(page) if block.kind == "python")


def commands(page: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the commands that a page runs, each with what it prints by the page; None if that is not told."""
    found = [block for block in blocks(page) if block.kind in ("sh", "text")]
    for place, block in enumerate(found):
        if block.kind == "sh":
            following = found[place + 1] if place + 1 < len(found) else block
            yield block.text.strip(), following.text if following.kind == "text" else None


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page has a reader make."""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, "utf-8")


def unknown_names(code: str) -> set[str]:
    """Return the names that code reads and nowhere imports or makes."""
    read: set[str] = set()
    made = {*dir(builtins), "__file__", "__name__"}
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(name, ast.Load()):
                read.add(name)
            case ast.Name(name):
                made.add(name)
            case ast.Import(names) | ast.ImportFrom(names=names):
                made |= {(one.asname or one.name).partition(".")[0] for one in names}
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                made.add(name)
            case ast.arg(name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
    return read - made


def imported_modules(code: str) -> set[str]:
    """Return the modules that code imports from, and those that it imports by themselves."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found - set(sys.stdlib_module_names)
