"""Makes texts of users and servers safe to print: control characters are shown, not sent to the terminal."""

from __future__ import annotations

from typing import TextIO

_CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS}


def shown(text: str, stream: TextIO | None) -> str:
    """Return a text in the form in which it is printed to `stream`: if that is a terminal, control characters
    are escaped.
    """
    return text.translate(_ESCAPES) if stream is not None and stream.isatty() else text
