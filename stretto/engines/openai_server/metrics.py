"""Readers of a server's `/metrics`: its load and the size of its prefix cache.

The names are vLLM's (older ones too) and SGLang's. A server with several engines has a line for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.model.errors import BadReply
from stretto.wire import engine_metrics
from stretto.wire.metrics import read_samples

_RUNNING = (engine_metrics.VLLM_NUM_RUNNING.name, engine_metrics.SGLANG_NUM_RUNNING.name)
_WAITING = (engine_metrics.VLLM_NUM_WAITING.name, engine_metrics.SGLANG_NUM_WAITING.name)

_BLOCK_TOKENS = 16  # vLLM's default


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Properties of an LLM server's prefix cache; None where the server does not say.

    Attributes:
        block_tokens: tokens of a block.
        num_blocks: number of blocks in the KV memory.
        is_on: whether prefixes are cached.
    """

    block_tokens: int = _BLOCK_TOKENS
    num_blocks: int | None = None
    is_on: bool | None = None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The numbers of requests that run and wait at a server, of all its clients together."""

    num_running: int
    num_waiting: int


def read_load(metrics: str) -> ServerLoad:
    """Read a server's load from the text of its `/metrics`.

    Raises:
        BadReply: the text does not tell one of these.
    """
    running, waiting = (
        [sample.value for sample in read_samples(metrics, names)] for names in (_RUNNING, _WAITING)
    )
    if not (running and waiting):
        raise BadReply(f"the server's metrics do not tell its load: {metrics[:100]!r}")
    return ServerLoad(round(sum(running)), round(sum(waiting)))


def read_cache_config(metrics: str) -> CacheConfig:
    """Read the properties of a server's prefix cache from the text of its `/metrics`.

    SGLang tells the number of tokens, in one sample for each rank, which have equal shares of every sequence.
    """
    for sample in read_samples(metrics, (engine_metrics.VLLM_CACHE_CONFIG.name,)):
        return CacheConfig(
            _count(sample.labels.get("block_size")) or _BLOCK_TOKENS,
            _count(sample.labels.get("num_gpu_blocks")),
            {"True": True, "False": False}.get(sample.labels.get("enable_prefix_caching", "")),
        )
    for sample in read_samples(metrics, (engine_metrics.SGLANG_KV_TOKENS.name,)):
        if 0 < sample.value < 1e15:
            return CacheConfig(num_blocks=int(sample.value) // _BLOCK_TOKENS)
    return CacheConfig()


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 20 and int(text) > 0 else None
