"""When a replica that keeps failing is started again: at once, then ever later, and at last never."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0
MAX_RESTARTS = 8
SERVICE_S = 60.0
"""Seconds of service without a break after which earlier restarts no longer count."""


def delay_s(num_failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: 0, then 0.1 doubling to 30."""
    return 0.0 if num_failures <= 1 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (num_failures - 2))


@dataclass(slots=True)
class RestartBudget:
    """Restarts of one replica since it last gave a minute of service."""

    num_restarts: int = 0

    def served(self, seconds: float) -> None:
        """Note service without a break: after a minute of it, the count starts again."""
        if seconds >= SERVICE_S:
            self.num_restarts = 0

    def take(self) -> float | None:
        """Use one restart; return the seconds to wait for it, or None if none is left."""
        if self.num_restarts >= MAX_RESTARTS:
            return None
        self.num_restarts += 1
        return delay_s(self.num_restarts)
