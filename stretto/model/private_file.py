"""Files that hold what users have asked and were answered, so only their owner may read them."""

from __future__ import annotations

import os


def private(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open`; a new one has mode 0600. One that exists keeps its mode."""
    return os.open(path, flags, 0o600)
