"""Policies that follow held prefixes: their rules, case by case, and what other routers got wrong."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from benchmarks.baselines import PLACEMENTS
from benchmarks.baselines.placements.lmetric import LMetric
from benchmarks.baselines.placements.loadaware import LoadAware
from benchmarks.baselines.placements.oracle_partition import OraclePartition, partition
from benchmarks.baselines.placements.prefix_threshold import PrefixThreshold
from benchmarks.baselines.placements.scorers import Scorers
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Choice, Dispatched, Ended, Joined, Left, Placement
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.e2 import E2, HISTORY, WARM_UP
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.prefix_hashes import PackedHashes, PrefixHasher
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.model.profile import Profile

HASHER = PrefixHasher(64)
GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.02, per_neighbour_s=0.0005)
PREFIX_POLICIES = [name for name, new in PLACEMENTS.items() if issubclass(type(new()), ScoredPlacement)]


class Fleet:
    """Instances, a policy, and the requests that it has placed."""

    def __init__(self, policy: Placement, num: int = 4, cache_tokens: int = 100_000) -> None:
        self.policy = policy
        self.table = InstanceTable(policy.load, with_full=True)
        for instance in range(num):
            policy.observe(Joined(instance, "s", cache_tokens))
            self.table.join(InstanceView(instance, GPU, cache_tokens, num_slots=64, space="s"))

    def choose(self, request: PlacementRequest, now_s: float = 0.0) -> Choice:
        choice = self.policy.choose(request, self.table, now_s)
        assert choice is not None
        assert all(value == value for value in choice.terms.values())
        return choice

    def send(self, request: PlacementRequest, now_s: float = 0.0) -> int:
        """Place a request and let it run."""
        instance = self.choose(request, now_s).instance
        self.send_to(instance, request, now_s)
        return instance

    def send_to(self, instance: int, request: PlacementRequest, now_s: float = 0.0) -> None:
        self.policy.observe(Dispatched(instance, request, now_s))
        self.change(instance, num_running=1, running_tokens=request.all_tokens)

    def end(self, instance: int, request: PlacementRequest) -> None:
        self.policy.observe(Ended(instance, request))
        self.change(instance, num_running=-1, running_tokens=-request.all_tokens)

    def change(self, instance: int, **changes: float) -> None:
        view = self.table.get(instance)
        assert view is not None
        for name, difference in changes.items():
            setattr(view, name, getattr(view, name) + difference)
        self.table.changed(instance)


def prompt(*parts: tuple[int, int], output: int = 50) -> PlacementRequest:
    """A request whose prompt has for each (seed, length) pair so many random tokens."""
    ids = [token for seed, length in parts for token in random.Random(seed).choices(range(50_000), k=length)]
    key = PromptKey(HASHER.hash_ids(ids, 0), 64)
    return PlacementRequest(num_tokens=len(ids), expected_output=output, keys={"s": key})


def fleets(names: Sequence[str] = PREFIX_POLICIES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("new", [PLACEMENTS[name] for name in names], ids=names)


@fleets()
def test_a_duplicate_and_a_prefix_of_a_held_prompt_hit(new: Callable[[], Placement]) -> None:
    """Preble's code sends the same prompt to instances 0, 1, 2, 3, 0, 1, 2, 3."""
    fleet = Fleet(new())
    first = prompt((1, 4000))
    home = fleet.send(first)
    fleet.end(home, first)
    for request in (prompt((1, 4000)), prompt((1, 2000)), prompt((1, 4000), (2, 500))):
        choice = fleet.choose(request)
        assert choice.instance == home
        assert choice.held_tokens >= 0.85 * request.num_tokens
        fleet.send_to(home, request)
        fleet.end(home, request)


@fleets()
def test_holders_2_and_3_are_never_taken_for_0(new: Callable[[], Placement]) -> None:
    """Preble's code takes the place in a list of holders for the number of an instance."""
    fleet = Fleet(new())
    for instance in (2, 3):
        request = prompt((1, 4000))
        fleet.send_to(instance, request)
        fleet.end(instance, request)
    for _ in range(6):
        request = prompt((1, 4000), (3, 100))
        home = fleet.send(request)
        assert home in (2, 3)
        fleet.end(home, request)


