"""The gate between what an LLM engine's requests arrive at and its queue: it holds those of programs that
have no room in KV memory (`cluster/room/room.py`).

In the queue a request waits for its turn. At the gate it waits for room, so that it takes no part in the
order, and nothing that waits there costs time when others come or go.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from typing import TypeAlias

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.prompt_keys import PromptKeys, bytes_key
from stretto.cluster.room.contexts import RoomRequest
from stretto.cluster.room.room import Room
from stretto.cluster.room.turns import Holding
from stretto.model.errors import NoRoom
from stretto.model.profile import UNKNOWN_LLM
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Usage
from stretto.sched.by_step import ByStep
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.queries.results import Completed, failed
from stretto.sched.snapshot import HeldPicture

_Key: TypeAlias = tuple[str, int, int]
_NO_KEY = PromptKey((), 1)
_WATCHED = 8
"""Number of queries of which one is watched where their kind does not come back."""


class RoomGate:
    """The requests of an LLM engine that wait for room in KV memory, by query and step.

    Requests that nobody continues (of queries that make no other one, and of steps that are applied to lists)
    are not even made known while nothing is held and nothing has room: where all are such, the gate costs
    nothing. Of queries without the name of a program whose kind does not come back, one of `_WATCHED` is made
    known then, so that it is noticed when the kind changes. None are while the sizes of all memories are
    unknown and prompts have no keys, from which it could be told what is missing in a cache; nor are offline
    requests, which give way to others anyway.

    Attributes:
        now_s: present time, which its owner sets before other calls.
    """

    def __init__(self, engine: Engine, keys: PromptKeys) -> None:
        self._engine = engine
        self._keys = keys
        self._room = Room()
        self.now_s = 0.0
        self._sized: dict[InstanceId, None] = {}
        self._held: dict[_Key, QueueEntry] = {}
        self._of_query = ByStep[_Key]()

    def __len__(self) -> int:
        return len(self._held)

    # --- instances

    def join(self, instance: InstanceId, replica: Replica) -> None:
        """Let programs enter at an instance, which serves now."""
        if replica.kv_tokens is not None:
            self._sized[instance] = None
        prefill_s = replica.profile.per_unit_s or UNKNOWN_LLM.per_unit_s
        self._room.join(instance, replica.kv_tokens, prefill_s)

    def suspend(self, instance: InstanceId) -> None:
        """Let nothing enter at an instance that may be down."""
        self._room.suspend(instance)

    def leave(self, instance: InstanceId) -> None:
        """Forget what has room at an instance, which takes no more work."""
        self._sized.pop(instance, None)
        self._room.leave(instance)

    # --- requests

    def arrive(self, entry: QueueEntry) -> list[QueueEntry]:
        """Take note of a queue entry that arrives or is tried again, and return what of it is to be queued
        now. `released` returns the rest, item by item.
        """
        request = entry.request
        if not (self._sized or self._keys.has_spaces) or not self._engine.holds_programs:
            return [entry]
        is_last = request.is_alone and not request.record.program
        if request.record.criteria == "offline":
            return [entry]
        if not self._room.is_guarded and (
            is_last or entry.hi > entry.lo + 1 or not self._is_watched(request)
        ):
            return [entry]
        going = []
        for item in range(entry.lo, entry.hi):
            one = (
                entry
                if entry.hi == entry.lo + 1
                else entry.again(item, item + 1, attempt=entry.attempt, alone=entry.alone)
            )
            key = entry.query, request.node.id, item
            self._room.ended(key, self.now_s)
            self._of_query.add(entry.query, request.node.id, key)
            entered = self._room.arrive(self._described(one, key, is_last=is_last), self.now_s)
            if entered is None:
                self._held[key] = one
            else:
                one.room_at = entered.instance
                going.append(one)
        return going

    def _is_watched(self, request: StepRequest) -> bool:
        """Return whether a request is made known though nothing is held and nothing has room."""
        if request.record.program or not self._room.is_known_to_stay_away(_kind(request), "unlikely"):
            return True
        return zlib.crc32(request.query.encode()) % _WATCHED == 0

    def released(self) -> Iterable[QueueEntry]:
        """Return the queue entries that may go out now, one by one."""
        return self._admitted() if self._held else ()

    def _admitted(self) -> Iterator[QueueEntry]:
        for entered in self._room.admit(self.now_s):
            entry = self._held.pop(entered.key)  # type: ignore[call-overload]
            entry.room_at, entry.held_s = entered.instance, entered.held_s
            yield entry

    def sent(self, entry: QueueEntry, item: int, instance: InstanceId) -> None:
        """Note that an item was sent to an instance."""
        if entry.query in self._of_query:
            self._room.sent((entry.query, entry.request.node.id, item), instance)

    def ended(self, entry: QueueEntry, item: int, usage: Usage | None = None) -> None:
        """Note that an item has ended or left its instance; `usage` is given with an answer."""
        if entry.query in self._of_query:
            self._end((entry.query, entry.request.node.id, item), usage)

    def withdraw(self, query: str, node: int, items: Set[int] | None = None) -> int:
        """Drop the items of a node, or some of them, whether they are held or wait in the queue; return how
        many were held.
        """
        if items is None:
            keys = self._of_query.of_node(query, node)
        else:
            asked = ((query, node, item) for item in sorted(items))
            keys = [key for key in asked if self._of_query.has(query, node, key)]
        num_held = 0
        for key in keys:
            num_held += self._held.pop(key, None) is not None
            self._end(key)
        return num_held

    def end_query(self, query: str) -> None:
        """Drop all items of a query that has ended. If it was a program by itself, that has ended too."""
        for key in self._of_query.of_query(query):
            self._held.pop(key, None)
            self._end(key)
        self._room.finished(query)

    def end_program(self, program: str, tenant: str) -> None:
        """Note that a program of a tenant has ended: it makes no more requests."""
        self._room.finished((tenant, program))

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Note how urgently the results of held requests are needed now."""
        of_query = self._of_query.nodes(query)
        for node in [node for node in demands if node in of_query]:
            for key in of_query[node]:
                if key in self._held:
                    self._held[key].demand = self._held[key].sorted_as = demands[node]

    def clear(self) -> None:
        """Drop all that is held."""
        for key in list(self._held):
            del self._held[key]
            self._end(key)

    def entries(self) -> Iterator[QueueEntry]:
        """Iterate over the queue entries that are held, each with one item."""
        return iter(self._held.values())

    def claimed(self) -> dict[InstanceId, int]:
        """Return how many tokens programs take of the memory of each instance."""
        return self._room.claimed()

    def pictures(self) -> tuple[HeldPicture, ...]:
        """Return snapshots of the requests that are held, the longest held first."""
        return tuple(map(self._picture, self._room.held))

    def held_of(self, query: str) -> list[HeldPicture]:
        """Return snapshots of the requests of a query that are held."""
        found = (self._room.held.get(key) for key in self._of_query.of_query(query))
        return [self._picture(holding) for holding in found if holding is not None]

    def _picture(self, holding: Holding) -> HeldPicture:
        entry = self._held[holding.key]  # type: ignore[index]
        reason = f"its program needs {holding.need:.0f} tokens of KV memory; {self._room.reason()}"
        step, record = entry.request.step, entry.request.record
        return HeldPicture(entry.query, record.tenant, record.program, step, holding.since_s, reason)

    def due_s(self) -> float | None:
        """Return the time at which `released` or `overdue` should be asked even if nothing happens."""
        if not self._held:
            return None
        due_s, limit_s = self._room.due_s(), self._engine.max_hold_s
        if limit_s == math.inf:
            return due_s
        oldest = next(iter(self._room.held))
        return min(oldest.since_s + limit_s, math.inf if due_s is None else due_s)

    def overdue(self) -> list[Completed]:
        """Remove the requests that have been held for too long; return reports of their failures."""
        limit_s = self._engine.max_hold_s
        late: list[Completed] = []
        while limit_s < math.inf and (oldest := next(iter(self._room.held), None)) is not None:
            if self.now_s < oldest.since_s + limit_s:
                break
            wait_s, reason = self._room.wait_s(self.now_s), self._room.reason()
            entry = self._held.pop(oldest.key)  # type: ignore[call-overload]
            self._end(oldest.key)  # type: ignore[arg-type]
            error = NoRoom(
                f"engine {self._engine.name!r} had no room in KV memory for {limit_s:g} s: {reason}",
                retry_after_s=wait_s,
            )
            late.append(failed(entry.request, entry.lo, entry.hi, error))
        return late

    def check_invariants(self) -> None:
        """Check the room, and that what it holds is held here. For tests."""
        self._room.check_invariants()
        assert {holding.key for holding in self._room.held} == set(self._held)

    def _end(self, key: _Key, usage: Usage | None = None) -> None:
        query, node, _ = key
        if self._of_query.has(query, node, key):
            self._of_query.remove(query, node, key)
            self._room.ended(key, self.now_s, usage)

    def _described(self, entry: QueueEntry, key: Hashable, *, is_last: bool) -> RoomRequest:
        request, record = entry.request, entry.request.record
        prompt = request.prompts[entry.lo - request.lo]
        found = _NO_KEY
        if self._room.wants_blocks or not self._sized:
            keys = self._keys.of(prompt, record.tenant)
            found = next(iter(keys.values()), None) or bytes_key(prompt, record.tenant)
        return RoomRequest(
            key,
            request.program_key,
            _kind(request),
            entry.num_units(entry.lo, entry.lo + 1),
            found.blocks,
            found.block_tokens,
            entry.num_output,
            "likely" if record.program and (request.is_continued or not request.each) else "unlikely",
            is_last,
        )


def _kind(request: StepRequest) -> str:
    """Return the name of what resembles a request: programs come back after answers of one kind alike."""
    return "/".join((request.record.tenant, *request.source))
