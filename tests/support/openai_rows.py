"""Servers that speak OpenAI's API as vLLM does, for tests that all of them must pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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

_SHAPE = Shape(
    hidden=128, intermediate=192, layers=2, heads=2, kv_heads=1, vocabulary=1000, context_tokens=2048
)
"""The smallest heads that vLLM's CPU attention takes have 32 dimensions."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    model: str


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


ROWS: Mapping[str, Callable[[Path], AbstractContextManager[Server]]] = {"stub": stub, "vllm": vllm}
