"""Kinds of fields in the lines of agents' traces."""

from __future__ import annotations

from stretto.trace.row_checks import FieldKind

_MAX_MS = 10**12

MS = FieldKind(
    f"a time from 0 to {_MAX_MS} ms", lambda value: type(value) in (int, float) and 0 <= value <= _MAX_MS
)
MESSAGES = FieldKind(
    "a list of messages, each with a role",
    lambda value: (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in value)
    ),
)
