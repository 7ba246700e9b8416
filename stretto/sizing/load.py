"""Loads: so many sessions at once, or so many jobs in a second; and when a run of a load is measured.

Jobs are drawn from recorded traffic. A load of sessions keeps so many jobs running: when one ends, another
one begins. A load of a rate lets jobs arrive, at recorded gaps or at random. Both begin with jobs in their
middle, as one finds them at any time. Equal seeds draw equal jobs at all loads, so that loads can be
compared: a higher load has the jobs of a lower one and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stretto.sizing.measured import Window
from stretto.sizing.objectives import Objective
from stretto.sizing.traffic import Traffic

Unit: TypeAlias = Literal["sessions", "per_s"]
_WARM = 0.5
"""Seconds before the measured ones, as a share of these."""
_LEAST_S = 20.0
_LEAST_WARM_S = 45.0
"""Caches are empty at first. A server computes what its KV memory holds in about this time."""
LONGEST = 4
"""Measured times after which a run ends, unless jobs may take longer within the objectives."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load of some traffic.

    Attributes:
        amount: number of sessions at once, or of jobs that arrive in a second.
    """

    unit: Unit
    amount: float

    def jobs_per_s(self, traffic: Traffic) -> float:
        """Return the rate at which jobs begin, if they take their nominal time."""
        return self.amount if self.unit == "per_s" else self.amount / traffic.mean_s

    def window(self, traffic: Traffic, objectives: Sequence[Objective], num_samples: int) -> Window:
        """Return the times in which about `num_samples` requests begin, and jobs if an objective limits
        them.
        """
        jobs_per_s = self.jobs_per_s(traffic)
        wanted_s = num_samples / (jobs_per_s * traffic.requests_per_job)
        if any(one.time == "job" for one in objectives):
            wanted_s = max(wanted_s, num_samples / 4 / jobs_per_s)
        length_s = max(_LEAST_S, wanted_s)
        warm_s = max(_LEAST_WARM_S, _WARM * length_s)
        most_s = max(one.limit_s for one in objectives)
        return Window(warm_s, warm_s + length_s, warm_s + max(LONGEST * length_s, length_s + 2 * most_s))
