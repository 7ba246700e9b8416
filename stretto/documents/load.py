"""Loads documents from files and directories."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from stretto.documents.parse import INSTALL_OFFICE, PARSERS, needs_office, parse_file, parser_of
from stretto.documents.parser_process import ParseLimits, ParserProcess
from stretto.documents.pdf import unread_pages_note
from stretto.documents.text import parse_text
from stretto.model.errors import DocumentError
from stretto.model.values import Document

DEFAULT_LIMITS = ParseLimits()
_log = logging.getLogger(__name__)
_KNOWN = ", ".join(PARSERS)
_MAX_NAMED = 10


def load_documents(
    paths: Iterable[str | os.PathLike[str]],
    *,
    max_bytes: int = 50_000_000,
    on_document: Callable[[str], None] | None = None,
    on_bad: Callable[[DocumentError], None] | None = None,
    on_left_out: Callable[[DocumentError], None] = lambda error: _log.warning("%s", error.message),
    limits: ParseLimits = DEFAULT_LIMITS,
) -> list[Document]:
    """Read and parse the files at these paths, and all files in these directories, into documents.

    Directories are walked in sorted order; hidden files and files with an unknown suffix are left out. A
    file given by its own path is read in any case, as plain text if its suffix is unknown. A file that is
    found twice counts once, under its first path. Files of all formats but plain text are parsed in a
    process of their own, within `limits`.

    Args:
        max_bytes: largest size of a file.
        on_document: called with each path when its file is parsed.
        on_bad: called with the error of each file that cannot be read, which is skipped then; None raises the
            first such error instead.
        on_left_out: called with an error for each directory that names its files with an unknown suffix, and
            with one for each document of which pages are not read, because they are scans. It may raise it.
            Without it, they are logged as warnings.

    Raises:
        DocumentError: a path is missing, or a folder has no documents, or no file is left, or a file cannot
            be read and `on_bad` is None: it is unreadable, empty, encrypted, corrupt, binary, larger than
            `max_bytes` or beyond `limits`. The message names the path and the cause.
        ConfigError: the parser of a format is not installed.
    """
    if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
        raise DocumentError(f"paths must be a list of paths, got {paths!r:.80}")
    bad: list[DocumentError] = []

    def note(error: DocumentError) -> None:
        if on_bad is None:
            raise error
        bad.append(error)
        on_bad(error)

    documents = []
    good = _good_files(_distinct(_files(paths, note, on_left_out)), max_bytes, note)
    with ParserProcess(limits) as parser:
        for path in good:
            try:
                document = parse_file(path) if parser_of(path) is parse_text else parser.parse(path)
            except DocumentError as error:
                note(error)
                continue
            documents.append(document)
            if on_document is not None:
                on_document(path)
            if (unread := unread_pages_note(document)) is not None:
                on_left_out(DocumentError(unread))
    if not documents:
        raise _no_documents(bad)
    return documents


def _no_documents(bad: Sequence[DocumentError]) -> DocumentError:
    """Return the error that no file is left, where those in `bad` could not be read."""
    if len(bad) == 1:
        return bad[0]
    cause = f"none of {len(bad)} can be read; the first: {bad[0].message}" if bad else "no path was given"
    return DocumentError(f"no documents: {cause}")


def _good_files(files: Iterable[str], max_bytes: int, note: Callable[[DocumentError], None]) -> list[str]:
    """Return the files that can be opened and are not too large; call `note` with the error of each other."""
    good = []
    for path in files:
        try:
            _check(path, max_bytes)
        except DocumentError as error:
            note(error)
        else:
            good.append(path)
    return good


def _files(
    paths: Iterable[str | os.PathLike[str]],
    note: Callable[[DocumentError], None],
    on_left_out: Callable[[DocumentError], None],
) -> Iterator[str]:
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise DocumentError(f"a path must be a text or a Path, got {path!r:.80}")
        path = os.fspath(path)
        if not os.path.isdir(path):
            if not os.path.lexists(path):
                raise DocumentError(f"{path}: {os.strerror(errno.ENOENT)}")
            yield path
            continue
        found = sorted(_walk(path, note), key=lambda file: file.split(os.sep))
        left_out = _left_out(found, path)
        known = [file for file in found if _suffix(file) in PARSERS and not needs_office(file)]
        if not known:
            only = f", only {'; '.join(left_out)}" if left_out else ""
            raise DocumentError(f"{path}: no documents in this directory{only} (read are {_KNOWN})")
        if left_out:
            raised = "; ".join(left_out)
            on_left_out(DocumentError(f"{path}: {raised} (read are {_KNOWN}, or a file given by name)"))
        yield from known


def _left_out(found: Sequence[str], folder: str) -> list[str]:
    """Return texts that count and name the files of a folder that are not read, and say why."""
    unknown = [os.path.relpath(file, folder) for file in found if _suffix(file) not in PARSERS]
    lacking = [os.path.relpath(file, folder) for file in found if needs_office(file)]
    texts = [f"{_counted(unknown)} of other kinds: {_named(unknown)}"] if unknown else []
    if lacking:
        texts.append(f"{_counted(lacking)} that need an extra ({INSTALL_OFFICE}): {_named(lacking)}")
    return texts


def _counted(files: Sequence[str]) -> str:
    return f"{len(files)} file{'s' if len(files) > 1 else ''}"


def _named(files: Sequence[str]) -> str:
    """Return the names of the first files, and how many there are beyond."""
    more = f" and {len(files) - _MAX_NAMED} more" if len(files) > _MAX_NAMED else ""
    return ", ".join(files[:_MAX_NAMED]) + more


def _walk(directory: str, note: Callable[[DocumentError], None]) -> Iterator[str]:
    """Find visible files under a directory; links to directories are not followed.

    Folders that cannot be listed go to `note`.
    """

    def refuse(error: OSError) -> None:
        note(DocumentError(f"{error.filename}: {error.strerror}"))

    for folder, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.join(folder, name)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _distinct(files: Iterable[str]) -> list[str]:
    first: dict[str, str] = {}
    for file in files:
        first.setdefault(os.path.realpath(file), file)
    return list(first.values())


def _check(path: str, max_bytes: int) -> None:
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
