"""Routers before the same workers tell each other what they send: the state machines, without sockets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec")

from stretto.cluster.placement import Placement
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.prefix_hashes import PackedHashes
from stretto.model.errors import BadReply, ConfigError
from stretto.router.announcing.announcer import BEAT_S, GATHER_S, PRESSED_S
from stretto.router.announcing.wire import MOST_LETTERS, read_message, write_message
from stretto.router.config import RouterConfig
from stretto.router.messages import (
    Cut,
    NamedProgram,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Ticket,
    WorkerId,
    WorkerUsage,
)
from stretto.router.peers.peers import SILENT_S
from stretto.router.peers.shares import kept, parts
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

MODELS = {"m": {"id": "m"}}
NUM_WORKERS = 3
STEP_S = 0.05
CHECKED = 5


def key_of(name: int, num_blocks: int) -> PromptKey:
    blocks = b"".join((name * 1_000_003 + place).to_bytes(8, "little") for place in range(num_blocks))
    return PromptKey(PackedHashes(blocks), 64)


def request_of(name: int, num_blocks: int = 20, owner: str = "t", program: str = "") -> RoutedRequest:
    key = key_of(name, num_blocks)
    named = NamedProgram(program or f"={name}")
    return RoutedRequest(
        model="m", num_tokens=64 * num_blocks, max_tokens=50, key=key, tenant=owner, program=named
    )


class Door:
    """One router: its state machine, what follows its peers, and the requests that run and wait there."""

    def __init__(
        self,
        name: str,
        *,
        num_slots: int = 8,
        kv_tokens: int | None = None,
        placement: Placement | None = None,
        **more: object,
    ) -> None:
        workers = [
            WorkerConfig(
                url=f"http://w{number}/v1" if name > "a" else f"http://w{number}", num_slots=num_slots
            )
            for number in range(NUM_WORKERS)
        ]
        self.state = RouterState(RouterConfig(**more), placement or Stretto())  # type: ignore[arg-type]
        for config in workers:
            worker = self.state.membership.add(config).id
            self.state.membership.check_passed(worker, MODELS, kv_tokens, 0.0)
        self.peers = self.state.follow_peers(name)
        self.running: dict[Ticket, WorkerId] = {}
        self.waiting: set[Ticket] = set()
        self.num_acts = 0

    def act(self, actions: list[RouterAction]) -> None:
        for action in actions:
            match action:
                case Send(ticket, worker):
                    self.waiting.discard(ticket)
                    self.running[ticket] = worker
                case Refuse(ticket) | Cut(ticket):
                    self.waiting.discard(ticket)
                    self.running.pop(ticket, None)
        self.num_acts += 1
        if self.num_acts % CHECKED == 0:
            self.check_invariants()

    def check_invariants(self) -> None:
        self.state.check_invariants()
        self.peers.check_invariants()

    def ask(self, request: RoutedRequest, now_s: float) -> Ticket:
        ticket, actions = self.state.arrive(request, now_s)
        self.waiting.add(ticket)
        self.act(actions)
        return ticket

    def end(self, ticket: Ticket, now_s: float, num_cached: int | None = None) -> None:
        del self.running[ticket]
        self.act(self.state.answered(ticket, 200, WorkerUsage(1280, 20, num_cached), now_s))

    def tell(self, now_s: float) -> list[bytes]:
        return [write_message(one) for one in self.peers.announcer.messages(now_s)]

    def hear(self, data: bytes, now_s: float) -> None:
        self.act(self.peers.receive(data, now_s))

    def forget_silent(self, now_s: float) -> None:
        self.act(self.peers.forget_silent(now_s))

    def loads(self) -> list[tuple[int, int]]:
        """Return how many requests run at each worker, and their tokens, those of peers included."""
        views = [self.state._loads.table.get(worker) for worker in range(NUM_WORKERS)]
        return [(view.num_running, view.running_tokens) for view in views if view is not None]


def exchange(doors: list[Door], now_s: float, num: int = 4) -> float:
    """Let routers tell each other everything, without a loss, until nothing is left to tell."""
    for _ in range(num):
        now_s += BEAT_S
        for door in doors:
            for data in door.tell(now_s):
                for other in doors:
                    other.hear(data, now_s)
    for door in doors:
        door.check_invariants()
    return now_s


def test_what_one_router_sends_counts_at_the_other_until_it_ends() -> None:
    one, other = doors = [Door("a"), Door("b")]
    first = one.ask(request_of(1), 0.0)
    second = other.ask(request_of(2), 0.0)
    now_s = exchange(doors, 0.0)
    assert one.loads() == other.loads()
    assert sum(num for num, _ in one.loads()) == 2
    one.end(first, now_s)
    other.end(second, now_s)
    exchange(doors, now_s)
    assert one.loads() == other.loads() == [(0, 0)] * NUM_WORKERS


def test_a_prompt_goes_where_the_other_router_has_sent_its_beginning() -> None:
    one, other = doors = [Door("a"), Door("b")]
    now_s = 0.0
    for name in range(6):
        ticket = one.ask(request_of(name), now_s)
        worker = one.running[ticket]
        one.end(ticket, now_s)
        now_s = exchange(doors, now_s)
        again = other.ask(request_of(name, 25), now_s)
        assert other.running[again] == worker
        other.end(again, now_s, num_cached=1280)


def test_a_router_that_begins_later_learns_what_workers_hold_and_run() -> None:
    one, late = Door("a"), Door("b")
    first = one.ask(request_of(7), 0.0)
    worker = one.running[first]
    held = one.ask(request_of(8), 0.0)
    held_at = one.running[held]
    one.end(held, 0.0)
    for now_s in (0.1, 0.2):
        one.tell(now_s)  # nobody hears it
    now_s = exchange([one, late], 1.0)
    assert late.loads() == one.loads()
    assert late.loads()[worker][0] == 1
    assert late.running[late.ask(request_of(8, 30), now_s)] == held_at


def test_a_router_that_is_started_again_learns_what_it_has_sent_itself() -> None:
    one, old = Door("a"), Door("b")
    ticket = old.ask(request_of(3), 0.0)
    worker = old.running[ticket]
    now_s = exchange([one, old], 0.0)
    new = Door("c")
    now_s += SILENT_S
    one.forget_silent(now_s)
    now_s = exchange([one, new], now_s)
    assert one.loads() == new.loads() == [(0, 0)] * NUM_WORKERS
    assert new.running[new.ask(request_of(3, 30), now_s)] == worker


def test_a_silent_router_is_forgotten_and_comes_back_with_what_it_runs() -> None:
    one, other = doors = [Door("a"), Door("b")]
    other.ask(request_of(1), 0.0)
    now_s = exchange(doors, 0.0)
    assert sum(num for num, _ in one.loads()) == 1
    one.forget_silent(now_s + SILENT_S - 0.1)
    assert len(one.peers.origins) == 1
    one.forget_silent(now_s + SILENT_S)
    assert len(one.peers.origins) == 0
    assert one.loads() == [(0, 0)] * NUM_WORKERS
    exchange(doors, now_s + SILENT_S)
    assert one.loads() == other.loads()


def test_a_router_that_says_that_it_ends_is_forgotten_at_once() -> None:
    one, other = doors = [Door("a"), Door("b")]
    other.ask(request_of(1), 0.0)
    now_s = exchange(doors, 0.0)
    one.hear(write_message(other.peers.announcer.farewell()), now_s)
    assert one.loads() == [(0, 0)] * NUM_WORKERS


def test_places_that_another_router_frees_go_to_what_waits_here() -> None:
    one, other = doors = [Door("a", num_slots=1), Door("b", num_slots=1)]
    taken = [one.ask(request_of(name), 0.0) for name in range(NUM_WORKERS)]
    assert len(one.running) == NUM_WORKERS
    now_s = exchange(doors, 0.0)
    waits = other.ask(request_of(9), now_s)
    assert waits in other.waiting
    for ticket in taken:
        one.end(ticket, now_s)
    exchange(doors, now_s)
    assert waits in other.running


def test_each_router_gets_its_share_of_workers_that_the_other_has_filled() -> None:
    one, other = doors = [Door("a", num_slots=4), Door("b", num_slots=4)]
    for number in range(60):
        one.ask(request_of(number, owner="first"), 0.0)
    now_s = exchange(doors, 0.0)
    for number in range(60):
        other.ask(request_of(100 + number, owner="second"), now_s)
    assert (len(one.running), len(other.running)) == (4 * NUM_WORKERS, 0)
    now_s = exchange(doors, now_s)
    for _ in range(12):
        for door in doors:
            for ticket in list(door.running)[:2]:
                door.end(ticket, now_s)
        now_s = exchange(doors, now_s)
    assert (len(one.running), len(other.running)) == (2 * NUM_WORKERS, 2 * NUM_WORKERS)


def test_programs_of_another_router_take_room_in_kv_memory() -> None:
    one, other = doors = [Door("a", kv_tokens=10_000), Door("b", kv_tokens=10_000)]
    alone = Door("c", kv_tokens=10_000)
    now_s = 0.0
    for number in range(24):
        request = request_of(number, 20)
        request = replace(request, program=NamedProgram(str(number), shared=f"={number}"))
        doors[number % 2].ask(request, now_s)
        alone.ask(request, now_s)
        now_s = exchange(doors, now_s)
    claims = [
        sum(door.state.view.claimed(worker, now_s)[0] for worker in range(NUM_WORKERS))
        for door in (one, other, alone)
    ]
    assert alone.waiting
    assert abs(len(one.waiting) + len(other.waiting) - len(alone.waiting)) <= 1
    assert max(claims) <= 1.1 * min(claims)


def test_a_program_that_comes_before_its_last_end_was_told_takes_its_room_once() -> None:
    one, other = doors = [Door("a", kv_tokens=10_000), Door("b", kv_tokens=10_000)]
    alone = Door("c", kv_tokens=10_000)
    now_s = 0.0
    for turn in range(4):
        request = request_of(1, 20 + turn)
        request = replace(request, program=NamedProgram("1", shared="=1"))
        here = doors[turn % 2]
        tickets = {door: door.ask(request, now_s) for door in (here, alone)}
        now_s = exchange(doors, now_s, 1)
        claims = [
            sum(door.state.view.claimed(worker, now_s)[0] for worker in range(NUM_WORKERS))
            for door in (one, other, alone)
        ]
        for door, ticket in tickets.items():
            door.end(ticket, now_s)
    assert claims[2] > 0
    assert max(claims) - min(claims) <= 2  # rounded


def test_what_another_router_does_not_wait_for_is_not_kept() -> None:
    one, other = doors = [Door("a", num_slots=4), Door("b", num_slots=4)]
    for number in range(20):
        one.ask(request_of(number), 0.0)
    ticket = other.ask(request_of(100), exchange(doors, 0.0))
    now_s = exchange(doors, 1.0)
    while ticket in other.waiting:
        one.end(next(iter(one.running)), now_s)
        now_s = exchange(doors, now_s)
    now_s = exchange(doors, now_s)
    assert len(one.running) + len(other.running) == 4 * NUM_WORKERS
    other.forget_silent(now_s)
    one.forget_silent(now_s + SILENT_S)
    assert len(one.running) == min(4 * NUM_WORKERS, len(one.running) + len(one.waiting))


@pytest.mark.parametrize("placement", [Stretto, LeastLoaded])
def test_what_another_router_cannot_use_is_not_kept(placement: Callable[[], Placement]) -> None:
    """It waits for one worker, as for another model, or as it does not reach the others."""
    one, other = doors = [Door(name, num_slots=4, placement=placement()) for name in "ab"]
    for worker in range(1, NUM_WORKERS):
        other.act(other.state.membership.check_failed(worker, "it is away", 0.0))
    for number in range(20):
        other.ask(request_of(number), 0.0)
    for number in range(20, 60):
        one.ask(request_of(number), 0.0)
    now_s = exchange(doors, 0.0)
    for ticket in [*one.running]:
        one.end(ticket, now_s)
    exchange(doors, now_s)
    assert one.waiting
    views = [one.state._loads.table.get(worker) for worker in range(NUM_WORKERS)]
    kept = [0 if view is None else view.kept_slots for view in views]
    assert kept[1:] == [0, 0]
    assert [num for num, _ in one.loads()[1:]] == [4, 4]


def test_parts_of_a_worker_are_by_the_weights_of_the_owners_that_wait() -> None:
    weights = {"a": 1.0, "b": 3.0}
    routers = [{"w": {"a": 5}}, {"w": {"b": 1}, "v": {"a": 1}}, {}]
    assert parts(routers, "w", weights.__getitem__) == [0.25, 0.75, 0.0]
    assert parts(routers, "v", weights.__getitem__) == [0.0, 1.0, 0.0]
    assert parts(routers, "u", weights.__getitem__) == [0.0, 0.0, 0.0]
    assert parts([{"": {"a": 1}}, {"w": {"a": 9}}], "w", weights.__getitem__) == [0.5, 0.5]
    assert [kept(0.5, 8, has) for has in (0, 3, 4, 9)] == [4, 1, 0, 0]


def test_names_of_any_length_and_letters_are_told() -> None:
    one, other = doors = [Door("a"), Door("b")]
    for model in ("x" * 5 * MOST_LETTERS, "\ud800\udfff", "modèle 模型"):
        one.ask(replace(request_of(1), model=model), 0.0)
    exchange(doors, 0.0)
    assert sum(num for num, _ in other.loads()) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"hello",
        b"\x91" * 5000,
        write_message(["batch", "x", -1, [], {}, {}]),
        write_message(["batch", "", 1, [], {}, {}]),
        write_message(["batch", "x", 1, [["sent", 1]], {}, {}]),
        write_message(["history", "x", [["http://w0", b"short"]]]),
        write_message(["batch", "x", 1, [], {"t": float("nan")}, {}]),
        write_message(["unknown", "x"]),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    door = Door("a")
    with pytest.raises(BadReply):
        door.peers.receive(data, 0.0)
    assert door.loads() == [(0, 0)] * NUM_WORKERS


def test_a_router_tells_at_once_while_something_waits_at_another_one() -> None:
    """Batches of a router that does not say so, and of one that says more, are read too."""
    door = Door("a")
    found = []
    for fields in ((), (True,), (False,), (True, "a field of later")):
        door.hear(write_message(["batch", "b", 0, [], {}, {}, None, *fields]), 0.0)
        found.append(door.peers.gather_s)
    assert found == [GATHER_S, PRESSED_S, GATHER_S, PRESSED_S]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 10**6))
def test_damaged_messages_never_break_a_router(noise: bytes, seed: int) -> None:
    source = random.Random(seed)
    one, other = Door("a"), Door("b")
    one.ask(request_of(1), 0.0)
    for message in one.tell(0.0):
        damaged = bytearray(message)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        for data in (bytes(damaged), noise):
            try:
                read_message(data)
            except BadReply:
                continue
            try:
                other.hear(data, 0.0)
            except BadReply:
                continue
    ticket = other.ask(request_of(2), 0.0)
    assert ticket in other.running or ticket in other.waiting
    other.check_invariants()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 3), st.floats(0.0, 0.5), st.integers(1, 8))
def test_routers_agree_after_lost_repeated_and_reordered_messages(
    seed: int, num_doors: int, lost_share: float, num_slots: int
) -> None:
    source = random.Random(seed)
    doors = [Door(name, num_slots=num_slots) for name in "abc"[:num_doors]]
    on_the_way: list[tuple[int, bytes]] = []
    now_s = 0.0
    for _ in range(60):
        now_s += STEP_S
        door = source.choice(doors)
        if source.random() < 0.6:
            door.ask(request_of(source.randrange(12), source.randrange(1, 30), source.choice("tu")), now_s)
        elif door.running:
            door.end(source.choice(list(door.running)), now_s)
        for number, one in enumerate(doors):
            if source.random() < 0.5:
                on_the_way += [(number, data) for data in one.tell(now_s)]
        source.shuffle(on_the_way)
        for _ in range(source.randrange(4)):
            if on_the_way:
                number, data = on_the_way.pop() if source.random() < 0.8 else on_the_way[-1]
                for place, one in enumerate(doors):
                    if place != number and source.random() >= lost_share:
                        one.hear(data, now_s)
        if source.random() < 0.02:
            source.choice(doors).forget_silent(now_s + SILENT_S)
    now_s = exchange(doors, now_s, 8)
    assert len({tuple(door.loads()) for door in doors}) == 1
    assert sum(num for num, _ in doors[0].loads()) == sum(len(door.running) for door in doors)
    while any(door.running or door.waiting for door in doors):
        assert any(door.running for door in doors), "all wait for each other"
        for door in doors:
            for ticket in list(door.running):
                door.end(ticket, now_s)
        now_s = exchange(doors, now_s, 8)
    assert all(door.loads() == [(0, 0)] * NUM_WORKERS and not door.waiting for door in doors)


def test_addresses_that_are_none_are_refused() -> None:
    for bad in (
        "7400",
        "tcp://host",
        "http://host:1",
        "tcp://a b:1",
        "tcp://host:port",
        "tcp://host:99999",
        "tcp://::1:7400",
    ):
        with pytest.raises(ConfigError, match="it must be tcp://HOST:PORT"):
            RouterConfig(announce=bad)
        with pytest.raises(ConfigError, match="it must be tcp://HOST:PORT"):
            RouterConfig(announce="tcp://127.0.0.1:1", peer=(bad,))
    with pytest.raises(ConfigError, match="peer is given without announce"):
        RouterConfig(peer=("tcp://127.0.0.1:7400",))


def modest_share(num_doors: int, gather_s: float, seconds: float = 20.0) -> float:
    """Return the part of the answers that 8 clients get beside 24 of another tenant, of 9 places.

    Each asks the doors in turn, 0.2 s after its last answer; an answer takes 0.3 to 0.7 s.
    """
    draw, order = random.Random(num_doors), count()
    doors = [Door("ab"[number], num_slots=3) for number in range(num_doors)]
    events: list[tuple[float, int, Callable[[float], None]]] = []
    sent: dict[tuple[int, Ticket], tuple[str, int]] = {}
    running: set[tuple[int, Ticket]] = set()
    num_ended = Counter[str]()

    def at(at_s: float, do: Callable[[float], None]) -> None:
        heappush(events, (at_s, next(order), do))

    def look(now_s: float) -> None:
        """Let what has begun end later, and doors hear what there is to tell."""
        for number, door in enumerate(doors):
            for ticket in door.running.keys() - {one for where, one in running if where == number}:
                running.add((number, ticket))
                at(now_s + draw.uniform(0.3, 0.7), partial(end, number, ticket))
            for data in door.tell(now_s) if num_doors == 2 else ():
                at(now_s + gather_s, partial(doors[1 - number].hear, data))

    def ask(tenant: str, turn: int, now_s: float) -> None:
        where = turn % num_doors
        request = request_of(next(order), 2, tenant)
        sent[where, doors[where].ask(request, now_s)] = tenant, turn

    def end(where: int, ticket: Ticket, now_s: float) -> None:
        running.remove((where, ticket))
        doors[where].end(ticket, now_s)
        tenant, turn = sent.pop((where, ticket))
        num_ended[tenant] += now_s > seconds / 3
        at(now_s + draw.uniform(0.1, 0.3), partial(ask, tenant, turn + 1))

    for number in range(32):
        at(draw.uniform(0.0, 0.1), partial(ask, "greedy" if number % 4 else "modest", number))
    while events[0][0] < seconds:
        now_s, _, do = heappop(events)
        do(now_s)
        look(now_s)
    return num_ended["modest"] / num_ended.total()


def test_a_tenant_gets_through_two_routers_what_it_gets_through_one() -> None:
    alone = modest_share(1, 0.0)
    assert alone > 0.4
    assert modest_share(2, 0.002) > 0.9 * alone
