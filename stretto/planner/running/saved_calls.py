"""How the calls of a run stand in its journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from stretto.planner.application import Application
from stretto.planner.running.calls import Answer, Call
from stretto.planner.running.run_request import RunRequest
from stretto.runtime.journal.lines import Entry, work_hash

_ANSWER = [str, int, int]


def hash_of(app: Application, requests: Sequence[RunRequest], served_by: str) -> str:
    """Return the hash of a run: its application, its requests, and the engines that answer."""
    nodes = [asdict(node) for node in app.nodes]
    return work_hash([served_by, nodes, *(_plain(request) for request in requests)])


def _plain(request: RunRequest) -> Any:
    messages = [[message.role, message.text] for message in request.messages]
    nodes, decode = list(request.planned.nodes), dict(request.decode or {})
    return [request.id, messages, list(request.chunks), nodes, decode, request.api, request.model]


def entry_of(request: RunRequest, call: Call, answer: Answer) -> Entry:
    """Return the entry of a call that was answered."""
    return Entry(
        (request.id, call.node, str(call.number)), [answer.text, answer.num_prompt, answer.num_output]
    )


def calls_of(entries: Iterable[Entry], requests: Sequence[RunRequest]) -> Iterator[tuple[Call, Answer]]:
    """Yield the calls and answers of a journal's entries."""
    numbers = {request.id: number for number, request in enumerate(requests)}
    for entry in entries:
        value = entry.value
        if isinstance(value, list) and len(entry.key) == 3 and [*map(type, value)] == _ANSWER:
            request, node, number = entry.key
            yield Call(numbers[request], node, int(number)), Answer(*value)
