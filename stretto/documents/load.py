"""Loads documents from files and directories."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256

from stretto.core import Document, Section
from stretto.documents.html import parse_html
from stretto.documents.markdown import parse_markdown
from stretto.documents.pdf import parse_pdf
from stretto.documents.rst import parse_rst
from stretto.documents.text import parse_text
from stretto.errors import ConfigError, DocumentError

Parser = Callable[[bytes], list[Section]]

PARSERS: Mapping[str, Parser] = {
    ".pdf": parse_pdf,
    ".html": parse_html,
    ".htm": parse_html,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".rst": parse_rst,
    ".txt": parse_text,
    ".text": parse_text,
}


def load_documents(
    paths: Iterable[str | os.PathLike[str]],
    *,
    max_bytes: int = 50_000_000,
    on_document: Callable[[str], None] | None = None,
) -> list[Document]:
    """Read and parse files, and the files in directories.

    Directories are walked in sorted order; hidden files and files with an unknown suffix are skipped. A
    file given by its own path is read in any case, as plain text if its suffix is unknown. A file that is
    found twice counts once, under its first path.

    Args:
        max_bytes: largest size of a file.
        on_document: called with each path when its file is parsed.

    Raises:
        DocumentError: a path is missing, unreadable, empty, encrypted, corrupt, larger than `max_bytes` or
            binary, or there is no file at all. The message names the path and the cause.
        ConfigError: the parser of a format is not installed.
    """
    files = _distinct(_files(paths))
    if not files:
        raise DocumentError("no documents: no path was given")
    for path in files:
        _check_size(path, max_bytes)
    documents = []
    for path in files:
        documents.append(_load(path))
        if on_document is not None:
            on_document(path)
    return documents


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for path in paths:
        path = os.fspath(path)
        if not os.path.isdir(path):
            yield path
            continue
        found = sorted(_walk(path), key=lambda file: file.split(os.sep))
        if not found:
            raise DocumentError(f"{path}: no documents in this directory (known: {', '.join(PARSERS)})")
        yield from found


def _walk(directory: str) -> Iterator[str]:
    """Find visible files with a known suffix under a directory; links to directories are not followed."""
    for folder, folders, names in os.walk(directory, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and _suffix(name) in PARSERS:
                yield os.path.join(folder, name)


def _refuse(error: OSError) -> None:
    raise DocumentError(f"{error.filename}: {error.strerror}") from error


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _distinct(files: Iterable[str]) -> list[str]:
    first: dict[str, str] = {}
    for file in files:
        first.setdefault(os.path.realpath(file), file)
    return list(first.values())


def _check_size(path: str, max_bytes: int) -> None:
    try:
        status = os.stat(path)
    except OSError as cause:
        raise DocumentError(f"{path}: {cause.strerror}") from cause
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError(f"{path}: is not a file")
    if status.st_size == 0:
        raise DocumentError(f"{path}: is empty")
    if status.st_size > max_bytes:
        raise DocumentError(f"{path}: has {status.st_size} bytes, more than the {max_bytes} allowed")


def _load(path: str) -> Document:
    try:
        with open(path, "rb") as file:
            data = file.read()
        sections = PARSERS.get(_suffix(path), parse_text)(data)
    except OSError as cause:
        raise DocumentError(f"{path}: {cause.strerror}") from cause
    except ImportError as cause:
        raise ConfigError(f"{path}: needs the package {cause.name}: pip install 'stretto[local]'") from cause
    except ValueError as cause:
        raise DocumentError(f"{path}: {cause}") from cause
    except Exception as cause:  # a parser met something its authors did not expect
        raise DocumentError(f"{path}: cannot be parsed: {cause!r}") from cause
    sections = [section for section in sections if section.text.strip()]
    if not sections:
        raise DocumentError(f"{path}: contains no text")
    return Document(path, tuple(sections), sha256(data).hexdigest())
