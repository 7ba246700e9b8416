"""A simulated replica ends its calls when the production scheduler does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import pytest

from stretto.costs.presets import load_preset
from stretto.costs.step import StepCost
from stretto.llm.local_scheduler import LocalScheduler
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.llm.sequence import TokenSequence
from stretto.planner.compiled import compiled
from stretto.planner.fast_scheduler import numbers_of, simulate
from stretto.planner.links import Links
from stretto.planner.replica_arrivals import ArrivingReplica, run_replica, run_together
from stretto.planner.replica_run import ReplicaLoad
from stretto.sim.step_times import batch_shape

PRESET = load_preset("A100-80G")
COST: StepCost = PRESET.step_cost(PRESET.model("vicuna-13b-v1.5"), 1)


def random_load(seed: int, *, arrives: bool, follows: bool = False) -> tuple[ReplicaLoad, SchedulerConfig]:
    draw = random.Random(seed)
    num = draw.randint(1, 30)
    prompts = np.array([draw.randint(1, 60) for _ in range(num)])
    outputs = np.array([draw.randint(1, 60) for _ in range(num)])
    ready = np.zeros(num)
    previous = np.full(num, -1)
    if arrives:
        ready = np.array(sorted(draw.choice([0.0, draw.uniform(0, 2)]) for _ in range(num)))
    if arrives or follows:
        for call in range(1, num):
            if draw.random() < 0.3:
                previous[call] = draw.randrange(call)
    least = -(-int((prompts + outputs).max()) // 8)
    config = SchedulerConfig(
        least + draw.randint(0, 30),
        8,
        draw.randint(1, 12),
        80 + draw.randint(0, 60),
        draw.choice(["chunked", "prefill_first"]),
    )
    return ReplicaLoad(prompts, outputs, ready, previous), config


def production(load: ReplicaLoad, config: SchedulerConfig, begin_s: float) -> list[float]:
    """Run the local scheduler step by step, and let calls arrive in between."""
    scheduler = LocalScheduler(config)
    ended = [inf] * len(load.prompts)
    added: set[int] = set()
    order = 0
    now_s = begin_s
    while len(added) < len(ended) or scheduler.has_work():
        coming = []
        for call, before in enumerate(load.previous.tolist()):
            ready_s = max(float(load.ready_s[call]), ended[before] if before >= 0 else 0.0)
            if call not in added and ready_s < inf:
                coming.append((ready_s, call))
        for ready_s, call in sorted(coming):
            if ready_s <= now_s:
                tokens = list(range(int(load.prompts[call])))
                sequence = TokenSequence(
                    call, tokens, int(load.outputs[call]), rank=(0.0, order), salt=str(call)
                )
                scheduler.add(sequence, now_s)
                order += 1
                added.add(call)
        if not scheduler.has_work():
            now_s = min(coming)[0]
            continue
        batch = scheduler.schedule()
        now_s += COST.step_s(batch_shape(batch))
        scheduler.complete(batch, {s.sequence.id: [1] for s in batch.slices if s.samples})
        for piece in batch.slices:
            if not piece.sequence.num_remaining:
                scheduler.finish(piece.sequence)
                ended[piece.sequence.id] = now_s
    return ended


def production_together(
    loads: Sequence[ReplicaLoad], configs: Sequence[SchedulerConfig], needs: Mapping[int, set[int]]
) -> list[float]:
    """Step the local schedulers of several replicas, always the one that is furthest behind.

    Args:
        needs: calls that each call waits for; calls are numbered one replica after the other.
    """
    firsts = np.cumsum([0, *(len(load.prompts) for load in loads)]).tolist()
    schedulers = [LocalScheduler(config) for config in configs]
    now_s, added = [0.0] * len(loads), set[int]()
    ended: dict[int, float] = {}

    def coming(at: int) -> list[tuple[float, int]]:
        mine = range(firsts[at], firsts[at + 1])
        able = (call for call in mine if call not in added and ended.keys() >= needs.get(call, set()))
        return sorted((max([0.0, *(ended[one] for one in needs.get(call, ()))]), call) for call in able)

    while len(ended) < firsts[-1]:
        next_s = [
            now_s[at] if one.has_work() else max(now_s[at], min(coming(at), default=(inf, 0))[0])
            for at, one in enumerate(schedulers)
        ]
        at = next_s.index(min(next_s))
        now_s[at], scheduler, load = next_s[at], schedulers[at], loads[at]
        for ready_s, call in coming(at):
            if ready_s <= now_s[at]:
                mine = call - firsts[at]
                tokens = list(range(int(load.prompts[mine])))
                rank = (0.0, len(added))
                scheduler.add(
                    TokenSequence(call, tokens, int(load.outputs[mine]), rank=rank, salt=str(call)), now_s[at]
                )
                added.add(call)
        batch = scheduler.schedule()
        now_s[at] += COST.step_s(batch_shape(batch))
        scheduler.complete(batch, {s.sequence.id: [1] for s in batch.slices if s.samples})
        for piece in batch.slices:
            if not piece.sequence.num_remaining:
                scheduler.finish(piece.sequence)
                ended[piece.sequence.id] = now_s[at]
    return [ended[call] for call in range(firsts[-1])]


def test_replicas_whose_calls_wait_for_each_other_end_them_as_in_production() -> None:
    """Groups of calls anywhere are waited for by later calls anywhere."""
    for seed in range(25):
        draw = random.Random(seed)
        loads, configs = zip(*(random_load(100 * seed + at, arrives=False) for at in range(3)), strict=True)
        links, needs = Links(loads), dict[int, set[int]]()
        order = random.Random(seed).sample(range(total := sum(len(one.prompts) for one in loads)), total)
        for at, call in enumerate(order):
            if at and draw.random() < 0.6:
                needs[call] = set(draw.sample(order[:at], min(at, draw.randint(1, 3))))
                givers = np.array(sorted(needs[call]))
                links.add(givers, np.zeros(len(givers), np.int64), np.array([call]), np.array([0]))
        runs = run_together(
            [ArrivingReplica(load, config, COST, 0.0) for load, config in zip(loads, configs, strict=True)],
            links,
        )
        found = [float(ended_s) for run in runs for ended_s in run.ended_s]
        assert found == pytest.approx(production_together(loads, configs, needs), rel=1e-9), f"seed {seed}"


@pytest.mark.parametrize(("arrives", "follows"), [(False, False), (False, True), (True, True)])
def test_calls_end_when_they_end_in_production(arrives: bool, follows: bool) -> None:
    for seed in range(25):
        load, config = random_load(seed, arrives=arrives, follows=follows)
        run = run_replica(load, config, COST, 0.5)
        assert run.ended_s.tolist() == pytest.approx(production(load, config, 0.5), rel=1e-9), f"seed {seed}"


@pytest.mark.parametrize("arrives", [False, True])
def test_what_was_generated_by_a_time_grows_to_the_answers(arrives: bool) -> None:
    for seed in range(20):
        load, config = random_load(seed, arrives=arrives)
        run = run_replica(load, config, COST, 0.0)
        end_s = float(run.ended_s.max())
        before = np.zeros(len(load.prompts), np.int64)
        for at_s in np.linspace(0, end_s, 9):
            now = run.generated_at(float(at_s))
            assert np.all(now >= before)
            has_ended = run.ended_s <= at_s
            assert now[has_ended].tolist() == load.outputs[has_ended].tolist()
            before = now
        assert run.generated_at(end_s + 1e-9).tolist() == load.outputs.tolist()


def test_a_run_that_is_stopped_and_goes_on_generates_the_rest() -> None:
    load, config = random_load(3, arrives=False)
    run = run_replica(load, config, COST, 0.0)
    half_s = float(run.ended_s.max()) / 2
    done = run.generated_at(half_s)
    left = np.flatnonzero(done < load.outputs)
    assert len(left) > 0
    assert done.sum() > 0
    rest = ReplicaLoad(
        (load.prompts + done)[left], (load.outputs - done)[left], load.ready_s[left], load.previous[left]
    )
    after = run_replica(rest, config, COST, half_s)
    assert half_s < float(after.ended_s.max()) < 1.5 * float(run.ended_s.max())


def test_the_compiled_simulation_of_chains_is_the_same() -> None:
    pytest.importorskip("numba")
    run = compiled()
    assert run is not None
    for seed in range(25):
        load, config = random_load(seed, arrives=False, follows=True)
        columns = load.prompts.tolist(), load.outputs.tolist(), load.previous.tolist()
        expected = [np.asarray(column).tolist() for column in simulate(*columns, numbers_of(config))]
        found = run(load.prompts, load.outputs, load.previous, numbers_of(config))
        assert [np.asarray(column).tolist() for column in found] == expected, f"seed {seed}"


def test_a_call_whose_prompt_never_comes_does_not_run() -> None:
    load = ReplicaLoad(np.array([4, 4]), np.array([3, 3]), np.array([0.0, inf]), np.array([-1, -1]))
    run = run_replica(load, SchedulerConfig(10, 8), COST, 0.0)
    assert run.ended_s[0] < inf
    assert run.ended_s[1] == inf
    assert run.generated_at(100.0).tolist() == [3, 0]
