"""How the calls of a run stand in its journal: requests by their numbers, as the journal is of these requests
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from stretto.planner.application import Application
from stretto.planner.running.calls import Answer, Call
from stretto.planner.running.request_store import RequestStore
from stretto.runtime.journal.lines import Entry, work_hash

_ANSWER = [str, int, int]


def hash_of(app: Application, requests: RequestStore, served_by: str) -> str:
    """Return the hash of a run: its application, its requests, and the engines that answer."""
    return work_hash([served_by, [asdict(node) for node in app.nodes], requests.digest()])


def entry_of(call: Call, answer: Answer) -> Entry:
    """Return the entry of a call that was answered."""
    key = str(call.request), call.node, str(call.number)
    return Entry(key, [answer.text, answer.num_prompt, answer.num_output])


def calls_of(entries: Iterable[Entry]) -> Iterator[tuple[Call, Answer]]:
    """Yield the calls and answers of a journal's entries."""
    for entry in entries:
        value = entry.value
        if isinstance(value, list) and len(entry.key) == 3 and [*map(type, value)] == _ANSWER:
            request, node, number = entry.key
            yield Call(int(request), node, int(number)), Answer(*value)
