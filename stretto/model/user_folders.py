"""The folders of the user in which Stretto keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path

from stretto.model.errors import UserError


def cache_dir() -> Path:
    """Return the folder of what can be made or fetched again: measured latency profiles and models.

    Raises:
        UserError: there is no home folder.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """Return the folder where named collections of documents are stored.

    Raises:
        UserError: there is no home folder.
    """
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, in_home: str) -> Path:
    try:
        return Path(os.environ.get(variable) or Path.home() / in_home) / "stretto"
    except RuntimeError as error:
        raise UserError(f"there is no home folder: set HOME or {variable}") from error
