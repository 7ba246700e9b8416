"""Requests that other routers hold for room in KV memory, where their accounts differ from the one here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("msgspec")

from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.prefix_hashes import PackedHashes
from stretto.router.announcing.wire import (
    LeftRecord,
    PeerBatch,
    PeerRecord,
    SentRecord,
    WaitingRecord,
    write_message,
)
from stretto.router.config import RouterConfig
from stretto.router.messages import NamedProgram, RoutedRequest, RouterAction, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

KV = 400_000
BLOCK = 64
LARGE = 4000


def blocks_of(name: int, num: int) -> bytes:
    return b"".join((name * 1_000_003 + place).to_bytes(8, "little") for place in range(num))


class Door:
    """A router, what it hears of another one, and the requests that it has sent."""

    def __init__(self, models: Mapping[str, Sequence[str]]) -> None:
        self.state = RouterState(RouterConfig(max_hold_s=1e6), Stretto())
        for url, names in models.items():
            worker = self.state.membership.add(WorkerConfig(url=url, num_slots=8)).id
            self.state.membership.check_passed(worker, {name: {} for name in names}, KV, 0.0)
        self.peers = self.state.follow_peers("us")
        self.sent: list[int] = []
        self.num_heard = 0

    def act(self, actions: Sequence[RouterAction]) -> None:
        self.sent += [one.ticket for one in actions if isinstance(one, Send)]
        self.state.check_invariants()

    def ask(self, name: int, num_blocks: int, now_s: float, model: str = "m") -> int:
        key = PromptKey(PackedHashes(blocks_of(name, num_blocks)), BLOCK)
        program = NamedProgram(str(name), has_returned=True)
        request = RoutedRequest(
            model=model, num_tokens=BLOCK * num_blocks, max_tokens=50, key=key, tenant="t", program=program
        )
        ticket, actions = self.state.arrive(request, now_s)
        self.act(actions)
        return ticket

    def end(self, ticket: int, num_tokens: int, now_s: float) -> None:
        self.act(self.state.answered(ticket, 200, WorkerUsage(num_tokens, 20, 0), now_s))

    def hear(self, now_s: float, *records: PeerRecord) -> None:
        self.num_heard += 1
        self.act(self.peers.receive(write_message(PeerBatch("other", self.num_heard, [*records])), now_s))
        self.peers.check_invariants()

    def held(self) -> list[object]:
        return [one.key for pool in self.state._room._pools for one in pool.room.held]


def held_there(name: int, num_blocks: int, model: str = "m") -> WaitingRecord:
    blocks = blocks_of(name, num_blocks)
    return WaitingRecord(name, model, "t", str(name), True, False, BLOCK * num_blocks, 50, blocks, "held")


def sent_there(name: int, num_blocks: int, worker: str, model: str = "m") -> SentRecord:
    return SentRecord(
        request=name,
        model=model,
        owner="t",
        program=str(name),
        has_returned=True,
        is_final=False,
        num_tokens=BLOCK * num_blocks,
        num_output=50,
        blocks=blocks_of(name, num_blocks),
        room="inside",
        attempt=name,
        worker=worker,
        held_tokens=0,
        objective="latency",
    )


def test_what_is_held_elsewhere_and_sent_to_a_worker_of_other_models_is_held_no_longer() -> None:
    """Which workers are pooled depends on the order in which they came, which routers do not share."""
    door = Door({"http://1": ["m"], "http://2": ["n"], "http://3": ["m", "n"]})
    door.ask(1, LARGE, 0.0, "n")
    waits = door.ask(2, LARGE, 0.0, "n")
    door.hear(0.1, held_there(3, 10, "n"))
    door.hear(0.2, sent_there(3, 10, "http://3", "n"))
    assert door.held() == [waits]
    door.hear(0.3, LeftRecord(3, None, 0, 0, False))
    assert all(ticket >= 0 for ticket in door.state._room._of_ticket)


def test_what_is_held_elsewhere_and_sent_to_a_worker_that_is_not_known_here_is_held_no_longer() -> None:
    door = Door({"http://1": ["m"]})
    door.ask(1, LARGE, 0.0)
    waits = door.ask(2, LARGE, 0.0)
    door.hear(0.1, held_there(3, LARGE))
    assert len(door.held()) == 2
    door.hear(0.2, sent_there(3, LARGE, "http://elsewhere"))
    assert door.held() == [waits]


def test_room_that_is_given_to_what_another_router_does_not_send_is_taken_back() -> None:
    """Each of two routers may think that a request of the other one is next, and waited for it for ever."""
    door = Door({"http://1": ["m"]})
    first = door.ask(1, LARGE, 0.0)
    door.hear(1.0, held_there(3, LARGE))
    waits = door.ask(2, LARGE, 2.0)
    door.end(first, BLOCK * LARGE, 3.0)
    door.act(door.state.end_program("t", "1", 3.0))
    assert door.held() == [waits]
    assert door.sent == [first]
    due_s = door.state.timers.next_due_s
    assert due_s is not None
    assert due_s <= 6.0
    door.act(door.state.timers.expire(6.0))
    assert door.sent == [first, waits]
    assert len(door.held()) == 1
