"""Measures the start and the steps of the in-process LLM, in a process that does nothing else.

What other programs do meanwhile does not count: time in which the process waited for a core is left out.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from stretto.costs.fit import MeasuredStep
from stretto.emulate.core_wait import core_wait_s, timed
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.llm.step_batch import StepBatch
from stretto.model.errors import EngineFailure
from stretto.model.tasks import Done, Failed, LLMTask
from stretto.runtime.devices import claim
from stretto.sim.step_times import batch_shape

_START_S = 600.0
_LEAST_STEPS = 8
MAX_WAIT = 3
"""Largest time on a busy machine, over that of a quiet one."""

MakeLLM: TypeAlias = Callable[[TransformerConfig], TransformerLLM]
"""A function that makes the engine to be measured, in its process."""


@dataclass(frozen=True, slots=True)
class MeasuredLLM:
    """What was measured of an engine in a process of its own.

    Attributes:
        start_s: seconds from the start of its process until the engine could be used, less those in which it
            waited for a core.
    """

    start_s: float
    steps: Sequence[MeasuredStep]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work with which steps are measured.

    Attributes:
        side_by_side: numbers of tasks that run at the same time, one number after the other.
        max_s: seconds for all of them, without those in which the process waits for a core; with them, three
            times as many.
        keeps_prompts: whether prompts are still cached when tasks run with the next number.
    """

    tasks: Sequence[LLMTask]
    side_by_side: Sequence[int]
    max_s: float
    keeps_prompts: bool = False


def measure_apart(
    config: TransformerConfig,
    load: StepLoad,
    make: MakeLLM = TransformerLLM,
    devices: Sequence[str] = (),
    threads: int | None = None,
) -> MeasuredLLM:
    """Measure an engine in a new process, which is ended in any case.

    Args:
        devices, threads: devices and number of threads that the process is confined to.

    Raises:
        EngineFailure: the process died, or took too long.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure_into, args=(theirs, devices, threads, config, load, make), daemon=True
    )
    begin_s = time.monotonic()
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_S + 2 * MAX_WAIT * load.max_s):
            raise EngineFailure("the LLM to be measured sent nothing")
        found = ours.recv()
    except EOFError:
        raise EngineFailure("the LLM to be measured died") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(found, Exception):
        raise found
    ready_s, steps = found
    return MeasuredLLM(ready_s - begin_s, steps)


def _measure_into(
    connection: Connection,
    devices: Sequence[str],
    threads: int | None,
    config: TransformerConfig,
    load: StepLoad,
    make: MakeLLM,
) -> None:
    found: tuple[float, list[MeasuredStep]] | Exception
    try:
        claim(devices, threads)
        llm = make(config)
        found = time.monotonic() - core_wait_s(), measure_steps(llm, load)
        llm.close()
    except Exception as error:
        found = error
    except KeyboardInterrupt:  # the parent process gets it too
        return
    connection.send(found)


def measure_steps(llm: TransformerLLM, load: StepLoad) -> list[MeasuredStep]:
    """Measure the steps of an engine in this process.

    For each number in `side_by_side`, that many tasks run at the same time until all are done, or until its
    share of `max_s` is used up; but at least eight steps. Larger numbers have larger shares, because their
    steps take longer. A busy machine gives fewer steps, in at most three times the time.
    """
    schedule = llm.scheduler.schedule
    batches: list[StepBatch] = []

    def watched(max_repeats: int = 1) -> StepBatch:
        batches.append(schedule(max_repeats))
        return batches[-1]

    llm.scheduler.schedule = watched  # type: ignore[method-assign]
    steps: list[MeasuredStep] = []
    widths = (min(load.side_by_side), *load.side_by_side)
    share_s = load.max_s / sum(map(_share, widths))
    for number, width in enumerate(widths):  # the first warms up
        waiting, num_running, measured = list(load.tasks), 0, list[MeasuredStep]()
        left_s = share_s * _share(width)
        due_s = time.perf_counter() + MAX_WAIT * left_s
        while (waiting or num_running) and (
            len(measured) < _LEAST_STEPS or (left_s > 0 and time.perf_counter() < due_s)
        ):
            while waiting and num_running < width:
                llm.admit(waiting.pop(0), ())
                num_running += 1
            events, seconds = timed(llm.step)
            measured.append(MeasuredStep(batch_shape(batches[-1]), seconds))
            left_s -= seconds
            for event in events:
                if isinstance(event, Failed):
                    raise event.error
                num_running -= isinstance(event, Done)
        for task in load.tasks:
            llm.cancel(task.id)
            if not load.keeps_prompts:
                llm.release(task.query)
        steps += measured if number else []
    return steps


def _share(width: int) -> float:
    return 1 + math.log2(width)