@fleets()
def test_paced_requests_for_different_prompts_spread(new: Callable[[], Placement]) -> None:
    """Paced requests meet loads of 0, with which a router once sent all to its first worker."""
    fleet = Fleet(new())
    counts: Counter[int] = Counter()
    for seed in range(80):
        request = prompt((100 + seed, 1500))
        home = fleet.send(request, float(seed))
        fleet.end(home, request)
        counts[home] += 1
    assert max(counts.values()) <= 30, counts
    assert len(counts) == 4


@fleets([name for name in PREFIX_POLICIES if name not in ("scorers", "e2")])
def test_a_miss_goes_to_the_least_wait(new: Callable[[], Placement]) -> None:
    """Not to the one with the smallest tree, whatever its load. That of `e2` is the load of past requests."""
    fleet = Fleet(new())
    for seed in range(8):
        request = prompt((seed, 2000))
        fleet.send_to(seed % 3, request)
        fleet.end(seed % 3, request)
    for _ in range(20):
        fleet.send_to(3, prompt(output=400))
    fleet.change(3, prefill_s=5.0, num_decoding=20, expected_output=100)
    fleet.send_to(0, prompt((50, 500)))
    fleet.send_to(2, prompt((51, 500)))
    assert fleet.choose(prompt((99, 1500))).instance == 1


@fleets(["stretto", "lmetric", "kv_cost", "prefix_threshold", "e2"])
def test_a_match_of_one_percent_is_no_affinity(new: Callable[[], Placement]) -> None:
    fleet = Fleet(new())
    fleet.send_to(0, prompt((1, 64), (2, 6000)))
    fleet.change(0, prefill_s=0.5)
    assert fleet.choose(prompt((1, 64), (3, 6000))).instance != 0


@fleets(["stretto", "lmetric", "kv_cost", "loadaware", "scorers"])
def test_one_busy_instance_loses_its_affinity_alone(new: Callable[[], Placement]) -> None:
    """The imbalance of one instance once turned off prefix routing in the whole fleet."""
    fleet = Fleet(new())
    for instance in range(4):
        request = prompt((instance, 3000))
        fleet.send_to(instance, request)
        fleet.end(instance, request)
    for number in range(50):
        fleet.send_to(0, prompt((1000 + number, 500), output=400))
    fleet.change(0, prefill_s=3.0, num_decoding=40, waiting_s=8.0, num_waiting=30, expected_output=200)
    assert fleet.choose(prompt((0, 3000), (9, 100))).instance != 0
    for instance in (1, 2, 3):
        assert fleet.choose(prompt((instance, 3000), (9, 100))).instance == instance


@fleets()
def test_only_true_prefixes_count(new: Callable[[], Placement]) -> None:
    fleet = Fleet(new())
    fleet.send_to(1, prompt((1, 1000), (2, 3000)))
    assert fleet.choose(prompt((3, 64), (1, 1000), (2, 3000))).held_tokens == 0


@fleets()
def test_conversations_of_thousands_of_turns(new: Callable[[], Placement]) -> None:
    """Preble's code fails after 989 turns."""
    converse(Fleet(new(), cache_tokens=10_000_000), 2_000)


def test_a_conversation_of_ten_thousand_turns_stays_where_it_began() -> None:
    assert len(converse(Fleet(Stretto(), cache_tokens=10_000_000), 10_000)) == 1


def converse(fleet: Fleet, num_turns: int) -> set[int]:
    """Place the turns of a conversation, each a block longer than the one before; return its instances."""
    hashes, homes = b"", set()
    for turn in range(num_turns):
        hashes += turn.to_bytes(8, "little")
        key = PromptKey(PackedHashes(hashes), 64)
        request = PlacementRequest(num_tokens=64 * (turn + 1), keys={"s": key})
        home = fleet.send(request, float(turn))
        fleet.end(home, request)
        homes.add(home)
    return homes


