"""Who has room: which programs may keep their contexts in the KV memory of the instances of one model.

Agents come back after each answer with a prompt that is the last one and a little more. While the contexts of
all of them fit, such a prompt costs little. When they do not, each evicts what the next one needs, and every
prompt is computed anew. So a program *enters* before its first request goes out, where its context fits
beside those inside; what does not fit is *held*. The rules:

- What prompts share counts once (`instance_room.py`).
- Newcomers leave a reserve, in which those inside grow. Who is inside is held too if the whole memory would
  not hold its next prompt.
- Who is inside leaves when its program has ended, or has been silent so long that it is not likely to be back
  while keeping its tokens costs less than computing them again.
- Nothing that clients say is relied on: ends (`silences.py`), sizes (`kv_belief.py`), names
  (`context_index.py`).
- Of those that are held, the oldest for its need enters first, and nobody overtakes it (`held.py`). Only
  small requests do, by a lane of their own, so that chats do not wait behind agents.
- Where nothing inside is likely to come back, nothing is lost, so that everything enters.

The machine is pure. Its client says what arrives, is sent and ends, by keys of its own, and asks `admit` what
may go out. A wrong belief costs time and never changes an answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heappop, heappush

from stretto.cluster.messages import InstanceId
from stretto.cluster.room.context_index import ContextIndex
from stretto.cluster.room.contexts import Context, RoomRequest
from stretto.cluster.room.held import Held, Holding
from stretto.cluster.room.instance_room import InstanceRoom
from stretto.cluster.room.silences import bin_of, end_s
from stretto.model.record import record
from stretto.model.tasks import Usage

_RESERVE = 0.10
_LANE_SIZE, _LANE_IN_FLIGHT = 0.02, 0.05
"""Parts of the memory that one request by the lane may take, and all of them together."""
_MEAN_WEIGHT = 0.02
_PRESSED = 0.5
"""Part of the memory from which on requests go where their context has room, whatever the placement policy
would choose."""
_MOST_OUTSIDE = 10_000
_RATE_S = 60.0
"""Seconds after which tokens that have entered count as 1/e in their rate."""
_LONG_AGO = 2.0
"""Memories that an instance has computed since a context was used from which on its prefix is gone for sure.
"""
_CLASS = 1.25


@record
class Entered:
    """A request that may go out now: to `instance`, or, if that is None, where its client likes. It was held
    for `held_s` seconds.
    """

    key: Hashable
    instance: InstanceId | None = None
    held_s: float = 0.0


class _Request:
    """A request that has arrived and not ended."""

    __slots__ = ("common_tokens", "context", "is_last", "lane_tokens", "num_output")

    def __init__(self, context: Context, request: RoomRequest, common_tokens: int) -> None:
        self.context = context
        self.is_last = request.is_last
        self.num_output = request.num_output
        self.common_tokens = common_tokens
        """Tokens of its beginning that it should find in the cache."""
        self.lane_tokens = 0


class Room:
    """The state machine that says who has room; see above."""

    def __init__(self) -> None:
        self.instances: dict[InstanceId, InstanceRoom] = {}
        self.held = Held()
        self._index = ContextIndex()
        self._outside: OrderedDict[Context, None] = OrderedDict()
        self._requests: dict[Hashable, _Request] = {}
        self._edges: list[tuple[float, int, float]] = []
        self._growth = self._output = 0.0
        self._num_ended = self._num_returned = 0
        self._wants_blocks = self._may_admit = False
        self._entered_tokens = self._entered_s = 0.0
        self._first_s = math.inf
        self._admitted_s = 0.0

    # --- instances

    def join(self, instance: InstanceId, kv_tokens: int | None, prefill_s: float) -> None:
        """Let programs enter at an instance, whose KV memory holds so many tokens; None if that is not known.

        `prefill_s` is the predicted seconds of the prefill of a token there.
        """
        if instance not in self.instances:
            self.instances[instance] = InstanceRoom(instance, kv_tokens, prefill_s)
        self.instances[instance].is_serving = True
        self._may_admit = True

    def suspend(self, instance: InstanceId) -> None:
        """Let nothing more enter at an instance, which may be down, until it joins again."""
        if instance in self.instances:
            self.instances[instance].is_serving = False
            self._may_admit = True

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance. The contexts there have no room any more."""
        room = self.instances.get(instance)
        if room is not None:
            for context in list(room.inside):
                self._leave(context)
            for arrived in self._requests.values():
                if arrived.context.instance == instance:
                    arrived.lane_tokens = 0
            del self.instances[instance]
            self._may_admit = True

    # --- requests

    @property
    def is_guarded(self) -> bool:
        """Whether something is held, or likely to come back. If not, requests of programs that do not come
        back need not be made known.
        """
        return bool(self.held) or any(room.num_protected for room in self.instances.values())

    @property
    def wants_blocks(self) -> bool:
        """Whether requests should tell their blocks. While there is much room, what prompts share does not
        matter, and the program that a request names is believed.
        """
        if self._wants_blocks and not self.is_guarded:
            self._wants_blocks = False
        return self._wants_blocks

    def arrive(self, request: RoomRequest, now_s: float) -> Entered | None:
        """Take note of a request, and return it if it may go out at once. If not, `admit` says when."""
        self._pass_edges(now_s)
        context, common = self._index.find(request, self.instances.values())
        if context is None:
            context = self._index.add(request, now_s)
        else:
            self._end_silence(context, request, common, now_s)
        self._outside.pop(context, None)
        is_kept = context.is_inside
        arrived = _Request(context, request, request.block_tokens * common if is_kept else 0)
        self._requests[request.key] = arrived
        context.request, context.silences = request.key, self._index.silences(request)
        if is_kept:
            self._room_of(context).go_on(context, request, common)
        else:
            context.goes_on_with(request)
        if not self._num_ended:
            self._output = max(self._output, request.num_output)
        self._may_admit = True
        if (entered := self._going_on(context, arrived)) is not None:
            return entered
        if context.is_inside:
            self._room_of(context).leave(context)
        self.held.add(Holding(request.key, context, self._least_need(context), now_s))
        return None

    def admit(self, now_s: float) -> list[Entered]:
        """Return the requests that may go out now."""
        self._pass_edges(now_s)
        if not self._may_admit or not self.held:
            return []
        self._may_admit, self._admitted_s = False, now_s
        if any(room.is_serving for room in self.instances.values()):
            entered = [*self._admit_small(now_s), *self._admit_oldest(now_s)]
            self._wants_blocks = self._wants_blocks or bool(self.held)
            return entered
        everyone = list(self.held)
        for holding in everyone:
            self.held.remove(holding.key)
        return [Entered(holding.key, None, now_s - holding.since_s) for holding in everyone]

    def sent(self, key: Hashable, instance: InstanceId) -> None:
        """Note that a request was sent to an instance, which need not be the one where it has room."""
        arrived = self._requests.get(key)
        if arrived is None:
            return
        context, room = arrived.context, self.instances.get(instance)
        if context.instance != instance:
            if arrived.lane_tokens:
                self._leave_lane(arrived)
                self._take_lane(arrived, room)
            if context.is_inside:
                is_protected = context.is_protected
                self._room_of(context).leave(context)
                self._may_admit = True
                if room is not None:
                    room.enter(context)
                    room.protect(context, is_protected=is_protected)
            context.instance = instance
            arrived.common_tokens = 0
        context.is_computed = True

    def ended(self, key: Hashable, now_s: float, usage: Usage | None = None) -> None:
        """Note that a request has ended, failed or was dropped; `usage` is what its instance says, None if
        there was no answer.
        """
        arrived = self._requests.pop(key, None)
        if arrived is None:
            return
        self._may_admit = True
        context = arrived.context
        context.request = None
        if self.held.get(key) is not None:
            self.held.remove(key)
        self._leave_lane(arrived)
        if usage is not None:
            self._learn(arrived, usage)
        if arrived.is_last or context.program.is_over or not context.is_computed:
            self._forget(context)
            return
        context.last_s, context.bin = now_s, 0
        if not context.is_inside:
            self._note_outside(context)
        elif self._patience(context) > 0:
            self._room_of(context).protect(context, is_protected=True)
        else:
            self._leave(context)
        self._watch(context)

    def finished(self, program: Hashable) -> None:
        """Note that a program has ended: it makes no more requests."""
        found = self._index.programs.pop(program, None)
        if found is not None:
            found.is_over = True
            for context in list(found.contexts):
                if context.request is None:
                    self._forget(context)
            self._may_admit = True

    def due_s(self) -> float | None:
        """Return the time at which `admit` should be called even if nothing happens, or None."""
        return self._edges[0][0] if self.held and self._edges else None

    def claimed(self) -> dict[InstanceId, int]:
        """Return how many tokens the contexts inside take of each instance's memory."""
        return {name: round(room.claims(self._per_call)) for name, room in self.instances.items()}

    def wait_s(self, now_s: float) -> float:
        """Return the predicted seconds until a request that would be held now has room: until as many tokens
        have entered as those that are held need, at the rate at which they entered lately. At least a second.
        """
        seen_s = min(_RATE_S, max(1.0, now_s - self._first_s))
        entered = self._entered_tokens * math.exp((self._entered_s - now_s) / _RATE_S)
        return max(1.0, self.held.need * seen_s / entered) if entered > 1.0 else _RATE_S

    def reason(self) -> str:
        """Say why what is held has to wait."""
        taken = sum(self.claimed().values())
        tokens = sum(room.belief.tokens for room in self.instances.values())
        num_inside = sum(len(room.inside) for room in self.instances.values())
        return (
            f"{num_inside} contexts take {taken} of {tokens:.0f} tokens, and {len(self.held)} requests wait"
        )

    # --- who enters

    def _going_on(self, context: Context, arrived: _Request) -> Entered | None:
        """Let a request go out at once if its context has room, or is probably still in the cache, or its
        program has room with another context, and the whole memory holds what it adds. None if it may not.
        """
        if not self.instances:
            return Entered(context.request)
        per_call = self._per_call
        if context.is_inside:
            room = self._room_of(context)
            fits = room.claims(per_call) <= room.belief.tokens
            if fits or room.num_protected - context.is_protected == 0:
                return self._go(context, arrived, room)
            return None
        inside = [one.instance for one in context.program.contexts if one.is_inside]
        for instance in dict.fromkeys((context.instance, *inside)):
            there = None if instance is None else self.instances.get(instance)
            if there is None or not there.is_serving:
                continue
            taken = there.claims(per_call) + there.adds(context, per_call)
            is_cached = instance in inside or (
                context.is_computed
                and not context.in_lane
                and taken + there.computed - context.used_at <= there.belief.tokens
            )
            if is_cached and taken <= there.belief.tokens:
                return self._go(context, arrived, there)
        return None

    def _admit_small(self, now_s: float) -> Iterator[Entered]:
        """Let small requests that are held go by the lane, as far as it has room."""
        rooms = [room for room in self.instances.values() if room.is_serving]
        while rooms:
            room = max(rooms, key=lambda one: _LANE_IN_FLIGHT * one.belief.tokens - one.lane_tokens)
            free = _LANE_IN_FLIGHT * room.belief.tokens - room.lane_tokens
            holding = self.held.best(now_s, min(free, _LANE_SIZE * room.belief.tokens))
            if holding is None:
                return
            arrived = self._requests[holding.key]
            self.held.remove(holding.key)
            if (inside := self._roomiest(holding.context)[1]) is not None:
                yield self._go(holding.context, arrived, inside, now_s - holding.since_s)
            else:
                holding.context.instance = room.id
                self._take_lane(arrived, room)
                yield Entered(holding.key, room.id, now_s - holding.since_s)

    def _admit_oldest(self, now_s: float) -> Iterator[Entered]:
        """Let requests that are held enter, the oldest for its need first, until one does not fit."""
        while (holding := self.held.best(now_s)) is not None:
            need, room = self._roomiest(holding.context)
            if need > _CLASS * holding.need:
                self.held.replace(holding, need)
                continue
            if room is None:
                return
            self.held.remove(holding.key)
            self._count_entered(need, now_s)
            arrived = self._requests[holding.key]
            yield self._go(holding.context, arrived, room, now_s - holding.since_s)

    def _count_entered(self, need: float, now_s: float) -> None:
        """Count the tokens of a request that was held and enters."""
        self._first_s = min(self._first_s, now_s)
        faded = math.exp((self._entered_s - now_s) / _RATE_S)
        self._entered_tokens, self._entered_s = self._entered_tokens * faded + need, now_s

    def _roomiest(self, context: Context) -> tuple[float, InstanceRoom | None]:
        """Return how many tokens a context that is outside adds where it adds the fewest, and the instance
        where it should enter: where it was, or where most room is left beside it; None if it fits nowhere.
        """
        per_call, least, best, most = self._per_call, math.inf, None, 0.0
        serving = [room for room in self.instances.values() if room.is_serving]
        largest = max(room.belief.tokens for room in serving)
        for room in serving:
            adds = room.adds(context, per_call)
            least = min(least, adds)
            left = (1.0 - _RESERVE) * room.belief.tokens - room.claims(per_call) - adds
            if left < 0.0 and (room.num_protected or room.belief.tokens < min(adds, largest)):
                continue
            if room.id == context.instance and context.is_computed:
                return adds, room
            if best is None or left > most:
                best, most = room, left
        return least, best

    def _least_need(self, context: Context) -> float:
        return min(room.adds(context, self._per_call) for room in self.instances.values())

    def _go(self, context: Context, arrived: _Request, room: InstanceRoom, held_s: float = 0.0) -> Entered:
        """Send a request out to an instance where its context has room from now on."""
        if not context.is_inside:
            room.enter(context)
        context.in_lane = False
        room.protect(context, is_protected=not arrived.is_last and self._patience(context) > 0)
        self._wants_blocks = self._wants_blocks or room.claims(self._per_call) > _PRESSED * room.belief.tokens
        is_pressed = room.num_protected > 0 and self._wants_blocks
        is_bound = is_pressed and len(self.instances) > 1
        return Entered(context.request, room.id if is_bound else None, held_s)

    def _take_lane(self, arrived: _Request, room: InstanceRoom | None) -> None:
        context = arrived.context
        context.in_lane = True
        if room is not None:
            arrived.lane_tokens = max(1, context.num_tokens + arrived.num_output)
            room.lane_tokens += arrived.lane_tokens

    def _leave_lane(self, arrived: _Request) -> None:
        room = self.instances.get(arrived.context.instance)  # type: ignore[arg-type]
        if room is not None and arrived.lane_tokens:
            room.lane_tokens -= arrived.lane_tokens
            self._may_admit = True
        arrived.lane_tokens = 0

    # --- who leaves

    def _patience(self, context: Context) -> int:
        """Return the bin of silences with whose begin a context inside leaves."""
        return context.silences.patience(self._room_of(context).keeps_for_s())

    def _watch(self, context: Context) -> None:
        """Look at a silent context again when it has been silent for too long to keep its room, or, if it has
        none, at the end of the bin that it is in.
        """
        number = context.bin
        if context.is_inside:
            number = max(number, self._patience(context) - 1)
        if (edge_s := end_s(number)) < math.inf:
            heappush(self._edges, (context.last_s + edge_s, context.number, context.last_s))

    def _pass_edges(self, now_s: float) -> None:
        """Count the silences that have lasted until the end of a bin by now, and let contexts leave for which
        that is too long.
        """
        while self._edges and self._edges[0][0] <= now_s:
            at_s, number, last_s = heappop(self._edges)
            context = self._index.get(number)
            if context is None or context.request is not None or context.last_s != last_s:
                continue
            while context.last_s + end_s(context.bin) <= at_s:
                context.silences.pass_bin(context.bin)
                context.bin += 1
            if context.is_inside and context.bin >= self._patience(context):
                self._leave(context)
            self._watch(context)

    def _end_silence(self, context: Context, request: RoomRequest, common: int, now_s: float) -> None:
        """Learn from a program that has come back."""
        is_useful = 2 * common >= len(context.blocks)
        number = bin_of(now_s - context.last_s)
        for passed in range(context.bin, number):
            context.silences.pass_bin(passed)
        context.silences.end_in(number, is_useful=is_useful)
        growth = request.num_tokens - context.num_tokens
        if is_useful and growth >= 0:
            self._num_returned += 1
            self._growth += max(_MEAN_WEIGHT, 1 / self._num_returned) * (growth - self._growth)

    def _leave(self, context: Context) -> None:
        self._room_of(context).leave(context)
        self._may_admit = True
        if context.request is None:
            self._note_outside(context)

    def _note_outside(self, context: Context) -> None:
        """Remember a silent context without room, as long as its prefix may be in the cache."""
        self._outside[context] = None
        self._outside.move_to_end(context)
        oldest = next(iter(self._outside))
        room = self.instances.get(oldest.instance)  # type: ignore[arg-type]
        is_gone = room is None or room.computed - oldest.used_at > _LONG_AGO * room.belief.tokens
        if (is_gone and oldest is not context) or len(self._outside) > _MOST_OUTSIDE:
            self._forget(oldest)

    def _forget(self, context: Context) -> None:
        if context.is_inside:
            self._room_of(context).leave(context)
        self._outside.pop(context, None)
        self._index.forget(context)

    # --- what is learned

    def _learn(self, arrived: _Request, usage: Usage) -> None:
        context = arrived.context
        room = self.instances.get(context.instance)  # type: ignore[arg-type]
        if room is None or not usage.num_prompt_tokens:
            return
        self._num_ended += 1
        weight = max(_MEAN_WEIGHT, 1 / self._num_ended)
        self._output += weight * (usage.num_output_tokens - self._output)
        since = room.computed - context.used_at
        cached = usage.num_cached_tokens
        room.belief.note(arrived.common_tokens, cached, since, room.claims(self._per_call))
        room.computed += usage.num_prompt_tokens - cached + usage.num_output_tokens
        context.used_at = room.computed

    @property
    def _per_call(self) -> float:
        """Tokens by which a context inside is going to grow."""
        return self._growth + self._output

    def _room_of(self, context: Context) -> InstanceRoom:
        assert context.instance is not None
        return self.instances[context.instance]

    def check_invariants(self) -> None:
        """Check that counts agree, and that nothing is held that has room. For tests."""
        self.held.check_invariants()
        self._index.check_invariants()
        lanes = dict.fromkeys(self.instances, 0)
        for key, arrived in self._requests.items():
            assert arrived.context.request == key
            if arrived.lane_tokens:
                lanes[arrived.context.instance] += arrived.lane_tokens  # type: ignore[index]
        for room in self.instances.values():
            room.check_invariants()
            assert room.lane_tokens == lanes[room.id]
        assert all(one.key in self._requests and not one.context.is_inside for one in self.held)
        assert all(one.request is None and not one.is_inside for one in self._outside)
        if not self._may_admit and (first := self.held.best(self._admitted_s)) is not None:
            assert self._roomiest(first.context)[1] is None, "it is held though there is room"
