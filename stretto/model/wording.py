"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return such as "1 worker" or "3 workers"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