@fleets()
def test_prefills_of_all_lengths_cost_something(new: Callable[[], Placement]) -> None:
    """Preble's formula is negative for 360 tokens, so that such prompts attract others."""
    for num_tokens in (1, 64, 300, 360, 383, 384, 5000):
        choice = Fleet(new()).choose(prompt((1, num_tokens)))
        assert sum(choice.terms.values()) >= 0
        assert choice.terms.get("prefill_s", 1.0) > 0


@fleets()
def test_who_has_left_is_never_chosen_and_its_holdings_are_forgotten(new: Callable[[], Placement]) -> None:
    fleet = Fleet(new())
    for instance in range(4):
        fleet.send_to(instance, prompt((1, 4000)))
    for gone in (0, 1, 2):
        fleet.policy.observe(Left(gone))
        fleet.table.leave(gone)
        assert fleet.send(prompt((1, 4000))) > gone


def test_stretto_weighs_a_held_prefix_against_the_wait_for_it() -> None:
    fleet = Fleet(Stretto(), 2)
    fleet.send_to(0, request := prompt((1, 4000)))
    fleet.end(0, request)
    fleet.change(0, prefill_s=0.35)
    assert fleet.choose(prompt((1, 4000), (2, 100))).instance == 0, "0.35 s of waiting save 0.4 s"
    fleet.change(0, prefill_s=0.15)
    choice = fleet.choose(prompt((1, 4000), (2, 100)))
    assert choice.instance == 1
    assert list(choice.terms) == [
        "wait_s",
        "prefill_s",
        "eviction_s",
        "slowdown_s",
        "decode_s",
        "later_s",
        "move_s",
        "class_s",
        "apart_s",
    ]


def test_stretto_spares_what_others_use() -> None:
    """Two full caches: one of prompts that nobody asks for again, one of a prompt that many use."""
    fleet = Fleet(Stretto(), 2, cache_tokens=6400)
    for number in range(9):
        for instance, seed in ((0, 1), (1, number)):
            request = prompt((seed, 6400), output=0)
            fleet.send_to(instance, request, float(number))
            fleet.end(instance, request)
    choice = fleet.choose(prompt((77, 3200), output=0), 9.0)
    new_tokens_s = 3 * 3200 * GPU.per_unit_s
    assert choice.instance == 1
    assert choice.terms["eviction_s"] == pytest.approx(new_tokens_s), "nothing that is evicted comes again"


def test_stretto_skips_terms_only_of_instances_that_lose() -> None:
    """Caches are full, so that the damage by evictions is a term of every score."""
    draw, policy = random.Random(5), Stretto()
    fleet, flying = Fleet(policy, 4, cache_tokens=8000), []
    num_skipped = 0
    for number in range(300):
        request = prompt((draw.randrange(6), 1500), (100 + number, draw.randrange(64, 900)))
        now_s = 0.1 * number
        for view in fleet.table:
            view.prefill_s, view.prefill_from_s = draw.uniform(0.0, 0.2), now_s - draw.random()
        choice = fleet.choose(request, now_s)
        held, sums = policy.index.held(request), {}
        for view in fleet.table:
            skipped = sum(policy.terms(request, view, held.of(view), now_s))
            policy.lowest, before = math.inf, policy.lowest
            sums[view.id] = sum(policy.terms(request, view, held.of(view), now_s))
            num_skipped += skipped < sums[view.id]
            policy.lowest = before
        assert sums[choice.instance] == min(sums.values()) == sum(choice.terms.values())
        fleet.send_to(choice.instance, request, now_s)
        flying.append((choice.instance, request))
        if len(flying) > 8:
            fleet.end(*flying.pop(0))
    assert num_skipped > 0


