"""The `/metrics` of an emulated embedding or reranking server."""

from __future__ import annotations

from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.lag import LagMeter
from stretto.emulate.lag_metrics import lag_samples
from stretto.wire import metrics


def render_batch_metrics(replica: EmulatedBatches, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`: the load under vLLM's names, and the lag."""
    labels = {"engine": "0", "model_name": model}
    load = {metrics.NUM_RUNNING: replica.num_running, metrics.NUM_WAITING: replica.num_waiting}
    return metrics.render(
        [*metrics.one_value_each(load, labels), *lag_samples(lag, replica.slipped_s, labels)]
    )
