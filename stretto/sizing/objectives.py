"""Objectives of latency, such as "p95 first_token 2s", and whether measured times meet them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.model.errors import UserError
from stretto.trace.summary import quantile

TIMES: Mapping[str, str] = {
    "first_token": "first token",
    "per_token": "time per token",
    "job": "job",
}
"""The times that objectives limit, with their words for people: from sending a request to the first piece of
its answer, from there to its end for each further token, and from the beginning of a job to its end."""
_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = (*_SHARES, "mean")
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_PARTS = re.compile(r"(\S+)\s+(\S+)\s+(\d+(?:\.\d+)?)\s*([a-z]+)")
_FORM = 'such as "p95 first_token 2s, p95 job 60s"'
_MOST_S = 10**6


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit of one statistic of one time.

    Attributes:
        statistic: one of `STATISTICS`.
        time: a key of `TIMES`.
    """

    statistic: str
    time: str
    limit_s: float

    def value_s(self, seconds: Sequence[float]) -> float:
        """Return the statistic of some times, of which there is at least one."""
        if self.statistic == "mean":
            return statistics.fmean(seconds)
        return quantile(seconds, _SHARES[self.statistic])

    @property
    def share_above(self) -> float | None:
        """Share of the times that may be above the limit; None for the mean."""
        return None if self.statistic == "mean" else 1.0 - _SHARES[self.statistic]

    @property
    def label(self) -> str:
        """The objective without its limit, in words."""
        return f"{self.statistic} {TIMES[self.time]}"

    def __str__(self) -> str:
        return f"{self.label} {shown_s(self.limit_s)}"


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse objectives that are joined by commas.

    Raises:
        UserError: a part is not of the form "statistic time limit"; the message names it, and what is known.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"--slo: there is no objective; give some, {_FORM}")
    found = tuple(map(_parse, parts))
    named = [(one.statistic, one.time) for one in found]
    if twice := next((pair for pair in named if named.count(pair) > 1), None):
        raise UserError(f"--slo: {' '.join(twice)} is limited twice")
    return found


def _parse(part: str) -> Objective:
    matched = _PARTS.fullmatch(part)
    if matched is None:
        raise UserError(f"--slo {part!r} is not a statistic, a time and a limit with its unit, {_FORM}")
    statistic, time, number, unit = matched.groups()
    for word, known, what in (
        (statistic, STATISTICS, "statistic"),
        (time, TIMES, "time"),
        (unit, _UNITS_S, "unit"),
    ):
        if word not in known:
            raise UserError(f"--slo {part!r}: {word!r} is no {what}; there are {', '.join(known)}")
    limit_s = float(number) * _UNITS_S[unit]
    if not 0 < limit_s <= _MOST_S:
        raise UserError(f"--slo {part!r}: the limit must be above 0 and at most {_MOST_S} s")
    return Objective(statistic, time, limit_s)


def shown_s(seconds: float) -> str:
    """Return seconds as people write them."""
    if math.isinf(seconds):
        return "without end"
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
