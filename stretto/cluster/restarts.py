"""The delay before a replica that keeps failing is started again, which grows with its failures.

A start that fails uses up one of a few restarts: a replica that cannot start is given up. An instance that
dies while it serves does not, for what killed it may be a request, and a request is tried a few times only.
An answer forgets all failures before it.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0
MAX_FAILED_STARTS = 8


def delay_s(num_failures: int) -> float:
    """Return the seconds to wait before an instance that failed is started again, or one that may be down is
    tried again.

    It is 0 after the first failure in a row, then 0.1, doubling to 30.
    """
    return 0.0 if num_failures <= 1 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures - 2, 16))


@dataclass(slots=True)
class RestartBudget:
    """A count of the failures of one replica since it last answered a request. It decides
    when the replica is started again or given up.
    """

    num_failures: int = 0
    num_failed_starts: int = 0

    def answered(self) -> None:
        """Set the counts of failures to zero, because an instance of the replica has answered a request."""
        self.num_failures = self.num_failed_starts = 0

    def take(self, *, has_started: bool) -> float | None:
        """Count the failure of an instance of the replica; return the seconds until the replica is started
        again, None if it is given up because too many starts have failed.

        `has_started` is whether the instance ever served.
        """
        self.num_failures += 1
        self.num_failed_starts = 0 if has_started else self.num_failed_starts + 1
        return None if self.num_failed_starts > MAX_FAILED_STARTS else delay_s(self.num_failures)
