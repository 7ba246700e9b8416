"""Metrics in Prometheus's text format, and vLLM's names for them.

A family is a name with its kind; a sample is one line. The names of counters end in `_total` in the text. A
histogram has samples for each of its bounds (those at most that large), their sum and their count.

Source: vLLM 0.32, `vllm/v1/metrics/loggers.py` and `buckets.py`; the Prometheus text format 0.0.4.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stretto.model.errors import BadReply

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Family:
    """The declaration of one metric that a server publishes at `/metrics`: its name, kind and help text.

    Its values are `Sample`s with the same `name`; those of a histogram add endings to the name.
    """

    name: str
    kind: MetricKind
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric with its labels: one line of the text that a server publishes at `/metrics`."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Published: TypeAlias = tuple[Family, list[Sample]]
"""A metric and its values, as a server publishes them."""


def one_value_each(
    values: Mapping[Family, float], labels: Mapping[str, str] | None = None
) -> list[Published]:
    """Return metrics that have one value each, with the same labels."""
    return [(family, [Sample(family.name, value, labels or {})]) for family, value in values.items()]


NUM_RUNNING = Family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
NUM_WAITING = Family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
KV_USED = Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.")
CACHE_CONFIG = Family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
SGLANG_KV_TOKENS = Family(
    "sglang:max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache pool."
)
CACHE_QUERIES = Family(
    "vllm:prefix_cache_queries_total",
    "counter",
    "Prefix cache queries, in terms of number of queried tokens.",
)
CACHE_HITS = Family(
    "vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens."
)
PREEMPTIONS = Family(
    "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."
)
PROMPT_TOKENS = Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.")
OUTPUT_TOKENS = Family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.")
FINISHED = Family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
FIRST_TOKEN_S = Family(
    "vllm:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds."
)
BETWEEN_TOKENS_S = Family(
    "vllm:inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds."
)
REQUEST_S = Family(
    "vllm:e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds."
)
QUEUED_S = Family(
    "vllm:request_queue_time_seconds", "histogram", "Histogram of time spent in WAITING phase for request."
)
FAMILIES = (
    *(NUM_RUNNING, NUM_WAITING, KV_USED, CACHE_CONFIG, CACHE_QUERIES, CACHE_HITS, PREEMPTIONS),
    *(PROMPT_TOKENS, OUTPUT_TOKENS, FINISHED, FIRST_TOKEN_S, BETWEEN_TOKENS_S, REQUEST_S, QUEUED_S),
)
"""Metrics that every server has."""
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


class Histogram:
    """A Prometheus histogram: it counts observed values by upper bounds, given in rising order."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value in the histogram that was observed so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def samples(self, family: Family, labels: Mapping[str, str]) -> list[Sample]:
        """Return the lines of the histogram for `/metrics`: the number of values up to each bound, then their
        count and sum.
        """
        samples, so_far = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            so_far += count
            samples.append(Sample(f"{family.name}_bucket", so_far, {**labels, "le": _number(bound)}))
        samples.append(Sample(f"{family.name}_count", so_far, labels))
        samples.append(Sample(f"{family.name}_sum", self._total, labels))
        return samples


def render(families: Iterable[Published]) -> str:
    """Return metrics and their values in Prometheus's text format, as `/metrics` serves them."""
    lines: list[str] = []
    for family, samples in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in samples]
    return "".join(f"{line}\n" for line in lines)


def read_samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Read the text of a server's `/metrics`, and yield the values of the metrics in `names`, in order.

    Raises:
        BadReply: one of these values is not a finite number.
    """
    for name, labels, value in _SAMPLE.findall(text):
        if name in names:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise BadReply(f"the server's metrics have {name} at {value!r:.100}")
            yield Sample(name, number, {key: _unescaped(said) for key, said in _LABEL.findall(labels)})


def _labels(labels: Mapping[str, str]) -> str:
    said = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{said}}}" if said else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
