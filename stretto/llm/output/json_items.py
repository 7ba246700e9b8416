"""Incremental parser of a JSON list of strings: yields each item as soon as its closing quote arrives.

A language model that is asked for a list answers token by token, often with prose or a code fence
around it. The parser is a state machine over single characters, so a delta may end anywhere:

    PROSE   before the list: everything up to the first `[` is skipped, so "Sure! ```json" and
            `{"queries":` need no further rule
    FIRST   after `[`: an item, or `]` (the empty list)
    ITEM    after a comma: an item
    STRING  inside an item, up to its closing quote
    ESCAPE  after a backslash inside an item: the next character belongs to the item, even a quote
    AFTER   after an item: a comma, or `]`
    END     after the list: everything is ignored

The characters of an item are kept unchanged, and `json` decodes them at the closing quote. So escapes and
surrogate pairs have their JSON meaning wherever deltas end. Total work is linear.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from stretto.errors import BadReply


class _State(Enum):
    PROSE = auto()
    FIRST = auto()
    ITEM = auto()
    STRING = auto()
    ESCAPE = auto()
    AFTER = auto()
    END = auto()


class JsonItems:
    """A parser of a model's reply, a JSON list of strings, while it is being decoded.

    It returns each item as soon as it is complete. Unlike strict JSON, strings may contain unescaped line
    breaks.
    """

    def __init__(self) -> None:
        self._state = _State.PROSE
        self._literal: list[str] = []
        self._num_items = 0
        self._recent: deque[str] = deque(maxlen=60)

    @property
    def ended(self) -> bool:
        """Whether the end of the list, its `]`, has been read."""
        return self._state is _State.END

    def feed(self, delta: str) -> Iterator[str]:
        """Read more text of the reply, and yield each item that it completes.

        Text is read only as far as the caller iterates.

        Raises:
            BadReply: the list is not JSON, or an item is not a string.
        """
        for char in delta:
            self._recent.append(char)
            if (item := self._read(char)) is not None:
                self._num_items += 1
                yield item

    def finish(self) -> None:
        """Check, at the end of the reply, that it contained a whole list.

        Raises:
            BadReply: the list is not complete.
        """
        if self._state is _State.PROSE:
            raise self._bad("no JSON list in the reply")
        if not self.ended:
            raise self._bad(f"the JSON list was cut off after {self._num_items} items")

    def _read(self, char: str) -> str | None:
        """Take one character; returns the item that it completes, if any."""
        match self._state:
            case _State.STRING:
                self._literal.append(char)
                if char == '"':
                    self._state = _State.AFTER
                    return self._decode()
                if char == "\\":
                    self._state = _State.ESCAPE
            case _State.ESCAPE:
                self._literal.append(char)
                self._state = _State.STRING
            case _State.PROSE:
                if char == "[":
                    self._state = _State.FIRST
            case _State.END:
                pass
            case _ if char in " \t\r\n":
                pass
            case _State.FIRST | _State.ITEM if char == '"':
                self._literal = [char]
                self._state = _State.STRING
            case _State.AFTER if char == ",":
                self._state = _State.ITEM
            case _State.FIRST | _State.AFTER if char == "]":
                self._state = _State.END
            case _State.AFTER:
                raise self._bad(f"expected ',' or ']' after item {self._num_items} of the JSON list")
            case _:
                raise self._bad(f"item {self._num_items + 1} of the JSON list is not a string")
        return None

    def _decode(self) -> str:
        try:
            item = json.loads("".join(self._literal), strict=False)
        except ValueError as error:
            raise self._bad(f"item {self._num_items + 1} of the JSON list: {error}") from error
        # Half a surrogate pair is no character; tokenizers and sockets refuse it.
        return str(item).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _bad(self, problem: str) -> BadReply:
        return BadReply(f"{problem}; the reply ends {''.join(self._recent)!r}")
