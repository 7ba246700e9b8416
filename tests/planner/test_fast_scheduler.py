"""The fast scheduler takes the same steps as the production one."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.costs.shape import StepShape
from stretto.costs.step_arrays import ShapeArrays
from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import CapacityError, ConfigError
from stretto.planner.compiled import compiled
from stretto.planner.fast_scheduler import FastScheduler, Simulated, numbers_of, simulate
from stretto.planner.simulate import most_blocks, simulate_steps
from stretto.planner.step_log import StepColumns
from stretto.sim.step_times import batch_shape

NUM_LOADS = int(os.environ.get("STRETTO_EXAMPLES", "75"))
Load = tuple[SchedulerConfig, Any, Any]


def random_load(seed: int) -> Load:
    draw = random.Random(seed)
    size = draw.choice([1, 2, 3, 4, 8, 16])
    longest = draw.choice([6, 20, 60])
    num = draw.randint(1, 40)
    prompts = [draw.randint(1, longest) for _ in range(num)]
    outputs = [draw.choice([1, 2, draw.randint(1, longest), draw.randint(1, 2 * longest)]) for _ in prompts]
    least = max(-(-(p + o) // size) for p, o in zip(prompts, outputs, strict=True))
    max_running = draw.randint(1, 20)
    config = SchedulerConfig(
        num_blocks=least + draw.choice([0, 1, draw.randint(0, 3 * least), draw.randint(0, 20 * least)]),
        block_tokens=size,
        max_running=max_running,
        max_batch_tokens=max_running + draw.randint(1, 2 * longest),
        policy=draw.choice(["chunked", "prefill_first"]),
        lookahead=draw.choice([1, 3, 64]),
    )
    return config, prompts, outputs


def production(load: Load) -> tuple[list[StepShape], dict[int, int], int]:
    """Run the local scheduler; return the steps, the step after which each request ended, and how often one
    was preempted.
    """
    config, prompts, outputs = load
    scheduler = LocalScheduler(config)
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        scheduler.add(TokenSequence(number, list(range(prompt)), output, salt=str(number)), 0.0)
    steps: list[StepShape] = []
    ended = {}
    while scheduler.has_work():
        batch = scheduler.schedule()
        steps.append(batch_shape(batch))
        scheduler.complete(batch, {s.sequence.id: [len(steps)] for s in batch.slices if s.samples})
        for piece in batch.slices:
            if not piece.sequence.num_remaining:
                scheduler.finish(piece.sequence)
                ended[piece.sequence.id] = len(steps)
    return steps, ended, scheduler.num_preemptions


def expanded(shapes: ShapeArrays) -> list[StepShape]:
    return [one.after(k) if k else one for one, repeats in shapes.rows() for k in range(repeats)]


def fast(
    load: Load, most_steps: Callable[[], int] = lambda: sys.maxsize
) -> tuple[list[StepShape], dict[int, int], int]:
    config, prompts, outputs = load
    instance = FastScheduler(config)
    instance.add(prompts, outputs)
    while instance.has_work():
        instance.advance(most_steps())
    return told(instance.log.columns(), instance.num_preemptions)


def told(log: StepColumns, num_preemptions: int) -> tuple[list[StepShape], dict[int, int], int]:
    shapes = log.shapes()
    steps_by = shapes.repeats.cumsum().tolist()
    ended = {request: steps_by[interval] for request, interval in log.ended.tolist()}
    return expanded(shapes), ended, num_preemptions


def at_once(
    load: Load, run: Callable[..., Simulated], previous: list[int] | None = None
) -> tuple[list[StepShape], dict[int, int], int]:
    """Simulate all calls at once, each from the end of the call `previous` on."""
    config, prompts, outputs = load
    before = [-1] * len(prompts) if previous is None else previous
    numbers = numbers_of(config)
    *columns, order = run(
        *((prompts, outputs, before) if run is simulate else map(np.array, (prompts, outputs, before))),
        numbers,
    )
    steps, ended, num_preemptions = told(StepColumns(*columns), numbers.num_preemptions)
    return steps, {int(order[request]): step for request, step in ended.items()}, num_preemptions


@pytest.mark.parametrize("first", range(0, NUM_LOADS, 25))
def test_any_load_takes_the_same_steps(first: int) -> None:
    for seed in range(first, first + 25):
        load = random_load(seed)
        expected = production(load)
        assert fast(load) == expected, f"seed {seed}: {load}"
        assert fast(load, partial(random.Random(seed).randint, 1, 4)) == expected, f"seed {seed}: {load}"
        assert at_once(load, simulate) == expected, f"seed {seed}: {load}"


def test_the_compiled_simulation_is_the_same() -> None:
    pytest.importorskip("numba")
    run = compiled()
    assert run is not None
    for seed in range(NUM_LOADS):
        load = random_load(seed)
        assert at_once(load, run) == at_once(load, simulate), f"seed {seed}: {load}"


def random_chains(seed: int) -> tuple[Load, list[int]]:
    """Return a random load, and the call that each of its calls follows."""
    config, prompts, outputs = random_load(seed)
    draw = random.Random(seed)
    share = draw.choice([0.2, 0.8])
    previous = [draw.randrange(at) if at and draw.random() < share else -1 for at in range(len(prompts))]
    return (config, prompts, outputs), previous


def followed(load: Load, previous: list[int]) -> tuple[list[StepShape], dict[int, int], int]:
    """Simulate interval by interval, and add the calls that follow those which have ended."""
    config, prompts, outputs = load
    instance = FastScheduler(config)
    order: list[int] = []
    num_seen, coming = 0, [call for call, before in enumerate(previous) if before < 0]
    while coming or instance.has_work():
        order += coming
        instance.add([prompts[call] for call in coming], [outputs[call] for call in coming])
        instance.advance(sys.maxsize)
        ended = {order[request] for request in instance.log.ended[num_seen::2]}
        num_seen = len(instance.log.ended)
        coming = [call for call, before in enumerate(previous) if before in ended]
    steps, ends, num_preemptions = told(instance.log.columns(), instance.num_preemptions)
    return steps, {order[request]: step for request, step in ends.items()}, num_preemptions


def test_chains_take_the_same_steps_at_once_and_interval_by_interval() -> None:
    runs = [simulate] if compiled() is None else [simulate, compiled()]
    for seed in range(NUM_LOADS):
        load, previous = random_chains(seed)
        expected = followed(load, previous)
        for run in runs:
            assert run is not None
            assert at_once(load, run, previous) == expected, f"seed {seed}: {load}, {previous}"


def test_a_numba_that_refuses_its_surroundings_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.1 or less")\n', "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    assert compiled.__wrapped__() is None


def test_random_loads_preempt_often_enough_to_test_it() -> None:
    assert sum(fast(random_load(seed))[2] > 0 for seed in range(100)) > 30


def test_a_request_that_never_fits_is_refused() -> None:
    for policy in ("chunked", "prefill_first"):
        config = SchedulerConfig(num_blocks=2, block_tokens=4, policy=policy)
        with pytest.raises(CapacityError, match="9 tokens"):
            simulate_steps(config, np.array([1, 5]), np.array([1, 4]), np.array([-1, -1]))
        with pytest.raises(ConfigError, match="answer"):
            simulate_steps(config, np.array([5]), np.array([0]), np.array([-1]))
    with pytest.raises(ConfigError, match="policy must be"):
        FastScheduler(SchedulerConfig(num_blocks=2, block_tokens=4, policy="other"))


def test_more_blocks_than_requests_can_hold_change_no_step() -> None:
    for seed in range(NUM_LOADS):
        config, prompts, outputs = random_load(seed)
        most = most_blocks(config, np.array(prompts), np.array(outputs))
        assert fast((replace(config, num_blocks=most), prompts, outputs)) == fast(
            (replace(config, num_blocks=9 * most), prompts, outputs)
        ), f"seed {seed}"
