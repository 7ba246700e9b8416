"""What a neighbour costs in policy `stretto`: for as long as two requests that meet run beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Dispatched, Joined
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.stretto import Stretto
from stretto.model.profile import Profile

GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.03, per_neighbour_s=0.001)
SPACE, BLOCK, OUTPUT = "text", 64, 200


class Fleet:
    """Instances with so many neighbours each, and the policy."""

    def __init__(self, *neighbours: int) -> None:
        self.policy = Stretto()
        self.table = InstanceTable(self.policy.load, with_full=True)
        for number, running in enumerate(neighbours):
            self.policy.observe(Joined(number, SPACE, None))
            view = InstanceView(number, GPU, 2**30, 2**10, SPACE)
            view.num_running = view.num_decoding = running
            view.expected_output = OUTPUT
            self.table.join(view)

    def place(self, prompt: int, num_blocks: int, now_s: float) -> tuple[int, float]:
        """Place a prompt; return its instance, and what its neighbours there delay its own answer by."""
        blocks = [f"{prompt}/{number}".encode().ljust(8)[:8] for number in range(num_blocks)]
        request = PlacementRequest(num_blocks * BLOCK, OUTPUT, {SPACE: PromptKey(blocks, BLOCK)})
        choice = self.policy.choose(request, self.table, now_s)
        assert choice is not None
        self.policy.observe(Dispatched(choice.instance, request, now_s))
        return choice.instance, choice.terms["decode_s"] - OUTPUT * GPU.per_output_s


def test_two_that_meet_are_beside_each_other_for_half_of_an_answer() -> None:
    _, delay_s = Fleet(4).place(0, 4, 0.0)
    assert delay_s == pytest.approx(4 * OUTPUT * GPU.per_neighbour_s / 2)


@pytest.mark.parametrize(
    "length", [lambda dice: 100.0, lambda dice: dice.expovariate(0.01), lambda dice: dice.paretovariate(2.5)]
)
def test_that_is_so_whatever_the_lengths_are(length: Callable[[random.Random], float]) -> None:
    """One that runs at a random time is the likelier to be met the longer it is."""
    dice = random.Random(1)
    met = [length(dice) for _ in range(40_000)]
    others = dice.choices(met, weights=met, k=len(met))
    both = [min(dice.uniform(0, one), length(dice)) for one in others]
    assert sum(both) / len(both) == pytest.approx(sum(met) / len(met) / 2, rel=0.05)


def test_neighbours_cost_less_where_later_requests_are_free_to_go_elsewhere() -> None:
    """Prompts that nobody holds make up for a choice; those of one conversation go where it is held."""
    free, bound = Fleet(1, 1), Fleet(1, 1)
    for number in range(100):
        now_s = number / 10
        delays_s = free.place(number, 4, now_s)[1], bound.place(0, 40, now_s)[1]
    assert delays_s[0] < 0.5 * delays_s[1]


@pytest.mark.parametrize(("num_free", "stays"), [(0, False), (400, True)])
def test_a_prefix_is_left_for_fewer_neighbours_only_where_they_stay(num_free: int, *, stays: bool) -> None:
    """Its holder has eight requests more. While nothing else comes, that costs more than the prefill."""
    fleet = Fleet(0, 0)
    holder, _ = fleet.place(0, 40, 0.0)
    view = fleet.table.get(holder)
    assert view is not None
    view.num_running = view.num_decoding = 8
    fleet.table.changed(holder)
    for number in range(num_free):
        fleet.place(1 + number, 1, 1.0 + number / 40)
    assert (fleet.place(0, 40, 12.0)[0] == holder) is stays
