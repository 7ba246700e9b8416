"""Parses one file by its suffix: bytes to sections, with every failure a typed error that names the file.

Binary data that is written as text, such as a picture in base64, is replaced by a short mark. Nobody asks for
such data, and it is longer than all the prose around it. Data URIs (RFC 2397) are recognised by their
beginning. Other base64 is a long run of its letters, or many lines of 60 to 76 of them, with capital letters,
small letters and digits; so identifiers, paths, checksums in hex and genomes stay.

A run of one character is such data too if it has 2,000 of them or more: 100,000 times "<" are 100,000 tokens,
which an embedder takes half a minute to read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256

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

_DATA_URI = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.+=-]+)*+,[^\s\"'<>()\[\]`]{200,}+")
_LINE = r"[A-Za-z0-9+/]{60,76}+ (?= ={0,2} (?:[ \n]|\Z))"
_BASE64 = re.compile(
    rf"""
      (?<! [A-Za-z0-9+/_-]) (?:
          [A-Za-z0-9+/_-]{{400,}}+
        | {_LINE} (?: [ \n] [ \t]*+ {_LINE} ){{5,}}+ (?: [ \n] [ \t]*+ [A-Za-z0-9+/]{{1,76}}+ (?= =))?
      ) ={{0,2}}+
    """,
    re.VERBOSE,
)
_RUN = re.compile(r"(\S)\1{15}\1*+")  # matched whole where it is short too, so that no part is tried twice
_MIN_RUN = 2000
_KINDS = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))


def without_blobs(text: str) -> str:
    """Return a text with "[N characters of TYPE]" in place of data URIs, base64, and runs of one character.

    The time is linear in the length of the text.
    """
    return _RUN.sub(_run_mark, _BASE64.sub(_base64_mark, _DATA_URI.sub(_data_mark, text)))


def _data_mark(uri: re.Match[str]) -> str:
    return f"[{len(uri[0])} characters of {uri['type'] or 'data'}]"


def _run_mark(run: re.Match[str]) -> str:
    return run[0] if len(run[0]) < _MIN_RUN else f"[{len(run[0])} characters of {run[1]}]"


def _base64_mark(run: re.Match[str]) -> str:
    is_base64 = all(kind.search(run[0]) for kind in _KINDS)
    return f"[{len(run[0])} characters of base64]" if is_base64 else run[0]


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
