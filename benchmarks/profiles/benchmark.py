"""Accuracy of the profiles of engines that run in batches, on batches of texts of mixed lengths.

Each engine is profiled as `stretto profile` does. Then it runs random batches, one after the other, and three
predictions are compared with the measured times: a line in the size of the batch, fitted to chunks of the
default size; the profile in size and length; and that profile, refined by the batches before.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Report, Row
from stretto.costs.fit_profile import fit_profile
from stretto.costs.mean_output import num_tokens
from stretto.costs.refine import RefinedProfile
from stretto.engines.batch.local_models import minilm_path
from stretto.engines.catalogue import embedding_engine, reranking_engine
from stretto.engines.contract import BatchEngine
from stretto.engines.profiling import profile_engine
from stretto.graph.op_workloads import text_of_words
from stretto.model.deployment import Deployment
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

ERRORS = "mean error of predicted times (%)"
PROFILES = "profiles by length"
QUESTION = "which passage answers the question?"


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch of a workload: its task, its size in units, and the estimated tokens of its texts."""

    task: Task
    units: int
    tokens: int


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Profile the embedder, the reranker without a model and one with a model; predict random batches."""
    num_batches = 60 if options.quick else 240
    cases: Mapping[str, tuple[Deployment, Callable[[Sequence[str]], _Batch]]] = {
        "embedding, MiniLM": (embedding_engine("all-MiniLM-L6-v2"), _embedding),
        "reranking, words": (reranking_engine(None), _reranking),
        "reranking, MiniLM with a random head": (reranking_engine(str(minilm_path())), _reranking),
    }
    rows = []
    for name, (deployment, batch_of) in cases.items():
        options.say(name)
        batches = list(map(batch_of, _texts(random.Random(options.seed), num_batches)))
        rows += _rows(name, deployment, batches)
    config = {"batches": num_batches, "quick": options.quick}
    return Report("profiles", options.seed, config, tuple(rows), ())


def _rows(name: str, deployment: Deployment, batches: Sequence[_Batch]) -> list[Row]:
    """Profile an engine; return the mean errors of three predictions, and the profile."""
    measurements, by_length = profile_engine(deployment, lambda _: None)
    usual = [
        m for m in measurements if m.tokens is None or m.tokens >= 0.75 * m.units * by_length.unit_tokens
    ]
    line = fit_profile([m.units for m in usual], [m.median_s for m in usual])
    replica = deployment.replicas[0]
    engine: BatchEngine = replica.executable(replica.instance_config())
    refined = RefinedProfile(by_length)
    errors: Mapping[str, list[float]] = {"line": [], "by length": [], "refined": []}
    for batch in batches:
        start_s = time.perf_counter()
        engine.run([batch.task])
        seconds = time.perf_counter() - start_s
        predicted = {
            "line": line.batch_s(batch.units),
            "by length": by_length.batch_s(batch.units, batch.tokens),
            "refined": refined.batch_s(batch.units, batch.tokens),
        }
        for form, predicted_s in predicted.items():
            errors[form].append(100 * abs(predicted_s / seconds - 1))
        refined = refined.observed(batch.units, batch.tokens, seconds)
    engine.close()
    means = {form: statistics.mean(values) for form, values in errors.items()}
    numbers = {
        "base_ms": 1000 * by_length.base_s,
        "per_unit_ms": 1000 * by_length.per_unit_s,
        "per_token_ms": 1000 * by_length.per_token_s,
        "unit_tokens": by_length.unit_tokens,
        "last_factor": refined.factor.value,
    }
    return [Row(ERRORS, name, means), Row(PROFILES, name, numbers)]


def _texts(draw: random.Random, num_batches: int) -> Iterator[list[str]]:
    for _ in range(num_batches):
        sizes = [round(5 * 34 ** draw.random()) for _ in range(round(32 ** draw.random()))]
        yield [text_of_words(size, draw.randrange(1000)) for size in sizes]


def _embedding(texts: Sequence[str]) -> _Batch:
    task = Task(0, "q", "embed", "embed", {"texts": texts}, {}, len(texts), ("texts",))
    return _Batch(task, len(texts), sum(map(num_tokens, texts)))


def _reranking(texts: Sequence[str]) -> _Batch:
    hits = [Hit(Chunk("d", index, text), 0.5) for index, text in enumerate(texts)]
    task = Task(0, "q", "rerank", "rerank", {"question": QUESTION, "hits": hits}, {})
    return _Batch(task, len(texts), sum(num_tokens(QUESTION) + num_tokens(text) for text in texts))
