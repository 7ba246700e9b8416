"""Measures the costs of this machine's engines, each alone on the work of the apps, and fits them.

This happens before the apps run on the real engines, and uses no time of a whole query.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.mini_model import MINI
from benchmarks.report import num_cores
from benchmarks.twin.alone import alone, choose_evenly, measure_batches, measure_sharing
from benchmarks.twin.costs import (
    BatchFit,
    MachineCosts,
    fit_batches,
    fit_requests,
    fit_steps,
    mean_error,
    request_s,
)
from benchmarks.twin.machine import LLMS, TwinMachine
from stretto.costs.shape import model_of
from stretto.model.tasks import LLMTask, Task

_SIDE_BY_SIDE = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of the measurements: number of batches of each engine, and largest number of rounds.

    Attributes:
        step_s: seconds for the LLM's steps.
        batch_s: seconds for an engine's batches; no further round begins later.
    """

    batches: int = 16
    rounds: int = 3
    step_s: float = 8.0
    batch_s: float = 8.0


def calibrate(
    machine: TwinMachine,
    batches: Mapping[str, Sequence[Sequence[Task]]],
    requests: Sequence[LLMTask],
    effort: Effort,
    say: Callable[[str], None],
) -> MachineCosts:
    """Measure the costs of each engine alone, and the slowdown of two together."""
    from benchmarks.common.scripted_transformer import ScriptedTransformer
    from stretto.planner.measure_steps import StepLoad, measure_apart

    say("twin: measuring the LLM's steps")
    config = machine.llm_config
    mixed = random.Random(0).sample(requests, len(requests))  # there may be no time for all
    load = StepLoad(mixed, _SIDE_BY_SIDE, effort.step_s)
    steps = measure_apart(config, load, ScriptedTransformer).steps
    step_cost = fit_steps(model_of("mini", json.loads((MINI / "config.json").read_text("utf-8"))), steps)
    errors = {"llm: steps": mean_error((step_cost.step_s(s.shape), s.seconds) for s in steps)}
    engines = {engine.name: engine for engine in machine.engines if engine.name in {*batches, *LLMS}}
    say("twin: starting engines to be measured")
    with alone(engines.values()) as instances:
        fits: dict[str, BatchFit] = {}
        for name, made in batches.items():
            say(f"twin: measuring {name}")
            keeps_state = engines[name].engine.keeps_state
            found = measure_batches(
                instances[name],
                made if keeps_state else choose_evenly(made, effort.batches),
                rounds=effort.rounds,
                keeps_state=keeps_state,
                max_s=effort.batch_s,
            )
            fits[name] = fit_batches(found)
            errors[name] = mean_error((fits[name].seconds(tasks), seconds) for tasks, seconds in found)
        say("twin: measuring requests, and engines side by side")
        llm = instances["llm"]
        decoding = [task for task in requests if task.decode is not None]
        some = decoding[:: max(1, len(decoding) // effort.batches)]
        timed = []
        for task in (some[0], *some):  # the first warms up
            timed.append(llm.request_s(task))
            llm.forget([task.query])
        cost = fit_requests(step_cost, timed[1:], config.max_batch_tokens)
        errors["llm: requests"] = mean_error(
            (request_s(cost, usage, config.max_batch_tokens), seconds) for seconds, usage in timed[1:]
        )
        busiest = max(batches, key=lambda name: max(fits[name].seconds(tasks) for tasks in batches[name]))
        batch = max(batches[busiest], key=fits[busiest].seconds)
        second = instances["llm_small"]
        sharing = measure_sharing(llm, second, some[:8], instances[busiest], batch, num_cores())
    return MachineCosts(fits, cost, sharing, errors)
