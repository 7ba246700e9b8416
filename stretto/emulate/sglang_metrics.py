"""The `/metrics` of an emulated SGLang server.

Source: SGLang's documentation "Production Metrics".
"""

from __future__ import annotations

from stretto.emulate.lag import LagMeter
from stretto.emulate.lag_metrics import lag_samples
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.wire import engine_metrics
from stretto.wire.metrics import Family, Histogram, one_value_each, render


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
