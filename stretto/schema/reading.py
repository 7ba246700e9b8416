"""Opens an engines file, for the commands that read tables of it."""

from __future__ import annotations

from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.schema.tables import Tables


def read_tables(path: Path) -> Tables:
    """Read and parse an engines file (TOML that describes engines).

    Raises:
        ConfigError: the file cannot be read, or is no engines file.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
    return Tables(text, str(path))