def test_stretto_does_not_wait_for_what_is_computed_of_a_prefill() -> None:
    """A prefill of 0.5 s begins at 10.0: at once another instance is better than to wait for it."""
    fleet = Fleet(Stretto(), 2)
    fleet.send_to(0, prompt((1, 4000)), 10.0)
    fleet.change(0, prefill_s=0.5, prefill_from_s=10.0)
    waits = [fleet.choose(prompt((1, 4000), (2, 100)), now_s).terms["wait_s"] for now_s in (10.0, 10.3, 11.0)]
    assert waits == pytest.approx([0.0, 0.2, 0.0])


def test_stretto_counts_the_delay_of_those_who_come_while_an_instance_is_busy() -> None:
    """The same prefill costs more where many requests come, and most on an instance that is busy for long."""
    few, many = Fleet(Stretto(), 1), Fleet(Stretto(), 1)
    for number in range(400):
        for fleet, pause_s in ((few, 0.25), (many, 0.05)):
            fleet.send_to(0, request := prompt((1, 640)), now_s := pause_s * number)
            fleet.end(0, request)
    later = [fleet.choose(prompt((2, 4000)), now_s).terms["later_s"] for fleet in (few, many)]
    assert 0.0 < 2 * later[0] < later[1]
    many.change(0, prefill_s=1.0, num_running=1, prefill_from_s=now_s)
    assert many.choose(prompt((2, 4000)), now_s).terms["later_s"] > 3 * later[1]


def test_stretto_prefers_the_faster_of_unlike_instances() -> None:
    fleet = Fleet(Stretto(), 1)
    fast = Profile(base_s=0.001, per_unit_s=0.00002, per_output_s=0.005)
    fleet.policy.observe(Joined(9, "s", 100_000))
    fleet.table.join(InstanceView(9, fast, 100_000, space="s"))
    assert fleet.choose(prompt((1, 1000))).instance == 9


def test_prefix_threshold_follows_prefixes_until_the_load_is_imbalanced() -> None:
    fleet = Fleet(PrefixThreshold(), 2)
    for _ in range(64):
        fleet.send_to(0, prompt((1, 640)))
    assert fleet.choose(prompt((1, 640))).instance == 0
    assert fleet.choose(prompt((1, 64), (2, 640))).instance == 1, "a share of 9 % is too little"
    fleet.send_to(0, prompt((1, 640)))
    assert fleet.choose(prompt((1, 640))).instance == 1


def test_lmetric_multiplies_prefill_and_requests() -> None:
    fleet = Fleet(LMetric(), 2)
    fleet.send_to(0, prompt((1, 640)))
    assert fleet.choose(prompt((1, 640), (2, 640))).instance == 1, "2 x 640 against 1 x 1280: a tie"
    assert fleet.choose(prompt((1, 640), (2, 64))).instance == 0


def test_loadaware_subtracts_the_relative_load() -> None:
    fleet = Fleet(LoadAware(), 2)
    fleet.send_to(0, prompt((1, 640)))
    fleet.send_to(1, prompt((2, 640)))
    fleet.send_to(0, prompt((1, 640)))
    choice = fleet.choose(prompt((1, 640), (3, 640)))
    assert choice.instance == 1, "its share of the prompt is lost, its load is half"


def test_scorers_give_cold_prompts_to_each_instance_in_turn() -> None:
    fleet = Fleet(Scorers(), 3, cache_tokens=1_000_000)
    assert sorted(fleet.send(prompt((seed, 640))) for seed in range(3)) == [0, 1, 2]


def test_the_oracle_sends_each_part_to_one_instance() -> None:
    portions = [prompt((seed, 640)) for seed in range(8)]
    blocks = [request.keys["s"].blocks[9] for request in portions]
    parts = partition([(block, 1.0 + n) for n, block in enumerate(blocks)], 4)
    loads = Counter(parts[block] for block in blocks)
    assert set(loads.values()) == {2}
    fleet = Fleet(OraclePartition(parts))
    for seed, block in enumerate(blocks):
        homes = {fleet.send(prompt((seed, 640), (50 + n, 100))) for n in range(4)}
        assert homes == {parts[block]}


# --- E2


