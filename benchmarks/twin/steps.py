"""Measures the steps of the in-process LLM, in a process that does nothing else."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeAlias

from benchmarks.common.scripted_transformer import ScriptedTransformer
from stretto.costs.fit import MeasuredStep
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.errors import EngineFailure
from stretto.llm.step_batch import StepBatch
from stretto.sim.step_times import batch_shape
from stretto.tasks import Done, Failed, LLMTask

_START_S = 180.0

MakeLLM: TypeAlias = Callable[[TransformerConfig], TransformerLLM]
"""A function that makes the engine to be measured, in its process."""


def measure_steps_apart(
    config: TransformerConfig,
    tasks: Sequence[LLMTask],
    side_by_side: Sequence[int],
    max_s: float,
    make: MakeLLM = ScriptedTransformer,
) -> list[MeasuredStep]:
    """Run `measure_steps` in a new process, which is ended in any case.

    Raises:
        EngineFailure: the process died, or took too long.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure_into, args=(theirs, config, tasks, side_by_side, max_s, make), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_S + 4 * max_s):
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
    steps: list[MeasuredStep] = found
    return steps


def _measure_into(
    connection: Connection,
    config: TransformerConfig,
    tasks: Sequence[LLMTask],
    side_by_side: Sequence[int],
    max_s: float,
    make: MakeLLM,
) -> None:
    found: list[MeasuredStep] | Exception
    try:
        found = measure_steps(config, tasks, side_by_side, max_s, make)
    except Exception as error:
        found = error
    except KeyboardInterrupt:  # the parent process gets it too
        return
    connection.send(found)


def measure_steps(
    config: TransformerConfig,
    tasks: Sequence[LLMTask],
    side_by_side: Sequence[int],
    max_s: float,
    make: MakeLLM = ScriptedTransformer,
) -> list[MeasuredStep]:
    """Measure the steps of an engine in this process.

    For each number in `side_by_side`, that many tasks run at the same time until all are done, or until its
    share of `max_s` is used up.
    """
    llm = make(config)
    schedule = llm.scheduler.schedule
    batches: list[StepBatch] = []

    def watched(max_repeats: int = 1) -> StepBatch:
        batches.append(schedule(max_repeats))
        return batches[-1]

    llm.scheduler.schedule = watched  # type: ignore[method-assign]
    steps: list[MeasuredStep] = []
    for number, width in enumerate((side_by_side[0], *side_by_side)):  # the first warms up
        waiting, num_running, measured = list(tasks), 0, list[MeasuredStep]()
        due_s = time.perf_counter() + max_s / (1 + len(side_by_side))
        while (waiting or num_running) and time.perf_counter() < due_s:
            while waiting and num_running < width:
                llm.admit(waiting.pop(0), ())
                num_running += 1
            start_s = time.perf_counter()
            events = llm.step()
            seconds = time.perf_counter() - start_s
            measured.append(MeasuredStep(batch_shape(batches[-1]), seconds))
            for event in events:
                if isinstance(event, Failed):
                    raise event.error
                num_running -= isinstance(event, Done)
        for task in tasks:
            llm.cancel(task.id)
            llm.release(task.query)
        steps += measured if number else []
    llm.close()
    return steps
