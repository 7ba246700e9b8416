"""Incremental parser of a list of strings that a model writes: yields each item as soon as it is there.

A model that is asked for a JSON list answers token by token, often with prose or a code fence around it, and
sometimes with a numbered list or with objects instead. The parser is a state machine over single characters,
so a delta may end anywhere:

    PROSE   before a list: text up to `[` is skipped, so "Sure! ```json" needs no further rule. A line that
            begins with a number or a bullet is a LINE, one that begins with a quote is a QUOTE; `{` begins an
            OBJECT
    LINE    in a line of a numbered list, up to its end: the rest of the line is an item
    QUOTE   in a line that may be one string; otherwise it is read again as prose. Such strings are items if
            there is no list
    OBJECT  in an object that may have the items as its values, up to its `}`; `[` begins a list after all
    FIRST   after `[`: an item, `]` (the empty list), or `[` (a list of lists, whose items are all joined).
            Anything else was a footnote such as [1], and prose goes on
    ITEM    after a comma: an item, or `]`
    STRING  inside an item, up to its closing quote
    ESCAPE  after a backslash inside an item: the next character belongs to the item, even a quote
    OTHER   inside an item in quotes that JSON does not know
    MEMBER  in an object that is an item: its first text is the item
    AFTER   after an item: a comma, `]`, or an item whose comma was forgotten
    END     after the list: everything is ignored

Once there is an item, the list ends where it is broken: a tail that was cut off costs no item before it. The
characters of an item are kept unchanged, and `json` decodes them at the closing quote. So escapes and
surrogate pairs have their JSON meaning wherever deltas end. Total work is linear.

Calls of tools are lists too, whose items may be objects (`tool_calls.py`). There an object is an item as a
whole, as JSON, also outside of a list, where it must be a call. Where texts are wanted, calls are skipped.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from stretto.llm.output.quoted import CLOSING, Braces, QuotedText
from stretto.llm.output.tool_calls import calls_in, is_tool_call
from stretto.model.errors import BadReply
from stretto.model.values import whole_characters

_MARK = re.compile(r"[ \t]*(?:\d{1,3}[.)]|[-*•])[ \t]+")
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')
_MOST_MARK_CHARS = 40
_MARKUP = " \t\r\"'“”*`"


class _State(Enum):
    PROSE = auto()
    LINE = auto()
    QUOTE = auto()
    OBJECT = auto()
    FIRST = auto()
    ITEM = auto()
    STRING = auto()
    ESCAPE = auto()
    OTHER = auto()
    MEMBER = auto()
    AFTER = auto()
    END = auto()


class ListItems:
    """A parser of a model's reply, a list of strings, while it is being decoded.

    It returns each item as soon as it is complete. The list is JSON, whose items may be objects with a text;
    or it is numbered, or has bullets, or is a list of lists. Unlike in strict JSON, strings may contain
    unescaped line breaks, and have other quotes.

    Args:
        takes_calls: whether the items are calls of tools, so that objects are items as they are.
    """

    def __init__(self, *, takes_calls: bool = False) -> None:
        self._takes_calls = takes_calls
        self._state = _State.PROSE
        self._line: list[str] = []
        self._literal: list[str] = []
        self._braces = Braces()
        self._other = QuotedText("'")
        self._depth = 0  # of lists around the items, besides one
        self._is_nested = False
        self._may_quote = True  # the line has nothing but white space so far
        self._is_quoted = False  # a line of one string has its closing quote
        self._strings: list[str] = []
        self._problem = ""
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
            yield from self._read(char)

    def finish(self) -> list[str]:
        """Return the items that the end of the reply completes: the last line of a numbered list.

        Raises:
            BadReply: the reply has no item, and no empty list.
        """
        last: list[str] = []
        if self._state is _State.QUOTE:
            last = self._end_quote()
        if self._state is _State.LINE:
            last += self._end_line()
        elif self._state is _State.OTHER and self._other.may_be_complete:
            last.append(whole_characters(self._other.text()))
        if not self._num_items and not last and not self.ended:
            last = self._strings
        self._num_items += len(last)
        if not self._num_items and not self.ended:
            is_cut = self._state not in (_State.PROSE, _State.OBJECT, _State.LINE)
            why = (
                "the list was cut off in its first item"
                if is_cut
                else self._problem or "no list in the reply"
            )
            raise _bad(why, self._recent)
        self._state = _State.END
        return last

    def _read(self, char: str) -> list[str]:
        """Take one character; returns the items that it completes, and counts them."""
        num_before = self._num_items
        items = self._step(char)
        self._num_items = num_before + len(items)
        return items

    def _step(self, char: str) -> list[str]:
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
            case _State.OTHER:
                if self._other.feed(char):
                    self._state = _State.AFTER
                    self._read_list(char)
                    return [whole_characters(self._other.text())]
            case _State.END:
                pass
            case _State.PROSE:
                return self._read_prose(char)
            case _State.QUOTE:
                return self._read_quote(char)
            case _State.LINE:
                if char == "\n":
                    return self._end_line()
                self._literal.append(char)
            case _State.OBJECT:
                return self._read_object(char)
            case _State.MEMBER:
                if self._braces.feed(char):
                    self._state = _State.AFTER
                    items = [self._braces.text()] if self._takes_calls else self._braces.texts()[:1]
                    return list(map(whole_characters, items)) or self._break("has no text")
            case _:
                return self._read_list(char)
        return []

    def _read_object(self, char: str) -> list[str]:
        """Take a character of an object in prose."""
        is_data = self._takes_calls or self._num_items or self._braces.in_string
        if char == "[" and not is_data and not _ARGUMENTS.search(self._braces.text()):
            self._state = _State.FIRST
        elif self._braces.feed(char):
            self._state = _State.PROSE
            if self._takes_calls:
                return list(map(whole_characters, calls_in(self._braces.value())))
            if not is_tool_call(self._braces.value()):
                return list(map(whole_characters, self._braces.texts()))
        return []

    def _read_quote(self, char: str) -> list[str]:
        """Take a character of a line that began with a quote."""
        if char == "\n":
            items = self._end_quote()
            return items + (self._read_prose(char) if self._state is _State.PROSE else [])
        self._literal.append(char)
        if not self._is_quoted:
            opening = self._literal[0]
            self._is_quoted = char in CLOSING.get(opening, opening) and self._literal[-2] != "\\"
        elif char not in " \t\r,":
            return self._read_again()
        return []

    def _end_quote(self) -> list[str]:
        """End a line that began with a quote: it is one string, or prose."""
        if not self._is_quoted:
            return self._read_again()
        text, self._state = "".join(self._literal).strip(" \t\r,"), _State.PROSE
        try:
            self._strings.append(whole_characters(str(json.loads(text)) if text[0] == '"' else text[1:-1]))
        except ValueError:
            return self._read_again()
        return []

    def _read_again(self) -> list[str]:
        """Read a line that began with a quote as prose."""
        chars, self._literal, self._state, self._may_quote = self._literal, [], _State.PROSE, False
        return [item for char in chars for item in self._read(char)]

    def _read_prose(self, char: str) -> list[str]:
        if char == "\n":
            self._line, self._may_quote = [], True
            return []
        if self._may_quote and (char == '"' or char in CLOSING):
            self._state, self._literal, self._is_quoted = _State.QUOTE, [char], False
            return []
        self._may_quote = self._may_quote and char.isspace()
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
            self._state, self._depth, self._is_nested = _State.FIRST, 0, False
        elif char == "{":
            self._state = _State.OBJECT
            self._braces = Braces()
        return []

    def _read_list(self, char: str) -> list[str]:
        """Take a character between the items of a JSON list."""
        if char in " \t\r\n":
            return []
        if char == '"':
            self._literal = [char]
            self._state = _State.STRING
        elif char in CLOSING:
            self._other = QuotedText(char)
            self._state = _State.OTHER
        elif char == "[" and (self._state is _State.FIRST or self._is_nested):
            self._depth, self._is_nested, self._state = self._depth + 1, True, _State.FIRST
        elif char == "{":
            self._braces = Braces()
            self._state = _State.MEMBER
        elif char == "," and self._state is _State.AFTER:
            self._state = _State.ITEM
        elif char == "]":
            self._state = _State.AFTER if self._depth else _State.END
            self._depth -= 1
        elif self._state is _State.FIRST and not self._num_items:
            self._state, self._problem = _State.PROSE, "item 1 of the list is not a string"
            return self._read_prose(char)
        else:
            return self._break("is not a string")
        return []

    def _end_line(self) -> list[str]:
        text = "".join(self._literal).strip(_MARKUP).removesuffix(",").strip(_MARKUP)
        self._line, self._literal, self._state = [], [], _State.PROSE
        return [whole_characters(text)] if text else []

    def _decode(self) -> list[str]:
        try:
            return [whole_characters(str(json.loads("".join(self._literal), strict=False)))]
        except ValueError as error:
            return self._break(str(error))

    def _break(self, problem: str) -> list[str]:
        """End the list before a broken item. Raises BadReply if that is the first item."""
        if not self._num_items:
            raise _bad(f"item 1 of the list {problem}", self._recent)
        self._state = _State.END
        return []


def _bad(problem: str, recent: Iterable[str]) -> BadReply:
    end = "".join(recent)
    return BadReply(f"{problem}; the reply " + (f"ends {end!r}" if end else "is empty"))
