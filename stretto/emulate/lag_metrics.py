"""Metrics that only emulated servers have: how far behind schedule their process is."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.emulate.core_wait import core_wait_s
from stretto.emulate.lag import LagMeter
from stretto.wire.metrics import Family, Published, one_value_each

LAG_RATIO = Family(
    "stretto_emulate:lag_ratio",
    "gauge",
    "Seconds that parts of answers came late per second that clients waited, in the last ten seconds.",
)
LATE_S = Family(
    "stretto_emulate:late_seconds_total", "counter", "Real seconds that parts of answers came late, summed."
)
WAITED_S = Family(
    "stretto_emulate:waited_seconds_total", "counter", "Real seconds that clients waited for them, summed."
)
MOST_LATE_S = Family(
    "stretto_emulate:most_late_seconds", "gauge", "Real seconds that the latest of all parts came late."
)
SLIPPED_S = Family(
    "stretto_emulate:slipped_seconds_total",
    "counter",
    "Real seconds by which all that was planned was put off, because the machine could not keep up.",
)
CORE_WAIT_S = Family(
    "stretto_emulate:core_wait_seconds_total",
    "counter",
    "Real seconds that the servers were ready to run while other programs used the cores.",
)


def lag_samples(lag: LagMeter, slipped_s: float, labels: Mapping[str, str]) -> list[Published]:
    """Return the metrics of lag, which are those of all replicas of the process."""
    values = {
        LAG_RATIO: lag.ratio,
        LATE_S: lag.late_s,
        WAITED_S: lag.waited_s,
        MOST_LATE_S: lag.most_s,
        SLIPPED_S: slipped_s,
        CORE_WAIT_S: core_wait_s(),
    }
    return one_value_each(values, labels)
