"""The measurement of an engine on this machine: latency by batch size, and the profile that explains it.

The work is like that of the ready-made apps: chunks of the default size, pairs, rows, prompts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.core import Chunk, Document, Hit, Section, Segment
from stretto.costs.profile import Profile, fit_profile
from stretto.deployment import Deployment
from stretto.engines.batch.chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, max_tokens
from stretto.engines.contract import SteppedLLM
from stretto.errors import ConfigError
from stretto.tasks import Decode, Done, Failed, LLMTask, Task

_TEXT = (
    "the engine reads each document once and cuts it into pieces that a model can hold because a reader "
    "who asks a question wants the passage that answers it and not the whole book "
)
_ROUNDS = 5
_SIDE_BY_SIDE = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """The seconds that calls with `units` of work (items or tokens) took: median, fastest and slowest."""

    units: int
    median_s: float
    min_s: float
    max_s: float

    @property
    def units_per_s(self) -> float:
        """Units of work per second, from the median time."""
        return self.units / self.median_s


def profile_engine(
    deployment: Deployment, on_measurement: Callable[[Measurement], None]
) -> tuple[list[Measurement], Profile]:
    """Measure how long an engine's calls take at growing batch sizes, and fit its latency profile to that.

    Each measurement is passed to `on_measurement` as soon as it is made. Returns all measurements, and the
    profile.

    Raises:
        ConfigError: there is no workload to profile such an engine with.
    """
    engine, replica = deployment.engine, deployment.replicas[0]
    if engine.is_llm and replica.runs_in in ("loop", "ray"):
        raise ConfigError("a server's engine is profiled where it runs")
    executable = replica.executable(replica.instance_config())
    try:
        if engine.is_llm:
            return _profile_llm(executable, on_measurement)
        measurements = []
        for units, tasks in _workloads(deployment):
            measurements.append(_measure(units, lambda tasks=tasks: executable.run(tasks)))  # type: ignore[misc]
            on_measurement(measurements[-1])
        profile = fit_profile([m.units for m in measurements], [m.median_s for m in measurements])
        return measurements, profile
    finally:
        executable.close()


def _measure(units: int, call: Callable[[], object]) -> Measurement:
    call()
    seconds = []
    for _ in range(_ROUNDS):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return Measurement(units, statistics.median(seconds), min(seconds), max(seconds))


def _text(num_words: int, seed: int) -> str:
    words = _TEXT.split()
    start = seed % len(words)
    return " ".join(itertools.islice(itertools.cycle(words), start, start + num_words))


def _chunks(count: int) -> list[Chunk]:
    return [Chunk("profile", i, _text(170, i), num_chunks=count) for i in range(count)]


def _task(
    op: str, inputs: dict[str, object], each: tuple[str, ...], count: int, **config: object
) -> Sequence[Task]:
    return [Task(0, "profile", op, op, inputs, config, count, each)]


def _workloads(deployment: Deployment) -> Iterator[tuple[int, Sequence[Task]]]:
    """Yield (units, batch) pairs of growing size."""
    match deployment.name:
        case "chunking":
            tokens = min(DEFAULT_TOKENS, max_tokens(deployment.replicas[0].config.model))  # type: ignore[attr-defined]
            overlap = min(DEFAULT_OVERLAP, tokens // 8)
            for count in (1, 2, 4, 8):
                files = [Document(f"d{i}", (Section(_text(4000, i)),), str(i)) for i in range(count)]
                yield (
                    count,
                    _task("chunk", {"files": files}, ("files",), count, tokens=tokens, overlap=overlap),
                )
        case "embedding":
            for count in (1, 2, 4, 8, 16, 32, 64):
                yield count, _task("embed", {"texts": _chunks(count)}, ("texts",), count)
        case "vectors":
            vectors = list(np.random.default_rng(0).standard_normal((1024, 384)).astype(np.float32))
            for count in (16, 64, 256, 1024):
                inputs: dict[str, object] = {"chunks": _chunks(count), "vectors": vectors[:count]}
                yield count, _task("ingest", inputs, ("chunks", "vectors"), count)
        case "reranking":
            for count in (4, 16, 64, 256):
                hits = [Hit(chunk, 0.5) for chunk in _chunks(count)]
                inputs = {"question": "which passage answers the question?", "hits": hits}
                yield count, [Task(0, "profile", "rerank", "rerank", inputs, {})]
        case name:
            raise ConfigError(f"there is no workload that profiles an engine called {name!r}")


def _profile_llm(
    llm: SteppedLLM, on_measurement: Callable[[Measurement], None]
) -> tuple[list[Measurement], Profile]:
    """Measure an LLM engine and fit its profile.

    Prefills of several lengths give the time per prompt token; one decode gives the time per output token,
    and several side by side the time that neighbours add.
    """
    ids, seeds = itertools.count(), itertools.count()
    measurements = []
    for num_words in (32, 128, 512):
        units = 0

        def prefill(num_words: int = num_words) -> None:
            nonlocal units
            (units,) = _finish(llm, ids, [_text(num_words, next(seeds))], None)
            llm.release("profile")

        measurement = _measure(1, prefill)
        measurements.append(replace(measurement, units=max(units, num_words)))
        on_measurement(measurements[-1])
    fitted = fit_profile([m.units for m in measurements], [m.median_s for m in measurements])
    prompt = _text(32, 0)
    num_outputs = 0

    def decode() -> None:
        nonlocal num_outputs
        (num_outputs,) = _finish(llm, ids, [prompt], Decode(max_tokens=32))

    decoding = _measure(1, decode)
    per_output_s = max(0.0, decoding.median_s - fitted.batch_s(32)) / max(num_outputs, 1)

    def decode_several() -> None:
        nonlocal num_outputs
        num_outputs = max(_finish(llm, ids, [prompt] * _SIDE_BY_SIDE, Decode(max_tokens=32)))

    together = _measure(1, decode_several)
    step_s = max(0.0, together.median_s - _SIDE_BY_SIDE * fitted.batch_s(32)) / max(num_outputs, 1)
    profile = replace(
        fitted,
        max_efficient_batch=1,
        per_output_s=per_output_s,
        per_neighbour_s=max(0.0, step_s - per_output_s) / (_SIDE_BY_SIDE - 1),
    )
    return measurements, profile


def _finish(llm: SteppedLLM, ids: Iterator[int], texts: Sequence[str], decode: Decode | None) -> list[int]:
    """Run requests side by side to their ends; return the prompt tokens of each, or output tokens if they
    decode.
    """
    for text in texts:
        task_id = next(ids)
        llm.admit(LLMTask(task_id, "profile", "profile", (Segment(f"{task_id} {text}"),), decode), ())
    found: list[int] = []
    while len(found) < len(texts):
        for event in llm.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                usage = event.usage
                found.append(usage.num_prompt_tokens if decode is None else usage.num_output_tokens)
    return found
