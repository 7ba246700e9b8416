"""The `/metrics` of emulated servers: those of vLLM or SGLang, and what only an emulated one has: how far
behind schedule its process is.

Source: SGLang's documentation "Production Metrics".
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.core_wait import core_wait_s
from stretto.emulate.lag import LagMeter
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.wire import engine_metrics
from stretto.wire import metric_table as table
from stretto.wire.metrics import Family, Histogram, Published, one_value_each, render


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


def render_metrics(replica: EmulatedLLM, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`. The lag is that of all replicas of the process."""
    return render(_families(replica, model, lag))


def _families(replica: EmulatedLLM, model: str, lag: LagMeter) -> Iterator[Published]:
    labels = "0", model
    counts, config = replica.counts, replica.model.scheduler
    values: dict[Family, float] = {
        engine_metrics.VLLM_NUM_RUNNING: len(replica.scheduler.running),
        engine_metrics.VLLM_NUM_WAITING: len(replica.scheduler.waiting),
        engine_metrics.VLLM_KV_USED: replica.kv_used,
        engine_metrics.VLLM_CACHE_QUERIES: counts.num_prompt_tokens,
        engine_metrics.VLLM_CACHE_HITS: counts.num_cached_tokens,
        engine_metrics.VLLM_PREEMPTIONS: replica.scheduler.num_preemptions,
        engine_metrics.VLLM_PROMPT_TOKENS: counts.num_prompt_tokens,
        engine_metrics.VLLM_OUTPUT_TOKENS: counts.num_output_tokens,
    }
    histograms: dict[Family, Histogram] = {
        engine_metrics.VLLM_FIRST_TOKEN_S: counts.first_token_s,
        engine_metrics.VLLM_BETWEEN_TOKENS_S: counts.between_tokens_s,
        engine_metrics.VLLM_REQUEST_S: counts.request_s,
        engine_metrics.VLLM_QUEUED_S: counts.queued_s,
    }
    cache = str(config.block_tokens), str(replica.model.caches), str(config.num_blocks)
    for family in engine_metrics.VLLM:
        if family in histograms:
            yield family, histograms[family].samples(family, *labels)
        elif family is engine_metrics.VLLM_CACHE_CONFIG:
            yield family, [family.sample(1.0, *cache, *labels)]
        elif family is engine_metrics.VLLM_FINISHED:
            finishes = counts.num_finished_by.items()
            yield family, [family.sample(n, *labels, why) for why, n in finishes]
        else:
            yield family, [family.sample(values[family], *labels)]
    yield from lag_samples(lag, replica.clock.slipped_s)


def render_batch_metrics(replica: EmulatedBatches, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`: the load under vLLM's names, and the lag."""
    labels = "0", model
    load = {
        engine_metrics.VLLM_NUM_RUNNING: replica.num_running,
        engine_metrics.VLLM_NUM_WAITING: replica.num_waiting,
    }
    return render([*one_value_each(load, *labels), *lag_samples(lag, replica.clock.slipped_s)])


def render_sglang_metrics(replica: EmulatedLLM, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`. The lag is that of all replicas of the process."""
    counts, config = replica.counts, replica.model.scheduler
    values: dict[Family, float] = {
        engine_metrics.SGLANG_NUM_RUNNING: len(replica.scheduler.running),
        engine_metrics.SGLANG_NUM_WAITING: len(replica.scheduler.waiting),
        engine_metrics.SGLANG_NUM_USED: round(replica.kv_used * config.num_blocks) * config.block_tokens,
        engine_metrics.SGLANG_USED: replica.kv_used,
        engine_metrics.SGLANG_KV_TOKENS: config.num_blocks * config.block_tokens,
        engine_metrics.SGLANG_HIT_RATE: counts.num_cached_tokens / max(1, counts.num_prompt_tokens),
        engine_metrics.SGLANG_PROMPT_TOKENS: counts.num_prompt_tokens,
        engine_metrics.SGLANG_OUTPUT_TOKENS: counts.num_output_tokens,
        engine_metrics.SGLANG_CACHED_TOKENS: counts.num_cached_tokens,
        engine_metrics.SGLANG_NUM_REQUESTS: sum(counts.num_finished_by.values()),
    }
    histograms: dict[Family, Histogram] = {
        engine_metrics.SGLANG_FIRST_TOKEN_S: counts.first_token_s,
        engine_metrics.SGLANG_BETWEEN_TOKENS_S: counts.between_tokens_s,
        engine_metrics.SGLANG_REQUEST_S: counts.request_s,
    }
    return render(
        [
            *one_value_each(values, model),
            *((family, histogram.samples(family, model)) for family, histogram in histograms.items()),
            *lag_samples(lag, replica.clock.slipped_s),
        ]
    )
