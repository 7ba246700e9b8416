"""Ways to embed texts with all-MiniLM-L6-v2. Each runs in a process of its own, which measures itself."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.indexing.onnx_int8 import load_onnx_int8
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.batch.local_models import minilm_path
from stretto.model.tasks import Task

Vectors: TypeAlias = NDArray[np.float32]
Embed: TypeAlias = Callable[[Sequence[str]], Vectors]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to embed texts.

    Attributes:
        load: returns the function that embeds texts; `folder` is where it may write.
        note: how it is configured.
    """

    name: str
    load: Callable[[Path], Embed]
    note: str


def ours(dtype: str, num_threads: int | None) -> Callable[[Path], Embed]:
    """Return the loader of Stretto's embedding engine."""
    return _Ours(EmbeddingConfig(dtype=dtype, num_threads=num_threads))


@dataclass(frozen=True, slots=True)
class _Ours:
    config: EmbeddingConfig

    def __call__(self, folder: Path) -> Embed:
        engine = Embedding(self.config)

        def embed(texts: Sequence[str]) -> Vectors:
            task = Task(0, "q", "vectors", "embed", {"texts": list(texts)}, {}, len(texts), ("texts",))
            found: Any = engine.run([task])[0]
            return np.stack(found)

        return embed


@dataclass(frozen=True, slots=True)
class SentenceTransformers:
    """The loader of sentence-transformers as its manual shows it: default batches and threads."""

    dtype: str

    def __call__(self, folder: Path) -> Embed:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(
            str(minilm_path()), device="cpu", local_files_only=True, model_kwargs={"dtype": self.dtype}
        )

        def embed(texts: Sequence[str]) -> Vectors:
            found = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
            return np.asarray(found, dtype=np.float32)

        return embed


FLOAT32 = "stretto, float32"
DEFAULT = "stretto"
PLAIN = "sentence-transformers"
ONNX = "onnxruntime, int8"

CONTESTANTS = (
    Contestant(DEFAULT, ours("auto", None), "as it is by default"),
    Contestant("stretto, one thread", ours("auto", 1), "as by default while another engine is busy"),
    Contestant(FLOAT32, ours("float32", None), "the setting dtype='float32'"),
    Contestant(PLAIN, SentenceTransformers("float32"), "encode(texts): batches of 32, torch's threads"),
    Contestant(f"{PLAIN}, bfloat16", SentenceTransformers("bfloat16"), "the same with bfloat16 weights"),
    Contestant(ONNX, load_onnx_int8, "exported and quantised here: dynamic, 8 bits; batches of 32 by length"),
)


@dataclass(slots=True)
class Running:
    """A contestant in its process.

    Attributes:
        seconds: wall clock of each timed call.
        cpu_seconds: CPU time of its process in each timed call.
        peak_mib: largest memory of its process so far.
    """

    contestant: Contestant
    process: Any
    pipe: Connection
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    def embed(self, texts: Sequence[str], *, is_timed: bool) -> Vectors:
        """Embed texts in the contestant's process, and note the time if it counts."""
        self.pipe.send(list(texts))
        vectors, seconds, cpu_seconds, self.peak_mib = self.pipe.recv()
        if is_timed:
            self.seconds.append(seconds)
            self.cpu_seconds.append(cpu_seconds)
        found: Vectors = vectors
        return found

    def close(self) -> None:
        """End the process."""
        self.pipe.send(None)
        self.process.join(30)
        self.process.kill()


def start(contestant: Contestant, folder: Path) -> Running:
    """Start a contestant and wait until its model is loaded.

    Raises:
        ImportError: a package that it needs is missing.
    """
    context = multiprocessing.get_context("spawn")
    ours_, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(contestant, folder, theirs))
    process.start()
    theirs.close()
    missing = ours_.recv()
    if missing is not None:
        process.join()
        raise ImportError(missing)
    return Running(contestant, process, ours_)


def _serve(contestant: Contestant, folder: Path, pipe: Connection) -> None:
    try:
        embed = contestant.load(folder)
    except ImportError as error:
        pipe.send(str(error))
        return
    pipe.send(None)
    while (texts := pipe.recv()) is not None:
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        vectors = embed(texts)
        seconds, cpu_seconds = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        pipe.send((vectors, seconds, cpu_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
