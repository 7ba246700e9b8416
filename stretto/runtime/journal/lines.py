"""The lines of a journal: a header that names the work, then a line of JSON for each result.

A line counts only if it is whole, so a line that was torn by a kill or a power cut is ignored. Entries have
keys, so their order does not matter, and an entry that is there twice does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from pathlib import Path

from stretto.errors import JournalError
from stretto.record import record

_VERSION = 3
_canonical = json.JSONEncoder(sort_keys=True).encode
_compact = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_HASHED_TOGETHER = 100
_TEXT = frozenset((str,))


@record
class Entry:
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
    return json.dumps({"journal": _VERSION, "work": work}).encode() + b"\n"


def check_header(line: bytes, work: str, path: Path) -> None:
    """Check that the first line of the file `path` is the header of a journal of this work.

    Raises:
        JournalError: it is no header, or the header of other work.
    """
    found = _mapping(line)
    if "journal" not in found:
        raise JournalError(f"{path} is no journal; name another file, which may not exist yet")
    if found["journal"] != _VERSION:
        raise JournalError(f"{path} is a journal of version {found['journal']!r}; this one is {_VERSION}")
    if found.get("work") != work:
        raise JournalError(
            f"{path} is the journal of other work: the app, the requests or an option that changes answers "
            "differ; name another file, or remove it to begin anew"
        )


def entry_line(entry: Entry) -> bytes:
    """Return an entry as a line of a journal."""
    return _compact([*entry.key, entry.value]).encode() + b"\n"


def parse_entry(line: bytes) -> Entry | None:
    """Return the entry of a line; None if the line is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        text = line.decode()
        found, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) < 2 or not text[end:].isspace():
        return None
    *key, value = found
    return Entry(tuple(key), value) if _TEXT.issuperset(map(type, key)) else None


def _mapping(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
