"""The lines of a journal: a header that names the work, then a line of JSON for each result.

A line ends with a checksum of its text. It counts only if it is whole and the checksum is right, so a line
that was torn by a kill or a power cut, or damaged on the disk, is no result. Entries have keys, so their
order does not matter, and an entry that is there twice does no harm.

Journals of version 3 have lines without checksums. They are read, and go on with lines that have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from zlib import crc32

from stretto.model.errors import JournalError
from stretto.model.record import record

_VERSION = 4
_UNCHECKED_VERSION = 3
_canonical = json.JSONEncoder(sort_keys=True).encode
_compact = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_HASHED_TOGETHER = 100
_TEXT = frozenset((str,))
_SEAL_BYTES = 10  # a tab, eight digits and the end of the line


@record
class JournalEntry:
    """One result of a run.

    Attributes:
        key: names of what has been done, such as a request, a node and a number.
        value: result as plain data for JSON.
    """

    key: tuple[str, ...]
    value: object


def work_hash(parts: Iterable[object]) -> str:
    """Return a hash of all that decides the results of a run: plain data for JSON, such as its requests."""
    digest, left = sha256(), iter(parts)
    while together := list(islice(left, _HASHED_TOGETHER)):  # one by one takes twice as long
        digest.update(_canonical(together).encode())
    return digest.hexdigest()


def header_line(work: str) -> bytes:
    """Return the first line of a journal. `work` is the hash of the work that it belongs to."""
    return _sealed(json.dumps({"journal": _VERSION, "work": work}))


def needs_checksums(line: bytes, work: str, work_before: str, path: Path) -> bool:
    """Check that the first line of the file `path` is the header of a journal of this work. Return whether
    all its lines have checksums.

    Args:
        work_before: hash of the work as journals without checksums have it.

    Raises:
        JournalError: it is no header, it is damaged, or it is the header of other work.
    """
    found = _mapping(line.partition(b"\t")[0])
    version = found.get("journal")
    if version is None:
        raise JournalError(f"{path} is no journal; name another file, which may not exist yet")
    if version not in (_VERSION, _UNCHECKED_VERSION):
        raise JournalError(f"{path} is a journal of version {version!r}; this one is {_VERSION}")
    if version == _VERSION and not _is_sealed(line):
        raise JournalError(f"{path}: the first line is damaged; remove the file to begin anew")
    if found.get("work") != (work if version == _VERSION else work_before):
        raise JournalError(
            f"{path} is the journal of other work: the app, the models that a Batch file names, or an option "
            "that changes answers differs; name another file, or remove it to begin anew"
        )
    return version == _VERSION


def entry_line(entry: JournalEntry) -> bytes:
    """Return an entry as a line of a journal."""
    return _sealed(_compact([*entry.key, entry.value]))


def parse_entry(line: bytes, *, is_checked: bool = True) -> JournalEntry | None:
    """Return the entry of a line; None if the line is not whole, or damaged.

    Args:
        is_checked: whether a line without a checksum is damaged.
    """
    if _is_sealed(line):
        line = line[:-_SEAL_BYTES] + b"\n"
    elif is_checked or not line.endswith(b"\n"):
        return None
    try:
        text = line.decode()
        found, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) < 2 or not text[end:].isspace():
        return None
    *key, value = found
    return JournalEntry(tuple(key), value) if _TEXT.issuperset(map(type, key)) else None


def _sealed(text: str) -> bytes:
    """Return a line with its checksum."""
    data = text.encode()
    return b"%b\t%08x\n" % (data, crc32(data))


def _is_sealed(line: bytes) -> bool:
    """Return whether a line ends with a checksum that is right."""
    return line[-_SEAL_BYTES:] == b"\t%08x\n" % crc32(line[:-_SEAL_BYTES])


def _mapping(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
