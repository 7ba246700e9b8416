"""Reads the answer of a model that may call tools (`tools.py`), piece by piece: text to show, and calls.

The text of an answer is shown as it comes: it is a JSON string that has not ended yet. Calls, and answers
that are JSON by themselves, are read when the answer has ended. So are calls in other forms, which a model
writes that is not held to the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from stretto.llm.output.written_calls import written_calls_of_objects
from stretto.model.values import whole_characters
from stretto.service.openai.tools import ToolUse
from stretto.wire.tool_calls import CallPart

_BEGIN = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_CALLS = re.compile(r'\s*\{\s*"tool_calls"\s*:\s*\[\s*')
_FORMS = ('{"answer":', '{"tool_calls":[')
_MOST_BEGIN = 200
"""Characters within which a text to show has begun, or is not shown before the end."""
_BETWEEN = re.compile(r"\s*,\s*")
_STRING = re.compile(r'(?:[^"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|'
                     r"\\u(?![dD][89abAB])[0-9a-fA-F]{4})*")  # fmt: skip
"""Characters of a JSON string that are complete: none ends within an escape or half a pair of them."""


class ToolAnswer:
    """The answer of a model that may call tools.

    Args:
        prefix: beginning of the ids of its calls.
        tools: what the chat says of tools.
    """

    def __init__(self, prefix: str, tools: ToolUse) -> None:
        self._prefix = prefix
        self._names = tools.names
        self._is_text = tools.answer is None  # else it is JSON, which is shown as a whole
        self._pieces: list[str] = []
        self._received = ""  # the first pieces; in the end, all of them
        self._left = ""  # of a string that is being shown
        self._is_shown = False
        self._has_ended = False
        self._num_shown = 0

    def feed(self, piece: str) -> str:
        """Read more of the answer; return the text to show that it adds."""
        self._pieces.append(piece)
        if not self._is_text or self._has_ended:
            return ""
        if self._is_shown:
            self._left += piece
        elif len(self._received) < _MOST_BEGIN:
            self._received += piece
            if (begin := _BEGIN.match(self._received)) is None:
                return ""
            self._is_shown, self._left = True, self._received[begin.end() :]
        else:
            return ""
        whole = _STRING.match(self._left)
        assert whole is not None
        self._has_ended = self._left[whole.end() : whole.end() + 1] == '"'
        self._left = self._left[whole.end() :]
        shown = _decoded(whole.group())
        self._num_shown += len(shown)
        return shown

    def finish(self) -> tuple[str, tuple[CallPart, ...]]:
        """Return the rest of the text to show, and the calls, when the answer has ended.

        The answer of a server that does not hold it to the schema is a text as it stands.
        """
        self._received = "".join(self._pieces)
        try:
            value: Any = json.loads(self._received, strict=False)
        except (ValueError, RecursionError):
            value = None
        if value is None and (self._is_shown or self._is_in_form()):
            return "", self._calls(self._whole_calls())
        fields = value if isinstance(value, dict) else {}
        listed = fields.get("tool_calls")
        calls = self._calls(listed) if isinstance(listed, list) and all(map(_is_call, listed)) else ()
        if not calls and "answer" not in fields:
            written = written_calls_of_objects(self._received, self._names)
            calls = self._calls({"name": one.name, "arguments": one.given} for one in written)
        if "answer" not in fields:
            return ("" if calls else self._received), calls
        answer = fields["answer"]
        if isinstance(answer, str) and self._is_text:
            return whole_characters(answer)[self._num_shown :], calls
        return json.dumps(answer, ensure_ascii=False), calls

    def _is_in_form(self) -> bool:
        """Return whether an answer that was cut begins as one in the form of the schema."""
        begin = "".join(self._received.split())
        return any(begin.startswith(form) or form.startswith(begin) for form in _FORMS)

    def _whole_calls(self) -> Iterator[Any]:
        """Iterate over the calls that are complete in an answer that was cut."""
        begin = _CALLS.match(self._received)
        at = None if begin is None else begin.end()
        while at is not None:
            try:
                call, end = json.JSONDecoder(strict=False).raw_decode(self._received, at)
            except (ValueError, RecursionError):
                return
            if not _is_call(call):
                return
            yield call
            between = _BETWEEN.match(self._received, end)
            at = None if between is None else between.end()

    def _calls(self, calls: Iterable[Any]) -> tuple[CallPart, ...]:
        """Return calls as clients get them. A call has the id that its server gave it, or one of its own."""
        found = []
        for number, call in enumerate(calls):
            given = call.get("arguments", {})  # an object, or as OpenAI writes it the text of one
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            call_id = call.get("id") or f"call_{self._prefix}_{number}"
            found.append(CallPart(number, str(call_id), call["name"], arguments))
        return tuple(found)


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _decoded(inner: str) -> str:
    """Return the text of the inside of a JSON string."""
    return whole_characters(json.loads(f'"{inner}"', strict=False))
