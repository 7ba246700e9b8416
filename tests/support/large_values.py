"""Engines with large values, importable by name so that they can be sent to a process, and apps for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.replica import RunsIn
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit, as_text
from support.runtime_engines import graph

FIND = graph(
    """
    graph find(%chunks: list[chunk], %question: text)
      %vectors = embed(each %chunks) : list[vector] @embedding
      %indexed = ingest(each %chunks, each %vectors) : effect @vectors
      %vector  = embed(%question) : vector @embedding
      %hits    = search(%vector, !indexed) {k=3} : list[hit] @vectors
      return %hits
    """
)
"""Chunks are embedded and stored, then searched. The large values are the vectors of the chunks."""

READ = graph(
    """
    graph read(%chunks: list[chunk], %question: text)
      %vectors = embed(each %chunks) : list[vector] @embedding
      %indexed = ingest(each %chunks, each %vectors) : effect @vectors
      %vector  = embed(%question) : vector @embedding
      %found   = search(%vector, !indexed) {k=12} : list[hit] @vectors
      %scored  = rerank(%question, %found) : list[hit] @rerank
      %best    = aggregate(%scored, %found) {best=9} : list[hit]
      %some    = condition(%found) : list[hit]
      %kv      = prefill([c"Say: ", %scored]) : kv @llm
      %answer  = decode(%kv) {max_tokens=50} : text @llm
      return %answer, %best, %scored, %vectors
    """
)
"""Large values also reach what runs in the scheduler: conditions, prompts, sizes of work, and outputs."""


@dataclass(frozen=True, slots=True)
class EmbedConfig:
    """Configuration of `Embed`. In `folder` it leaves its process id, and that it was killed before."""

    folder: Path
    dies_at: str = ""


class Embed:
    """A batch engine for `embed`, whose vectors depend on the text alone. It is killed once at the text
    `dies_at`.
    """

    def __init__(self, config: EmbedConfig) -> None:
        self._config = config
        (config.folder / "pid").write_text(str(os.getpid()))

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return answer_batch(tasks, {"embed": self._embed})

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...

    def _embed(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._vector(as_text(one.require("texts", object))) for one in applications]

    def _vector(self, text: str) -> Any:
        killed = self._config.folder / "killed"
        if text == self._config.dies_at and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        return np.random.default_rng(seed).standard_normal(384).astype(np.float32)


def own_vectors(_: object) -> MemoryVectors:
    """A vector store with collections of its own."""
    return MemoryVectors(MemoryVectorsConfig())


class Rerank:
    """A batch engine for `rerank`: longer chunks are better."""

    def __init__(self, _: object) -> None: ...

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return answer_batch(tasks, {"rerank": self._rerank})

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...

    def _rerank(self, applications: Sequence[OpApplication]) -> list[object]:
        return [
            [
                replace(hit, score=float(len(hit.chunk.text)))
                for hit in one.require("hits", list)
                if isinstance(hit, Hit)
            ]
            for one in applications
        ]


def engines(folder: Path, *, embedding: RunsIn, vectors: RunsIn, dies_at: str = "") -> list[Deployment]:
    """The engines of `FIND` and `READ`."""
    folder.mkdir(exist_ok=True)
    return [
        deploy("embedding", Embed, EmbedConfig(folder, dies_at), runs_in=embedding, max_batch=64),
        deploy("vectors", own_vectors, None, runs_in=vectors, max_batch=64, keeps_state=True),
        deploy("rerank", Rerank, None, max_batch=64),
        deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm"),
    ]


def chunks(num: int, num_chars: int = 20) -> list[Chunk]:
    """Different chunks of one document."""
    return [Chunk("a.txt", i, f"{i} ".ljust(num_chars + i % 7, "x")) for i in range(num)]