def test_e2_exploits_if_more_is_held_than_missing() -> None:
    fleet = Fleet(E2(), 2)
    fleet.send_to(0, prompt((1, 1280)))
    assert fleet.choose(prompt((1, 1280), (2, 1152))).reason.startswith("exploit")
    assert fleet.choose(prompt((1, 1280), (2, 1408))).reason.startswith("explore")


def test_e2_goes_to_the_holder_of_the_key_portion() -> None:
    """Instance 0 holds the long beginning, instance 1 too, and 0 alone the short rest."""
    fleet = Fleet(E2(), 3)
    fleet.send_to(0, prompt((1, 3200), (2, 64)))
    fleet.send_to(1, prompt((1, 3200), (3, 64)))
    fleet.send_to(0, prompt((9, 640)))
    choice = fleet.choose(prompt((1, 3200), (2, 64), (4, 64)))
    assert choice.instance == 1, "both hold the key portion, 1 has less load"


def test_e2_counts_load_eviction_and_prefill() -> None:
    fleet = Fleet(E2(), 2, cache_tokens=1280)
    fleet.send_to(0, prompt((1, 640), output=10))
    fleet.send_to(0, prompt((2, 640), output=10))
    view = fleet.table.get(0)
    assert view is not None
    terms = E2.terms(fleet.policy, prompt((3, 640)), view, 0, 0.0)  # type: ignore[arg-type]
    assert terms[0] == pytest.approx(2 * (0.005 + 10 * 0.02) + 0.0001 * 1280)
    assert terms[1] == pytest.approx(0.0001 * 640)
    assert terms[2] == pytest.approx(0.005 + 0.0001 * 640)


def test_e2_keeps_its_load_up_to_date() -> None:
    """Incremental sums equal sums over the history."""
    fleet, draw = Fleet(E2(), 3), random.Random(3)
    policy = fleet.policy
    assert isinstance(policy, E2)
    for number in range(HISTORY + 200):
        request = prompt((draw.randrange(30), 320), (number, 64))
        fleet.end(fleet.send(request, number), request)
    policy.check_invariants()
    policy.observe(Left(1))
    policy.check_invariants()


def test_e2_without_adjustments_or_balancing_goes_by_prefixes_and_costs_alone() -> None:
    fleet = Fleet(E2(adjusts_loads=False, balances_decodes=False), 2)
    for number in range(2 * WARM_UP):
        fleet.send_to(0, prompt((1, 1280), (number, 64)))
    assert fleet.choose(prompt((1, 1280), (5, 64))).instance == 0
    choice = fleet.choose(prompt((5, 640)))
    assert (choice.instance, choice.reason) == (1, "explore: lowest cost")


def test_e2_redirects_exploits_of_an_overloaded_instance() -> None:
    fleet = Fleet(E2(), 2)
    for number in range(2 * WARM_UP):
        instance = 0 if number % 3 else 1
        request = prompt((1, 1280)) if instance == 0 else prompt((2, 640))
        fleet.send_to(instance, request)
        fleet.end(instance, request)
        if number == WARM_UP:
            assert fleet.choose(prompt((1, 1280), (5, 64))).instance == 0, "too early to tell"
    choice = fleet.choose(prompt((1, 1280), (5, 64)))
    assert (choice.instance, choice.reason) == (1, "rebalance: it has the least load")


def test_e2_gives_a_miss_to_the_instance_bound_by_decodes() -> None:
    fleet = Fleet(E2(), 2)
    for _ in range(30):
        fleet.send_to(0, prompt((1, 3200)))
    fleet.send_to(1, prompt((2, 640)))
    choice = fleet.choose(prompt((5, 640)))
    assert (choice.instance, choice.reason) == (0, "explore: it is bound by decodes")


def test_held_prefixes_count_at_instances_without_a_profile() -> None:
    fleet = Fleet(Stretto())
    for view in fleet.table:
        view.profile = Profile()
        fleet.table.changed(view.id)
    first = prompt((1, 4000))
    holder = fleet.send(first)
    fleet.end(holder, first)
    assert [fleet.choose(prompt((1, 4000), (2, 100))).instance for _ in range(3)] == [holder] * 3
