"""Metrics that only emulated servers have: how far behind schedule their process is."""

from __future__ import annotations

from stretto.emulate.core_wait import core_wait_s
from stretto.emulate.lag import LagMeter
from stretto.wire import metric_table as table
from stretto.wire.metrics import Published, one_value_each


def lag_samples(lag: LagMeter, slipped_s: float) -> list[Published]:
    """Return the metrics of lag, which are those of all replicas of the process."""
    values = {
        table.LAG_RATIO: lag.ratio,
        table.LATE_S: lag.late_s,
        table.WAITED_S: lag.waited_s,
        table.MOST_LATE_S: lag.most_s,
        table.SLIPPED_S: slipped_s,
        table.CORE_WAIT_S: core_wait_s(),
    }
    return one_value_each(values)
