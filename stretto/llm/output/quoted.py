"""Reads texts in quotes that JSON does not know, as models write them in lists: 'a', “a”, ‘a’, «a»; and a
JSON object that stands in the middle of a text, from its `{` to the `}` that closes it.
"""

from __future__ import annotations

import json

CLOSING = {"'": "'", "“": "”", "‘": "’", "„": "“”", "«": "»"}
"""Opening quotes, with the characters that may close each."""


class QuotedText:
    """A text after its opening quote, read character by character.

    A closing quote ends it only before a comma or the end of the list, since an apostrophe looks like one.
    """

    def __init__(self, opening: str) -> None:
        self._closing = CLOSING[opening]
        self._literal: list[str] = []
        self._maybe_end = ""
        self._is_escaped = False

    @property
    def may_be_complete(self) -> bool:
        """Whether the last character, except white space, was a closing quote."""
        return bool(self._maybe_end)

    def feed(self, char: str) -> bool:
        """Take one character; return whether the text had ended before it."""
        if self._maybe_end:
            if char.isspace():
                self._maybe_end += char
                return False
            if char in ",]":
                return True
            for passed in self._maybe_end:
                self._add(passed)
            self._maybe_end = ""
        if self._is_escaped:
            self._is_escaped = False
            self._literal.append(char if char in "'‘’“”„«»" else f"\\{char}")
        elif char == "\\":
            self._is_escaped = True
        elif char in self._closing:
            self._maybe_end = char
        else:
            self._add(char)
        return False

    def text(self) -> str:
        """Return the text, with the meaning that JSON gives to escapes."""
        literal = "".join(self._literal)
        try:
            return str(json.loads(f'"{literal}"', strict=False))
        except ValueError:
            return literal

    def _add(self, char: str) -> None:
        self._literal.append('\\"' if char == '"' else char)


class Braces:
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

    def text(self) -> str:
        """Return the text of the object."""
        return "".join(self._chars)

    def value(self) -> object:
        """Return the object; None if it is not JSON."""
        try:
            return json.loads(self.text(), strict=False)
        except (ValueError, RecursionError):
            return None

    def texts(self) -> list[str]:
        """Return the texts among the values of the object, in order; none if it is not JSON."""
        found = self.value()
        values = found.values() if isinstance(found, dict) else ()
        return [value for value in values if isinstance(value, str) and value.strip()]
