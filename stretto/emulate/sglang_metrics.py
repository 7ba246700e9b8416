"""The `/metrics` of an emulated SGLang server.

Source: SGLang's documentation "Production Metrics".
"""

from __future__ import annotations

from stretto.emulate.lag import LagMeter
from stretto.emulate.lag_metrics import lag_samples
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.wire.metrics import SGLANG_KV_TOKENS, Family, Histogram, one_value_each, render

NUM_RUNNING = Family("sglang:num_running_reqs", "gauge", "The number of running requests.")
NUM_WAITING = Family("sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.")
NUM_USED = Family("sglang:num_used_tokens", "gauge", "The number of used tokens.")
USED = Family("sglang:token_usage", "gauge", "The token usage.")
HIT_RATE = Family("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.")
PROMPT_TOKENS = Family("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
OUTPUT_TOKENS = Family("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.")
CACHED_TOKENS = Family("sglang:cached_tokens_total", "counter", "Number of cached prompt tokens.")
NUM_REQUESTS = Family("sglang:num_requests_total", "counter", "Number of requests processed.")
FIRST_TOKEN_S = Family(
    "sglang:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds."
)
BETWEEN_TOKENS_S = Family(
    "sglang:inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds."
)
REQUEST_S = Family(
    "sglang:e2e_request_latency_seconds", "histogram", "Histogram of End-to-end request latency in seconds"
)


def render_sglang_metrics(replica: EmulatedLLM, model: str, lag: LagMeter) -> str:
    """Return the text of `/metrics`. The lag is that of all replicas of the process."""
    labels = {"model_name": model}
    counts, config = replica.counts, replica.model.scheduler
    values: dict[Family, float] = {
        NUM_RUNNING: replica.num_running,
        NUM_WAITING: replica.num_waiting,
        NUM_USED: round(replica.kv_used * config.num_blocks) * config.block_tokens,
        USED: replica.kv_used,
        SGLANG_KV_TOKENS: config.num_blocks * config.block_tokens,
        HIT_RATE: counts.num_cached_tokens / max(1, counts.num_prompt_tokens),
        PROMPT_TOKENS: counts.num_prompt_tokens,
        OUTPUT_TOKENS: counts.num_output_tokens,
        CACHED_TOKENS: counts.num_cached_tokens,
        NUM_REQUESTS: sum(counts.num_finished_by.values()),
    }
    histograms: dict[Family, Histogram] = {
        FIRST_TOKEN_S: counts.first_token_s,
        BETWEEN_TOKENS_S: counts.between_tokens_s,
        REQUEST_S: counts.request_s,
    }
    return render(
        [
            *one_value_each(values, labels),
            *((family, histogram.samples(family, labels)) for family, histogram in histograms.items()),
            *lag_samples(lag, replica.slipped_s, labels),
        ]
    )
