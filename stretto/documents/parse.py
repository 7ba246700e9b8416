"""Parses one file by its suffix: bytes to sections, with every failure a typed error that names the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256

from stretto.documents.blobs import without_blobs
from stretto.documents.html import parse_html
from stretto.documents.mail import parse_mail
from stretto.documents.markdown import parse_markdown
from stretto.documents.office.docx import parse_docx
from stretto.documents.office.pptx import parse_pptx
from stretto.documents.office.xlsx import parse_xlsx
from stretto.documents.pdf import MAX_PAGES, parse_pdf
from stretto.documents.records import parse_csv, parse_json
from stretto.documents.rst import parse_rst
from stretto.documents.text import parse_text
from stretto.model.errors import ConfigError, DocumentError
from stretto.model.extras import imports_of, is_installed
from stretto.model.values import Document, Section

Parser = Callable[[bytes], list[Section]]

PARSERS: Mapping[str, Parser] = {
    ".pdf": parse_pdf,
    ".html": parse_html,
    ".htm": parse_html,
    ".md": parse_markdown,
    ".markdown": parse_markdown,
    ".rst": parse_rst,
    ".docx": parse_docx,
    ".pptx": parse_pptx,
    ".xlsx": parse_xlsx,
    ".csv": parse_csv,
    ".json": parse_json,
    ".eml": parse_mail,
    ".txt": parse_text,
    ".text": parse_text,
}
_OFFICE: Mapping[Parser, str] = {parse_docx: "docx", parse_pptx: "pptx", parse_xlsx: "openpyxl"}
"""Parsers of the extra `office`, and the package that each imports."""
INSTALL_OFFICE = "pip install 'stretto[office]'"
_SURROGATE = re.compile("[\ud800-\udfff]")


def parser_of(path: str) -> Parser:
    """Return the parser of a file's suffix; a file with an unknown suffix is plain text."""
    return PARSERS.get(os.path.splitext(path)[1].lower(), parse_text)


def needs_office(path: str) -> bool:
    """Return whether a file of this suffix needs the extra `office`, and that is not installed.

    Such a file counts as one of an unknown kind, and does not end the reading of others.
    """
    package = _OFFICE.get(parser_of(path))
    return package is not None and not is_installed(package)


def parse_file(path: str, max_pages: int = MAX_PAGES) -> Document:
    """Read and parse one file.

    Raises:
        DocumentError: the file is unreadable, encrypted, corrupt, binary, without text or beyond `max_pages`,
            or the extra `office` is not installed and needed.
        ConfigError: the parser of the format is not installed.
        MemoryError: the text needs more memory than the process may have.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as cause:
        raise DocumentError(f"{path}: {cause.strerror}") from cause
    return parse_bytes(path, data, max_pages)


def parse_bytes(path: str, data: bytes, max_pages: int = MAX_PAGES) -> Document:
    """Parse the bytes of one file, by the suffix of its path. Halves of surrogate pairs, which are no
    characters, become U+FFFD. Binary data that is written as text becomes a short mark.

    Raises:
        DocumentError: the file is encrypted, corrupt, binary, without text or beyond `max_pages`.
        ConfigError: the parser of the format is not installed.
        MemoryError: the text needs more memory than the process may have.
    """
    parser = parser_of(path)
    if parser is parse_pdf:
        parser = partial(parse_pdf, max_pages=max_pages)
    try:
        if needs_office(path):
            raise ValueError(f"needs an extra: {INSTALL_OFFICE}")
        with imports_of("local", path):
            sections = parser(data)
    except ConfigError:
        raise
    except OSError as cause:
        raise DocumentError(f"{path}: {cause.strerror}") from cause
    except ValueError as cause:
        raise DocumentError(f"{path}: {cause}") from cause
    except MemoryError:
        raise
    except Exception as cause:  # a parser met something its authors did not expect
        raise DocumentError(f"{path}: cannot be parsed: {cause!r}") from cause
    with_text = [_cleaned(section) for section in sections if section.text.strip()]
    unread = [section.page for section in sections if section.page is not None and not section.text.strip()]
    if not with_text:
        scans = ", only pictures or drawings, which are not read" if unread else ""
        raise DocumentError(f"{path}: contains no text{scans}")
    return Document(path, tuple(with_text), sha256(data).hexdigest(), tuple(unread))


def _cleaned(section: Section) -> Section:
    title = None if section.title is None else _SURROGATE.sub("\ufffd", section.title)
    return Section(without_blobs(_SURROGATE.sub("\ufffd", section.text)), title, section.page)
