"""Servers that speak OpenAI's API as vLLM does, for tests that all of them must pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from benchmarks.common.checkpoint import Shape, build_checkpoint
from benchmarks.common.vllm_server import MODEL as VLLM_MODEL
from benchmarks.common.vllm_server import NOT_INSTALLED, find_vllm
from benchmarks.common.vllm_server import serving as serving_vllm
from support.command_line import running
from support.openai_speaker import Speaker
from support.openai_stub import MODEL as STUB_MODEL
from support.tiny_checkpoint import CHAT_TEMPLATE, TEXT

_SGLANG_NAMES = {
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    **{f"vllm:{name}": f"sglang:{name}" for name in ("prompt_tokens_total", "generation_tokens_total")},
    "vllm:time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
}
_SHAPE = Shape(
    hidden=128, intermediate=192, layers=2, heads=2, kv_heads=1, vocabulary=1000, context_tokens=2048
)
"""The smallest heads that vLLM's CPU attention takes have 32 dimensions."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `metric_names` has those of its metrics that are not vLLM's, by vLLM's names."""

    url: str
    model: str
    metric_names: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def stub(folder: Path) -> Iterator[Server]:
    """The tests' own server."""
    with running(Speaker().stub) as url:
        yield Server(url, STUB_MODEL)


@contextmanager
def vllm(folder: Path) -> Iterator[Server]:
    """A real vLLM with a tiny random model. Skips the test where vLLM is not installed."""
    found = find_vllm()
    if found is None:
        pytest.skip(NOT_INSTALLED)
    checkpoint = build_checkpoint(folder, TEXT.splitlines(), shape=_SHAPE)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({**settings, "chat_template": CHAT_TEMPLATE})
    )
    with serving_vllm(found, checkpoint, dtype="float32", num_threads=1, say=lambda _: None) as url:
        yield Server(url, VLLM_MODEL)


@contextmanager
def emulated(folder: Path, dialect: str = "vllm") -> Iterator[Server]:
    """An emulated server. Skips the test where the packages that it needs are not installed."""
    pytest.importorskip("uvloop")
    pytest.importorskip("httptools")
    from support.emulated import MODEL, emulating, fleet_of

    with emulating(fleet_of(max_context_tokens=2048, block_tokens=32, dialect=dialect)) as (url,):
        yield Server(url, MODEL, _SGLANG_NAMES if dialect == "sglang" else {})


ROWS: Mapping[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "stub": stub,
    "emulated": emulated,
    "emulated-sglang": partial(emulated, dialect="sglang"),
    "vllm": vllm,
}
