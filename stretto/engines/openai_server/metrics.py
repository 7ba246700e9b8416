"""What a server's `/metrics` says of its load and its prefix cache.

The names are vLLM's (older ones too) and SGLang's. A server with several engines has a line for each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stretto.cluster.messages import InstanceLoad
from stretto.errors import BadReply

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_CACHE_CONFIG = ("vllm:cache_config_info",)

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


_BLOCK_TOKENS = 16  # vLLM's default


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The server's prefix cache. `is_on` is None where nobody says."""

    block_tokens: int = _BLOCK_TOKENS
    num_blocks: int | None = None
    is_on: bool | None = None


def read_load(metrics: str) -> InstanceLoad:
    """The load, from the text of `/metrics`.

    Raises:
        BadReply: it does not say.
    """
    running, waiting, used = (
        [value for _, value in _samples(metrics, names)] for names in (_RUNNING, _WAITING, _KV_USED)
    )
    if not (running and waiting and used):
        raise BadReply(f"the server's metrics do not tell its load: {metrics[:100]!r}")
    return InstanceLoad(round(sum(running)), round(sum(waiting)), sum(used) / len(used))


def read_cache_config(metrics: str) -> CacheConfig:
    """What is known of the prefix cache."""
    for labels, _ in _samples(metrics, _CACHE_CONFIG):
        found = dict(_LABEL.findall(labels))
        return CacheConfig(
            _count(found.get("block_size")) or _BLOCK_TOKENS,
            _count(found.get("num_gpu_blocks")),
            {"True": True, "False": False}.get(found.get("enable_prefix_caching", "")),
        )
    return CacheConfig()


def _samples(metrics: str, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name, labels, value in _SAMPLE.findall(metrics):
        if name in names:
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise BadReply(f"the server's metrics have {name} at {value!r:.100}")
            yield labels, number


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 20 and int(text) > 0 else None
