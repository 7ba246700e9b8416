"""Reads a JSON object that stands in the middle of a text, from its `{` to the `}` that closes it."""

from __future__ import annotations

import json


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
