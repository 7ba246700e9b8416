"""Calls of tools in answers of a chat: whole ones, or in a stream pieces of them.

A stream names a call once, in the piece that opens it; the JSON text of its arguments comes in any number of
further pieces of the same index. Servers differ: some leave out the index or the id, some give all calls the
same index, and some write arguments as an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from stretto.model.record import record


@record
class CallPart:
    """A call of a tool in an answer, or a piece of one.

    Attributes:
        index: number of the call in the answer; None where the server does not say.
        id: name that the server gave the call; "" in pieces that go on with it.
        arguments: JSON text, or the next part of it.
    """

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def to_json(self, *, is_whole: bool) -> dict[str, object]:
        """Return the call as JSON: whole, or as a piece of a stream."""
        function: dict[str, object] = {"arguments": self.arguments}
        if self.name:
            function = {"name": self.name, **function}
        opening: dict[str, object] = {"id": self.id, "type": "function"} if self.id or is_whole else {}
        place: dict[str, object] = {} if is_whole else {"index": self.index or 0}
        return {**place, **opening, "function": function}


def read_tool_calls(value: Any) -> tuple[CallPart, ...]:
    """Read the field `tool_calls` of a message or of a piece of one; what is no call is left out."""
    if not isinstance(value, list):
        return ()
    found = []
    for one in value:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict):
            continue
        index, given = one.get("index"), function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        index = index if type(index) is int else None
        found.append(CallPart(index, _text(one.get("id")), _text(function.get("name")), arguments))
    return tuple(found)


def joined_calls(parts: Iterable[CallPart]) -> list[CallPart]:
    """Return the whole calls that pieces make, in their order. A piece without an index belongs to the call
    before it, unless it has a name. One with another id than the call of its index is a new call.
    """
    calls: dict[int, CallPart] = {}
    of_index: dict[int, int] = {}
    last = -1
    for part in parts:
        if part.index is not None:
            last = of_index.setdefault(part.index, part.index)
        elif part.name or last < 0:
            last = max(calls, default=-1) + 1
        known = calls.get(last, CallPart(last))
        if part.name and part.id and known.id and part.id != known.id:
            last = max(calls) + 1
            known = CallPart(last)
            if part.index is not None:
                of_index[part.index] = last
        calls[last] = CallPart(
            last, known.id or part.id, known.name or part.name, known.arguments + part.arguments
        )
    return [calls[index] for index in sorted(calls)]


def _text(value: Any) -> str:
    """Return a text without half a surrogate pair; "" for anything else."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
