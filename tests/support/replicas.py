"""Replicas that are never run, for tests of what decides about them."""

from __future__ import annotations

from typing import Any

from stretto.model.replica import Replica


def nothing(config: object) -> object:
    """Stand in for an executable."""
    return config


def replica(**fields: Any) -> Replica:
    """Return a replica of the executable `nothing`."""
    return Replica(**{"executable": nothing, **fields})
