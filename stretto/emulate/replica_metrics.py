"""The `/metrics` of emulated servers: those of vLLM, and what only an emulated one has."""

from __future__ import annotations

from collections.abc import Iterator

from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.lag import LagMeter
from stretto.emulate.lag_metrics import lag_samples
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.wire import metrics
from stretto.wire.metrics import Family, Histogram, Published, Sample


def render_metrics(replica: EmulatedLLM, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`. The lag is that of all replicas of the process."""
    return metrics.render(_families(replica, model, lag))


def _families(replica: EmulatedLLM, model: str, lag: LagMeter) -> Iterator[Published]:
    labels = {"engine": "0", "model_name": model}
    counts, config = replica.counts, replica.model.scheduler
    values: dict[Family, float] = {
        metrics.NUM_RUNNING: replica.num_running,
        metrics.NUM_WAITING: replica.num_waiting,
        metrics.KV_USED: replica.kv_used,
        metrics.CACHE_QUERIES: counts.num_prompt_tokens,
        metrics.CACHE_HITS: counts.num_cached_tokens,
        metrics.PREEMPTIONS: replica.num_preemptions,
        metrics.PROMPT_TOKENS: counts.num_prompt_tokens,
        metrics.OUTPUT_TOKENS: counts.num_output_tokens,
    }
    histograms: dict[Family, Histogram] = {
        metrics.FIRST_TOKEN_S: counts.first_token_s,
        metrics.BETWEEN_TOKENS_S: counts.between_tokens_s,
        metrics.REQUEST_S: counts.request_s,
        metrics.QUEUED_S: counts.queued_s,
    }
    cache = {
        "block_size": str(config.block_tokens),
        "enable_prefix_caching": str(replica.model.caches),
        "num_gpu_blocks": str(config.num_blocks),
    }
    for family in metrics.FAMILIES:
        if family in histograms:
            yield family, histograms[family].samples(family, labels)
        elif family is metrics.CACHE_CONFIG:
            yield family, [Sample(family.name, 1.0, {**cache, **labels})]
        elif family is metrics.FINISHED:
            finishes = counts.num_finished_by.items()
            yield family, [Sample(family.name, n, {**labels, "finished_reason": why}) for why, n in finishes]
        else:
            yield family, [Sample(family.name, values[family], labels)]
    yield from lag_samples(lag, replica.slipped_s, labels)


def render_batch_metrics(replica: EmulatedBatches, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`: the load under vLLM's names, and the lag."""
    labels = {"engine": "0", "model_name": model}
    load = {metrics.NUM_RUNNING: replica.num_running, metrics.NUM_WAITING: replica.num_waiting}
    return metrics.render(
        [*metrics.one_value_each(load, labels), *lag_samples(lag, replica.slipped_s, labels)]
    )
