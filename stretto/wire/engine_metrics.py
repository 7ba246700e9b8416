"""Metrics that vLLM and SGLang publish at `/metrics`, which emulated servers have and workers are asked for.

Source: vLLM 0.32, `vllm/v1/metrics/loggers.py` and `buckets.py`; SGLang's documentation "Production Metrics".
"""

from __future__ import annotations

from stretto.wire.metrics import Family

_VLLM = ("engine", "model_name")


FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)


BETWEEN_TOKENS_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)


REQUEST_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)


VLLM_NUM_RUNNING = Family(
    "vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", _VLLM
)


VLLM_NUM_WAITING = Family(
    "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", _VLLM
)


VLLM_KV_USED = Family(
    "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", _VLLM
)


VLLM_CACHE_CONFIG = Family(
    "vllm:cache_config_info",
    "gauge",
    "Information of the LLMEngine CacheConfig",
    ("block_size", "enable_prefix_caching", "num_gpu_blocks", *_VLLM),
)


VLLM_CACHE_QUERIES = Family(
    "vllm:prefix_cache_queries_total",
    "counter",
    "Prefix cache queries, in terms of number of queried tokens.",
    _VLLM,
)


VLLM_CACHE_HITS = Family(
    "vllm:prefix_cache_hits_total",
    "counter",
    "Prefix cache hits, in terms of number of cached tokens.",
    _VLLM,
)


VLLM_PREEMPTIONS = Family(
    "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", _VLLM
)


VLLM_PROMPT_TOKENS = Family(
    "vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", _VLLM
)


VLLM_OUTPUT_TOKENS = Family(
    "vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", _VLLM
)


VLLM_FINISHED = Family(
    "vllm:request_success_total",
    "counter",
    "Count of successfully processed requests.",
    (*_VLLM, "finished_reason"),
)


VLLM_FIRST_TOKEN_S = Family(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "Histogram of time to first token in seconds.",
    _VLLM,
    FIRST_TOKEN_BOUNDS_S,
)


VLLM_BETWEEN_TOKENS_S = Family(
    "vllm:inter_token_latency_seconds",
    "histogram",
    "Histogram of inter-token latency in seconds.",
    _VLLM,
    BETWEEN_TOKENS_BOUNDS_S,
)


VLLM_REQUEST_S = Family(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "Histogram of e2e request latency in seconds.",
    _VLLM,
    REQUEST_BOUNDS_S,
)


VLLM_QUEUED_S = Family(
    "vllm:request_queue_time_seconds",
    "histogram",
    "Histogram of time spent in WAITING phase for request.",
    _VLLM,
    REQUEST_BOUNDS_S,
)


VLLM = (
    *(VLLM_NUM_RUNNING, VLLM_NUM_WAITING, VLLM_KV_USED, VLLM_CACHE_CONFIG, VLLM_CACHE_QUERIES),
    *(VLLM_CACHE_HITS, VLLM_PREEMPTIONS, VLLM_PROMPT_TOKENS, VLLM_OUTPUT_TOKENS, VLLM_FINISHED),
    *(VLLM_FIRST_TOKEN_S, VLLM_BETWEEN_TOKENS_S, VLLM_REQUEST_S, VLLM_QUEUED_S),
)
"""Metrics that every emulated server has that speaks as vLLM."""


_SGLANG = ("model_name",)


SGLANG_NUM_RUNNING = Family("sglang:num_running_reqs", "gauge", "The number of running requests.", _SGLANG)


SGLANG_NUM_WAITING = Family(
    "sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", _SGLANG
)


SGLANG_NUM_USED = Family("sglang:num_used_tokens", "gauge", "The number of used tokens.", _SGLANG)


SGLANG_USED = Family("sglang:token_usage", "gauge", "The token usage.", _SGLANG)


SGLANG_HIT_RATE = Family("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", _SGLANG)


SGLANG_PROMPT_TOKENS = Family(
    "sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.", _SGLANG
)


SGLANG_OUTPUT_TOKENS = Family(
    "sglang:generation_tokens_total", "counter", "Number of generation tokens processed.", _SGLANG
)


SGLANG_CACHED_TOKENS = Family(
    "sglang:cached_tokens_total", "counter", "Number of cached prompt tokens.", _SGLANG
)


SGLANG_NUM_REQUESTS = Family("sglang:num_requests_total", "counter", "Number of requests processed.", _SGLANG)


SGLANG_FIRST_TOKEN_S = Family(
    "sglang:time_to_first_token_seconds",
    "histogram",
    "Histogram of time to first token in seconds.",
    _SGLANG,
    FIRST_TOKEN_BOUNDS_S,
)


SGLANG_BETWEEN_TOKENS_S = Family(
    "sglang:inter_token_latency_seconds",
    "histogram",
    "Histogram of inter-token latency in seconds.",
    _SGLANG,
    BETWEEN_TOKENS_BOUNDS_S,
)


SGLANG_REQUEST_S = Family(
    "sglang:e2e_request_latency_seconds",
    "histogram",
    "Histogram of End-to-end request latency in seconds",
    _SGLANG,
    REQUEST_BOUNDS_S,
)


SGLANG_KV_TOKENS = Family(
    "sglang:max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache pool.", _SGLANG
)


SGLANG = (
    *(SGLANG_NUM_RUNNING, SGLANG_NUM_WAITING, SGLANG_NUM_USED, SGLANG_USED, SGLANG_HIT_RATE),
    *(SGLANG_PROMPT_TOKENS, SGLANG_OUTPUT_TOKENS, SGLANG_CACHED_TOKENS, SGLANG_NUM_REQUESTS),
    *(SGLANG_FIRST_TOKEN_S, SGLANG_BETWEEN_TOKENS_S, SGLANG_REQUEST_S, SGLANG_KV_TOKENS),
)
