"""Plans are put on the devices where the most loading is saved."""

from __future__ import annotations

import itertools
from random import Random

from stretto.planner.keep_loaded import keep_loaded
from stretto.planner.plan import Plan, PlannedReplica, Stage

Loaded = dict[tuple[str, tuple[int, ...]], float]


def saved(plan: Plan, loaded: Loaded) -> float:
    taken: set[int] = set()
    total_s = 0.0
    for one in plan.stages[0].replicas:
        if taken.isdisjoint(one.devices):
            total_s += loaded.get((one.model, one.devices), 0.0)
        taken.update(one.devices)
    return total_s


def random_state(random: Random) -> tuple[Plan, Loaded]:
    """Return a plan of four devices, and replicas that run on them."""

    def replicas() -> list[PlannedReplica]:
        found, at = [], 0
        while at < 4:
            width = random.choice([tp for tp in (1, 2, 4) if at % tp == 0 and at + tp <= 4])
            found.append(PlannedReplica(random.choice("ab"), tuple(range(at, at + width))))
            at += width
        return found

    later = PlannedReplica("c", (random.randrange(4),))
    running = random.sample(now := replicas(), random.randint(1, len(now)))
    loaded = {(one.model, one.devices): random.uniform(5, 50) for one in running}
    return Plan("test", (Stage((*replicas(), later)),)), loaded


def test_the_renumbering_saves_as_much_as_the_best_of_all() -> None:
    """All orders are tried that keep every group of the plan aligned."""
    for seed in range(1000):
        plan, loaded = random_state(Random(seed))
        (stage,) = plan.stages
        widths = {one.tp for one in stage.replicas}
        best_s = 0.0
        for order in itertools.permutations(range(4)):
            if 2 in widths and any(order[at] // 2 != order[at + 1] // 2 for at in (0, 2)):
                continue
            moved = tuple(
                PlannedReplica(one.model, tuple(sorted(order[device] for device in one.devices)))
                for one in stage.replicas
            )
            best_s = max(best_s, saved(Plan("moved", (Stage(moved),)), loaded))
        found = keep_loaded(plan, 4, loaded)
        assert abs(saved(found, loaded) - best_s) < 1e-9, seed
        assert [(one.model, one.tp) for one in found.stages[0].replicas] == [
            (one.model, one.tp) for one in stage.replicas
        ]


def test_devices_beside_the_last_whole_group_stay() -> None:
    plan = Plan("test", (Stage((PlannedReplica("a", (0, 1)), PlannedReplica("b", (2,)))),))
    found = keep_loaded(plan, 3, {("a", (0, 1)): 9.0, ("b", (2,)): 5.0})
    assert found == plan
