"""The conditions by which passes are weighed: engines and their load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.graph.passes.base import Profiles


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a prediction: costs of engines, the cores where they compute, and their load now.

    Attributes:
        profiles: costs of each engine, by name.
        instances: number of instances of an engine, if it is not 1.
        cores: number of cores that the engines in `threads` share.
        threads: number of these cores that an engine computes on. Engines that compute elsewhere are left
            out.
        num_others: number of other queries that run now, roughly: see `rounded_load`.
    """

    profiles: Profiles = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)
    cores: int = 1
    threads: Mapping[str, int] = field(default_factory=dict)
    num_others: int = 0


def rounded_load(num_queries: int) -> int:
    """Return a number of queries rounded down to a power of two, or 0, so that few loads are told apart."""
    return 1 << num_queries.bit_length() - 1 if num_queries > 0 else 0
