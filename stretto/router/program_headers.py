"""The program that a request belongs to, by the headers that its client sends.

A program is what a person waits for, such as the session of an agent. What a header says moves order and room
alone: a wrong name costs time and never changes an answer.
"""

from __future__ import annotations

from stretto.http.client.headers import Headers, value_of
from stretto.router.messages import NO_PROGRAM, NamedProgram

_NAME, _PARENT, _FINAL = b"x-stretto-program", b"x-stretto-program-parent", b"x-stretto-program-final"
_SESSION = b"x-session-id"
_MOST_BYTES = 256
"""Bytes of the name of a program; the rest of a longer one is left out."""
_YES = (b"1", b"true", b"yes")


def read_program(headers: Headers) -> NamedProgram:
    """Return the program that the headers of a request name: `x-stretto-program`, else `x-session-id`, with
    `x-stretto-program-parent` and `x-stretto-program-final`.
    """
    name = value_of(headers, _NAME) or value_of(headers, _SESSION)
    if not name:
        return NO_PROGRAM
    parent = value_of(headers, _PARENT) or b""
    is_final = (value_of(headers, _FINAL) or b"").strip().lower() in _YES
    return NamedProgram(
        name[:_MOST_BYTES].decode("latin-1"), parent[:_MOST_BYTES].decode("latin-1"), is_final
    )
