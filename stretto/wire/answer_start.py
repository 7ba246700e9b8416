"""The beginning of an answer, read on its way to a client: as much as a later prompt is recognised by.

An answer that is streamed comes in thousands of events, of which a parser of JSON would take longer than
all else that is done with them. So texts are found by a regular expression, in many events at once, and only
up to a bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stretto.cluster.recognition.messages import AnswerTexts
from stretto.wire.json_values import read_json
from stretto.wire.turns import Call, given_texts, model_turn, said_by

_MOST_TEXT = 4096
"""Characters of an answer that are read."""
_MOST_WHOLE = 131_072
"""Bytes of an answer that comes whole, or of the last event of OpenAI's newer API; more are not read."""
_MOST_EVENTS = 32
"""Parts of a stream that are searched at once."""
_MOST_KEPT = 1024
"""Bytes of a part of a stream that is kept until others have come; a longer one is searched at once."""
_COMPLETED = b'"response.completed"'


def _pattern(*names: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'"(%b)"\s*:\s*"((?:[^"\\]|\\.)*+)"' % b"|".join(names))


_STREAMED = {
    "chat/completions": _pattern(b"content", b"name", b"arguments"),
    "completions": _pattern(b"text"),
    "messages": _pattern(b"text", b"name", b"partial_json"),
}
"""Fields of events that hold text, by the end of the path."""


class AnswerStart:
    """Reads the beginning of one answer.

    Args:
        path: path of the request, such as "/v1/chat/completions".
    """

    def __init__(self, path: str) -> None:
        self._api = path.removeprefix("/v1/")
        self._pattern = _STREAMED.get(self._api)
        self._is_read = self._pattern is not None or self._api == "responses"
        self._parts: list[bytes] = []
        self._text: list[bytes] = []
        self._calls: list[tuple[bytes, list[bytes]]] = []
        self._num_bytes = 0
        self._completed: bytes | None = None
        self._whole = b""

    def feed(self, events: bytes) -> bool:
        """Take complete events of a streamed answer; return whether more are wanted."""
        if self._pattern is None:
            if _COMPLETED in events and len(events) <= _MOST_WHOLE:
                self._completed = events
            return self._is_read
        if self._is_read:
            self._parts.append(events)
            if len(self._parts) >= _MOST_EVENTS or len(events) > _MOST_KEPT:
                self._search(self._pattern)
        return self._is_read

    def take_whole(self, body: bytes) -> None:
        """Take an answer that came whole."""
        if len(body) <= _MOST_WHOLE:
            self._whole = body

    def texts(self) -> AnswerTexts | None:
        """Return the texts of the answer; None if nothing is known of it."""
        if self._whole:
            return _whole(self._api, _object(self._whole)) if self._is_read else None
        if self._pattern is not None:
            self._search(self._pattern)
            calls = [(_plain([name]), _plain(arguments)) for name, arguments in self._calls]
            return _texts(self._api, _plain(self._text), calls)
        if self._completed is None:
            return None
        for line in self._completed.splitlines():
            if _COMPLETED in line and line.startswith(b"data:"):
                return _whole(self._api, _object(line[5:]).get("response"))
        return None

    def _search(self, pattern: re.Pattern[bytes]) -> None:
        """Find texts in the events that have come since the last search."""
        data, self._parts = b"".join(self._parts), []
        for name, value in pattern.findall(data):
            self._num_bytes += len(value)
            if name in (b"content", b"text"):
                self._text.append(value)
            elif name == b"name":
                self._calls.append((value, []))
            elif self._calls:
                self._calls[-1][1].append(value)
        if self._num_bytes > _MOST_TEXT:
            self._is_read = False


def _plain(values: list[bytes]) -> str:
    """Return the text of parts of JSON strings, joined first: a character may be split between two."""
    joined = b"".join(values)[: 2 * _MOST_TEXT].decode("utf-8", "replace")
    if "\\" not in joined:
        return joined
    try:
        return str(json.loads(f'"{joined}"', strict=False))
    except ValueError:
        return ""


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = read_json(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(api: str, answer: Any) -> AnswerTexts | None:
    if not isinstance(answer, dict):
        return None
    stored = answer.get("id") if api == "responses" else ""
    if api == "responses":
        items = answer.get("output")
    elif api == "messages":
        items = [answer]
    else:
        choices = answer.get("choices")
        first = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        items = [first.get("message", first)] if isinstance(first, dict) else None
    if not isinstance(items, list):
        return None
    text = ""
    calls: list[Call] = []
    for item in items:
        if not isinstance(item, dict) or item.get("type") == "reasoning":
            continue
        said, more = (str(item.get("text") or ""), []) if api == "completions" else said_by(item)
        text, calls = text + said, [*calls, *more]
    return _texts(api, text, calls, stored if isinstance(stored, str) else "")


def _texts(api: str, text: str, calls: list[Call], stored: str = "") -> AnswerTexts | None:
    if not text and not calls:
        return None
    text = text[:_MOST_TEXT]
    calls = [(name, arguments[:_MOST_TEXT]) for name, arguments in calls]
    turn = text if api == "completions" else model_turn(text, calls)
    given = calls if text.lstrip()[:1] not in ("[", "{") else [("", text), *calls]
    return AnswerTexts(turn, text, given_texts(given), stored)
