"""Words of messages: numbers of things, and why a file cannot be read."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return such as "1 worker" or "3 workers"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def why_unreadable(error: Exception) -> str:
    """Return why a file cannot be read, without its path, which the message about it names anyway."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte 0x{error.object[error.start]:02x} is not UTF-8"
    return (isinstance(error, OSError) and error.strerror) or str(error)
