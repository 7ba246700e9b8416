"""What a measurement of an engine is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """The seconds that calls with `units` of work (items or tokens) took: median, fastest and slowest.

    Attributes:
        tokens: estimated tokens of all texts of a call; None where times do not depend on them.
    """

    units: int
    median_s: float
    min_s: float
    max_s: float
    tokens: int | None = None

    @property
    def units_per_s(self) -> float:
        """Units of work per second, from the median time."""
        return self.units / self.median_s
