"""The measurement of an engine: latency by batch size and length, and the profile that explains it.

The work is like that of the ready-made apps: chunks of the default size, pairs, rows, prompts.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from stretto.costs.fit_profile import fit_profile, fit_profile_by_length
from stretto.engines.batch.chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, max_tokens
from stretto.engines.contract import SteppedLLM
from stretto.engines.measurement import Measurement, text_of_words
from stretto.engines.server_profiling import profile_server
from stretto.graph.op_table import OPS
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, Failed, LLMTask, Task
from stretto.model.values import Chunk, Document, Hit, Section, Segment

_ROUNDS = 5
_CHUNK_WORDS = 170  # a chunk of the default size
_SHORT_WORDS = (10, 60)
_SIDE_BY_SIDE = 4


def profile_engine(
    deployment: Deployment, on_measurement: Callable[[Measurement], None]
) -> tuple[list[Measurement], Profile]:
    """Measure how long an engine's calls take at growing batch sizes, and fit a latency profile (linear
    costs) to these times.

    Each measurement is passed to `on_measurement` as soon as it is made. Returns all measurements, and the
    profile.

    Raises:
        ConfigError: there is no workload to profile such an engine with.
        EngineFailure: a server cannot be reached, or refuses.
    """
    engine, replica = deployment.engine, deployment.replicas[0]
    if engine.is_llm and replica.runs_in == "ray":
        raise ConfigError("a server's engine is profiled where it runs")
    if engine.is_llm and replica.runs_in == "loop":
        return asyncio.run(profile_server(replica, on_measurement))
    executable = replica.executable(replica.instance_config())
    try:
        if engine.is_llm:
            return _profile_llm(executable, on_measurement)
        measurements = []
        for units, tasks in _workloads(deployment):
            measured = _measure(units, lambda tasks=tasks: executable.run(tasks))  # type: ignore[misc]
            measurements.append(replace(measured, tokens=_num_tokens(tasks)))
            on_measurement(measurements[-1])
        return measurements, _fitted(measurements)
    finally:
        executable.close()


def _fitted(measurements: Sequence[Measurement]) -> Profile:
    units, seconds = [m.units for m in measurements], [m.median_s for m in measurements]
    tokens = [m.tokens for m in measurements if m.tokens is not None]
    return fit_profile_by_length(units, tokens, seconds) if tokens else fit_profile(units, seconds)


def _num_tokens(tasks: Sequence[Task]) -> int | None:
    """Return the estimated tokens of the texts of a workload's one task; None where they do not matter."""
    (task,) = tasks
    tokens_of = OPS[task.op].tokens
    if tokens_of is None:
        return None
    rows = [
        {port: value[i] if port in task.each else value for port, value in task.inputs.items()}  # type: ignore[index]
        for i in range(task.num_items or 1)
    ]
    return sum(map(tokens_of, rows))


def _measure(units: int, call: Callable[[], object]) -> Measurement:
    call()
    seconds = []
    for _ in range(_ROUNDS):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return Measurement(units, statistics.median(seconds), min(seconds), max(seconds))


def _chunks(count: int, num_words: int = _CHUNK_WORDS) -> list[Chunk]:
    return [Chunk("profile", i, text_of_words(num_words, i), num_chunks=count) for i in range(count)]


def _task(
    op: str, inputs: dict[str, object], each: tuple[str, ...], count: int, **config: object
) -> Sequence[Task]:
    return [
        Task(id=0, query="profile", step=op, op=op, inputs=inputs, config=config, num_items=count, each=each)
    ]


def _workloads(deployment: Deployment) -> Iterator[tuple[int, Sequence[Task]]]:
    """Yield (units, batch) pairs of growing size."""
    match deployment.name:
        case "chunking":
            tokens = min(DEFAULT_TOKENS, max_tokens(deployment.replicas[0].config.model))  # type: ignore[attr-defined]
            overlap = min(DEFAULT_OVERLAP, tokens // 8)
            for count in (1, 2, 4, 8):
                files = [Document(f"d{i}", (Section(text_of_words(4000, i)),), str(i)) for i in range(count)]
                yield (
                    count,
                    _task("chunk", {"files": files}, ("files",), count, tokens=tokens, overlap=overlap),
                )
        case "embedding":
            for count in (1, 2, 4, 8, 16, 32, 64):
                yield count, _task("embed", {"texts": _chunks(count)}, ("texts",), count)
            for num_words, count in itertools.product(_SHORT_WORDS, (1, 4, 32)):
                yield count, _task("embed", {"texts": _chunks(count, num_words)}, ("texts",), count)
        case "vectors":
            vectors = list(np.random.default_rng(0).standard_normal((1024, 384)).astype(np.float32))
            for count in (16, 64, 256, 1024):
                inputs: dict[str, object] = {"chunks": _chunks(count), "vectors": vectors[:count]}
                yield count, _task("ingest", inputs, ("chunks", "vectors"), count)
        case "reranking":
            sizes = [(_CHUNK_WORDS, count) for count in (4, 16, 64, 256)]
            for num_words, count in (*sizes, *itertools.product(_SHORT_WORDS, (1, 4, 64))):
                hits = [Hit(chunk, 0.5) for chunk in _chunks(count, num_words)]
                inputs = {"question": "which passage answers the question?", "hits": hits}
                yield count, [Task(0, "profile", "rerank", "rerank", inputs, {})]
        case name:
            raise ConfigError(
                f"there is no workload that profiles an engine called {name!r}; there are those of chunking, "
                "embedding, vectors, reranking and LLMs, in engines/profiling.py. Give its times by hand: "
                "profile = { base_s = …, per_unit_s = … } of its [[replica]]"
            )


def _profile_llm(
    llm: SteppedLLM, on_measurement: Callable[[Measurement], None]
) -> tuple[list[Measurement], Profile]:
    """Measure an LLM engine and fit its profile.

    Prefills of several lengths give the time per prompt token; one decode gives the time per output token,
    and several side by side the time that neighbours add. Engines in process read shared context once.
    """
    ids, seeds = itertools.count(), itertools.count()
    measurements = []
    for num_words in (32, 128, 512):
        units = 0

        def prefill(num_words: int = num_words) -> None:
            nonlocal units
            (units,) = _finish(llm, ids, [text_of_words(num_words, next(seeds))], None)
            llm.release("profile")

        measurement = _measure(1, prefill)
        measurements.append(replace(measurement, units=max(units, num_words)))
        on_measurement(measurements[-1])
    fitted = fit_profile([m.units for m in measurements], [m.median_s for m in measurements])
    prompt = text_of_words(32, 0)
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
        reads_shared_once=True,
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
