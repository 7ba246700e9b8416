"""The measurement of an engine: latency by batch size and length, and the profile that explains it.

The batches of an engine are the workloads of an op that it runs (`OpSpec.workloads`).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stretto.costs.fit_profile import fit_profile, fit_profile_by_length
from stretto.engines.contract import BatchEngine, SteppedLLM
from stretto.engines.measurement import Measurement
from stretto.engines.server_profiling import profile_server
from stretto.graph.op_table import OPS
from stretto.graph.op_workloads import text_of_words
from stretto.graph.ops import Ops
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, Failed, LLMTask, Task
from stretto.model.values import Segment

_ROUNDS = 5
_SIDE_BY_SIDE = 4


def profile_engine(
    deployment: Deployment, on_measurement: Callable[[Measurement], None], ops: Ops = OPS
) -> tuple[list[Measurement], Profile]:
    """Measure how long an engine's calls take at growing batch sizes, and fit a latency profile (linear
    costs) to these times.

    Each measurement is passed to `on_measurement` as soon as it is made. `ops` has the workloads of batch
    engines. Returns all measurements, and the profile.

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
        for units, task in _workloads(deployment, executable, ops):
            measured = _measure(units, lambda task=task: executable.run([task]))  # type: ignore[misc]
            measurements.append(replace(measured, tokens=_num_tokens(task, ops)))
            on_measurement(measurements[-1])
        return measurements, _fitted(measurements)
    finally:
        executable.close()


def _fitted(measurements: Sequence[Measurement]) -> Profile:
    units, seconds = [m.units for m in measurements], [m.median_s for m in measurements]
    tokens = [m.tokens for m in measurements if m.tokens is not None]
    return fit_profile_by_length(units, tokens, seconds) if tokens else fit_profile(units, seconds)


def _num_tokens(task: Task, ops: Ops) -> int | None:
    """Return the estimated tokens of the texts of a workload's task; None where they do not matter."""
    tokens_of = ops[task.op].tokens
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


def _workloads(deployment: Deployment, engine: BatchEngine, ops: Ops) -> Iterator[tuple[int, Task]]:
    """Yield (units, task) of growing size, for the first op of an engine that has such workloads."""
    names: Sequence[str] = getattr(engine, "op_names", ())
    specs = [ops[name] for name in names if name in ops]
    spec = next((spec for spec in specs if spec.workloads is not None), None)
    if spec is None or spec.workloads is None:
        why = f"none of its ops ({', '.join(names)}) has one" if names else "its class names no ops"
        raise ConfigError(
            f"there is no workload that profiles the engine {deployment.name!r}: {why} "
            "(OpSpec.workloads, BatchEngine.op_names). Give its times by hand: "
            "profile = { base_s = …, per_unit_s = … } of its [[replica]]"
        )
    for units, inputs, each in spec.workloads():
        count = units if each else None
        yield (
            units,
            Task(0, "profile", spec.name, op=spec.name, inputs=inputs, config={}, num_items=count, each=each),
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
