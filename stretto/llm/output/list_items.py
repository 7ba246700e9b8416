"""Incremental parser of a list of strings that a model writes: yields each item as soon as it is there.

A model that is asked for a JSON list answers token by token, often with prose or a code fence around it, and
sometimes with a numbered list or with objects instead. The parser is a state machine over single characters,
so a delta may end anywhere:

    PROSE   before a list: text up to `[` is skipped, so "Sure! ```json" needs no further rule. A line that
            begins with a number or a bullet is a LINE; `{` begins an OBJECT
    LINE    in a line of a numbered list, up to its end: the rest of the line is an item
    OBJECT  in an object that may have the items as its values, up to its `}`; `[` begins a list after all
    FIRST   after `[`: an item, or `]` (the empty list)
    ITEM    after a comma: an item, or `]`
    STRING  inside an item, up to its closing quote
    ESCAPE  after a backslash inside an item: the next character belongs to the item, even a quote
    MEMBER  in an object that is an item: its first text is the item
    AFTER   after an item: a comma, `]`, or an item whose comma was forgotten
    END     after the list: everything is ignored

Once there is an item, the list ends where it is broken: a tail that was cut off costs no item before it. The
characters of an item are kept unchanged, and `json` decodes them at the closing quote. So escapes and
surrogate pairs have their JSON meaning wherever deltas end. Total work is linear.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from stretto.errors import BadReply

_MARK = re.compile(r"[ \t]*(?:\d{1,3}[.)]|[-*•])[ \t]+")
_MOST_MARK_CHARS = 40
_MARKUP = " \t\r\"'“”*`"


class _State(Enum):
    PROSE = auto()
    LINE = auto()
    OBJECT = auto()
    FIRST = auto()
    ITEM = auto()
    STRING = auto()
    ESCAPE = auto()
    MEMBER = auto()
    AFTER = auto()
    END = auto()


class ListItems:
    """A parser of a model's reply, a list of strings, while it is being decoded.

    It returns each item as soon as it is complete. The list is JSON, whose items may be objects with a text;
    or it is numbered, or has bullets. Unlike in strict JSON, strings may contain unescaped line breaks.
    """

    def __init__(self) -> None:
        self._state = _State.PROSE
        self._line: list[str] = []
        self._literal: list[str] = []
        self._braces = _Braces()
        self._num_items = 0
        self._recent: deque[str] = deque(maxlen=60)

    @property
    def ended(self) -> bool:
        """Whether the list has ended: its `]` has been read, or it is broken there."""
        return self._state is _State.END

    def feed(self, delta: str) -> Iterator[str]:
        """Read more text of the reply, and yield each item that it completes.

        Text is read only as far as the caller iterates.

        Raises:
            BadReply: the first item is neither a string nor an object with one.
        """
        for char in delta:
            self._recent.append(char)
            for item in self._read(char):
                self._num_items += 1
                yield item

    def finish(self) -> list[str]:
        """Return the items that the end of the reply completes: the last line of a numbered list.

        Raises:
            BadReply: the reply has no item, and no empty list.
        """
        last = self._end_line() if self._state is _State.LINE else []
        self._num_items += len(last)
        if not self._num_items and not self.ended:
            is_cut = self._state not in (_State.PROSE, _State.OBJECT, _State.LINE)
            raise self._bad("the list was cut off in its first item" if is_cut else "no list in the reply")
        self._state = _State.END
        return last

    def _read(self, char: str) -> list[str]:
        """Take one character; returns the items that it completes."""
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
            case _State.END:
                pass
            case _State.PROSE:
                return self._read_prose(char)
            case _State.LINE:
                if char == "\n":
                    return self._end_line()
                self._literal.append(char)
            case _State.OBJECT:
                if char == "[" and not self._num_items and not self._braces.in_string:
                    self._state = _State.FIRST
                elif self._braces.feed(char):
                    self._state = _State.PROSE
                    return self._braces.texts()
            case _State.MEMBER:
                if self._braces.feed(char):
                    self._state = _State.AFTER
                    return self._braces.texts()[:1] or self._break("has no text")
            case _:
                return self._read_list(char)
        return []

    def _read_prose(self, char: str) -> list[str]:
        if char == "\n":
            self._line = []
            return []
        if len(self._line) < _MOST_MARK_CHARS:
            self._line.append(char)
            mark = _MARK.match("".join(self._line))
            if (
                mark is not None
                and not char.isspace()
                and mark.end() == len(self._line) - 1
                and char not in "[{"
            ):
                self._state = _State.LINE
                self._literal = [char]
                return []
        if char == "[" and not self._num_items:
            self._state = _State.FIRST
        elif char == "{":
            self._state = _State.OBJECT
            self._braces = _Braces()
        return []

    def _read_list(self, char: str) -> list[str]:
        """Take a character between the items of a JSON list."""
        if char in " \t\r\n":
            return []
        if char == '"':
            self._literal = [char]
            self._state = _State.STRING
        elif char == "{":
            self._braces = _Braces()
            self._state = _State.MEMBER
        elif char == "," and self._state is _State.AFTER:
            self._state = _State.ITEM
        elif char == "]":
            self._state = _State.END
        else:
            return self._break("is not a string")
        return []

    def _end_line(self) -> list[str]:
        text = "".join(self._literal).strip(_MARKUP).removesuffix(",").strip(_MARKUP)
        self._line, self._literal, self._state = [], [], _State.PROSE
        return [_unicode(text)] if text else []

    def _decode(self) -> list[str]:
        try:
            return [_unicode(str(json.loads("".join(self._literal), strict=False)))]
        except ValueError as error:
            return self._break(str(error))

    def _break(self, problem: str) -> list[str]:
        """End the list before a broken item. Raises BadReply if that is the first item."""
        if not self._num_items:
            raise self._bad(f"item 1 of the list {problem}")
        self._state = _State.END
        return []

    def _bad(self, problem: str) -> BadReply:
        end = f"ends {''.join(self._recent)!r}" if self._recent else "is empty"
        return BadReply(f"{problem}; the reply {end}")


class _Braces:
    """The text of an object from its `{`, which has been read, to the `}` that closes it."""

    def __init__(self) -> None:
        self._chars = ["{"]
        self._depth = 1
        self._is_escaped = False
        self.in_string = False

    def feed(self, char: str) -> bool:
        """Take one character; return whether it closes the object."""
        self._chars.append(char)
        if self._is_escaped:
            self._is_escaped = False
        elif self.in_string:
            self._is_escaped = char == "\\"
            self.in_string = char != '"'
        elif char == '"':
            self.in_string = True
        else:
            self._depth += (char == "{") - (char == "}")
        return self._depth == 0

    def texts(self) -> list[str]:
        """Return the texts among the values of the object, in order; none if it is not JSON."""
        try:
            values = json.loads("".join(self._chars), strict=False).values()
        except (ValueError, RecursionError):
            return []
        return [_unicode(value) for value in values if isinstance(value, str) and value.strip()]


def _unicode(text: str) -> str:
    """Replace halves of surrogate pairs, which are no characters: tokenizers and sockets refuse them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
