"""Opens an engines file, for the commands that read tables of it, and tells whether a file has changed."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.wording import why_unreadable
from stretto.schema.tables import Tables

FileMark: TypeAlias = tuple[int, int, int]
"""What changes with a file: its time, its size, and its number."""


def file_mark(path: Path) -> FileMark | None:
    """Return what changes with a file; None while it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_tables(path: Path) -> Tables:
    """Read and parse an engines file (TOML that describes engines).

    Raises:
        ConfigError: the file cannot be read, or is no engines file.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {why_unreadable(cause)}") from cause
    return Tables(text, str(path))
