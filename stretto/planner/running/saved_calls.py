"""The calls of a run in its journal.

A request is known by a hash of its own, so that a journal still serves when requests are appended, removed or
changed: only those that are new or changed are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from stretto.planner.application import Application
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall, WholeAnswer
from stretto.planner.running.request_store import RequestStore
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry, work_hash

_MAX_DIGITS = 20
_ANSWERS = ([str, int, int], [str, int, int, int, str, str])
"""Types of the parts of an answer: its text, tokens of prompt and output; of a line that was handed on, the
status, the id and the body of the whole answer too.
"""


def open_journal(path: Path, app: Application, requests: RequestStore, served_by: str) -> JournalFile:
    """Open the journal of a run, which belongs to its application and to the engines that answer.

    Raises:
        JournalError, NotSaved: see `JournalFile`.
    """
    nodes = app.identity()
    before = partial(_hash_before, served_by, nodes, requests)
    return JournalFile(path, work_hash([served_by, nodes]), before)


def _hash_before(served_by: str, nodes: list[object], requests: RequestStore) -> str:
    """Return the hash of a run as journals without checksums have it: all requests are part of it."""
    return work_hash([served_by, nodes, requests.digest()])


def entry_of(call: PlannedCall, answer: CallAnswer, requests: RequestStore) -> JournalEntry:
    """Return the entry of a call that was answered."""
    key = requests.mark(call.request), str(call.request), call.node, str(call.number)
    whole = answer.whole
    parts = [] if whole is None else [whole.status, whole.request_id, whole.body]
    return JournalEntry(key, [answer.text, answer.num_prompt, answer.num_output, *parts])


def saved_calls_of(
    entries: Iterable[JournalEntry], requests: RequestStore
) -> Iterator[tuple[PlannedCall, CallAnswer]]:
    """Yield the calls and answers of a journal's entries, for the requests that there are."""
    for entry in entries:
        value, numbers = entry.value, [*map(_number, entry.key)]
        if not isinstance(value, list) or [*map(type, value)] not in _ANSWERS:
            continue
        match entry.key:
            case (mark, _, node, _) if numbers[1] is not None:
                request = requests.find(mark, numbers[1])
            case (_, node, _):  # of a journal without checksums, which belongs to these very requests
                request = numbers[0]
            case _:
                continue
        at = numbers[-1]
        if request is not None and request < len(requests) and at is not None:
            text, num_prompt, num_output, *parts = value
            whole = WholeAnswer(*parts) if parts else None
            yield PlannedCall(request, node, at), CallAnswer(text, num_prompt, num_output, whole)


def _number(text: str) -> int | None:
    """Return the number that a part of a key is; None if a line without a checksum was damaged there."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else None
