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
- Nothing that clients say is relied on: ends (`silences.py`), sizes (`instance_room.py`), names
  (`context_index.py`).
- Of those that are held, the oldest for its need is next (`turns.py`). When it has not fitted for long, the
  reserve is not kept from it, and an instance is cleared for it: nobody enters there, and who comes back is
  held behind it.
- Small requests go by a lane of their own, so that chats do not wait behind agents.
- What is not likely to come back has nothing to lose. It takes no room and is not held, whatever waits in the
  queue, for an instance runs no more at once than its memory holds.

The machine is pure. Its client says what arrives, is sent and ends, by keys of its own, and asks `admit` what
may go out. A wrong belief costs time and never changes an answer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping

from stretto.cluster.messages import InstanceId
from stretto.cluster.room.call_means import EnteredRate
from stretto.cluster.room.context_index import ContextIndex
from stretto.cluster.room.contexts import Context, RoomRequest
from stretto.cluster.room.instance_room import InstanceRoom
from stretto.cluster.room.rooms import Rooms
from stretto.cluster.room.silences import Returns, Silences
from stretto.cluster.room.silent_contexts import SilentContexts
from stretto.cluster.room.turns import Held, HeldTurns, Holding
from stretto.model.record import record
from stretto.model.tasks import Usage


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

    __slots__ = (
        "common_tokens",
        "context",
        "is_first",
        "is_last",
        "lane_tokens",
        "num_output",
    )

    def __init__(self, context: Context, request: RoomRequest, common_tokens: int) -> None:
        self.context = context
        self.is_last = request.is_last
        self.is_first = not context.is_computed
        self.num_output = request.num_output
        self.common_tokens = common_tokens
        """Tokens of its beginning that it should find in the cache."""
        self.lane_tokens = 0


class Room:
    """The state machine that says who has room; see above."""

    def __init__(self) -> None:
        self.held = Held()
        self._rooms = Rooms()
        self._turns = HeldTurns(self.held, self._rooms)
        self._index = ContextIndex()
        self._silent = SilentContexts(self._index, self._rooms)
        self._requests: dict[Hashable, _Request] = {}
        self._unsent: dict[Silences, dict[Context, None]] = {}
        """The contexts whose requests are held, or have entered and were not sent yet."""
        self._rate = EnteredRate()
        self._wants_blocks = self._may_admit = False
        self._admitted_s = 0.0

    @property
    def instances(self) -> Mapping[InstanceId, InstanceRoom]:
        """The memories of the instances."""
        return self._rooms.by_id

    # --- instances

    def join(self, instance: InstanceId, kv_tokens: int | None, prefill_s: float) -> None:
        """Let programs enter at an instance, whose KV memory holds so many tokens; None if that is not known.

        `prefill_s` is the predicted seconds of the prefill of a token there.
        """
        if instance not in self.instances:
            new = InstanceRoom(instance, kv_tokens, prefill_s, self._rooms.means)
            self._rooms.by_id[instance] = new
        self._rooms.serve(instance, is_serving=True)
        self._may_admit = True

    def resize(self, instance: InstanceId, kv_tokens: int) -> None:
        """Correct the size of a memory, where its client counts tokens by another measure from now on."""
        self._rooms.by_id[instance].belief.resize(kv_tokens)
        self._may_admit = True

    def suspend(self, instance: InstanceId) -> None:
        """Let nothing more enter at an instance, which may be down, until it joins again."""
        if instance in self.instances:
            self._rooms.serve(instance, is_serving=False)
            self._rooms.let_others_enter()
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
            self._rooms.remove(instance)
            self._rooms.let_others_enter()
            self._may_admit = True

    # --- requests

    @property
    def is_guarded(self) -> bool:
        """Whether something is held, or likely to come back. If not, requests of programs that do not come
        back need not be made known.
        """
        return bool(self.held) or any(room.inside for room in self.instances.values())

    @property
    def wants_blocks(self) -> bool:
        """Whether requests should tell their blocks. While there is much room, what prompts share does not
        matter, and the program that a request names is believed.
        """
        if self._wants_blocks and not self.is_guarded:
            self._wants_blocks = False
        return self._wants_blocks

    def is_known_to_stay_away(self, kind: str, returns: Returns) -> bool:
        """Return whether enough programs of a kind have answered and not come back, so that not each of them
        has to be made known while the room is not guarded.
        """
        silences = self._index.known_silences(kind, returns)
        return silences is not None and silences.is_known and not self._silent.is_worth_room(silences)

    def arrive(self, request: RoomRequest, now_s: float) -> Entered | None:
        """Take note of a request, and return it if it may go out at once. If not, `admit` says when."""
        context = self._note_arrived(request, now_s)
        if request.is_last and context.is_inside:
            return self._go(context, self._rooms.around(context))  # it keeps its room until it ends
        if request.is_last or not self._silent.is_worth_room(context.silences):
            if context.is_inside:
                self._rooms.around(context).leave(context)
            return Entered(request.key)
        self._unsent.setdefault(context.silences, {})[context] = None
        if (entered := self._going_on(context) or self._fitting(context, now_s)) is not None:
            return entered
        self._hold(context, now_s)
        return None

    def follow_held(self, request: RoomRequest, now_s: float) -> None:
        """Take note of a request that another account of the same instances holds. It has its turn among
        those held here. `admit` returns it too, though it goes out where it was held.
        """
        if request.key not in self._requests:
            context = self._note_arrived(request, now_s)
            self._unsent.setdefault(context.silences, {})[context] = None
            self._hold(context, now_s)

    def follow(
        self, request: RoomRequest, instance: InstanceId | None, now_s: float, *, is_inside: bool
    ) -> None:
        """Take note of a request that another account of the same instances has sent to one of them, or that
        waits for its turn there if `instance` is None, and whether it `is_inside` by that account. Nothing is
        held for it any more.
        """
        arrived = self._requests.get(request.key)
        context = self._note_arrived(request, now_s) if arrived is None else arrived.context
        self._may_admit = True
        if self.held.get(request.key) is not None:
            self._turns.drop(request.key)
        if context.is_inside and not is_inside:
            self._rooms.around(context).leave(context)
        if instance is None:
            room = self._rooms.roomiest(context, keeps_reserve=False)[1] if self._rooms.serving else None
        else:
            self.sent(request.key, instance)
            room = self.instances.get(instance)
        if is_inside and not context.is_inside and room is not None:
            self._leave_lane(self._requests[request.key])
            room.enter(context)
        context.in_lane = False

    def hold_again(self, key: Hashable, now_s: float) -> None:
        """Hold a request again that has entered here and does not go out where it is held. Its program ages
        anew, so that others have their turns before.
        """
        if (arrived := self._requests.get(key)) is None or self.held.get(key) is not None:
            return
        self._leave_lane(arrived)
        self._may_admit = True
        arrived.context.program.start_s = now_s
        if self.instances:
            self._hold(arrived.context, now_s)

    def is_inside(self, key: Hashable) -> bool:
        """Return whether the context of a request has room."""
        arrived = self._requests.get(key)
        return arrived is not None and arrived.context.is_inside

    def _hold(self, context: Context, now_s: float) -> None:
        if context.is_inside:
            self._rooms.around(context).leave(context)
        self.held.add(Holding(context.request, context, self._rooms.least_need(context), now_s))

    def _note_arrived(self, request: RoomRequest, now_s: float) -> Context:
        """Take note of a request that arrives, and return the context that it goes on with."""
        self._leave_overdue(now_s)
        context, common = self._index.find(request, self.instances.values())
        if context is None:
            context = self._index.add(request, now_s)
        else:
            self._silent.end(context, request, common, now_s)
        is_kept = context.is_inside
        self._requests[request.key] = _Request(
            context, request, request.block_tokens * common if is_kept else 0
        )
        context.request, context.silences = request.key, self._index.silences(request)
        if is_kept:
            self._rooms.around(context).go_on(context, request)
        else:
            context.goes_on_with(request)
        self._rooms.means.expect(request.num_output)
        self._may_admit = True
        return context

    def admit(self, now_s: float) -> list[Entered]:
        """Return the requests that may go out now."""
        self._leave_overdue(now_s)
        entered = [*self._admit_unlikely(now_s)] if self.held else []
        if not self.held or not (self._may_admit or now_s >= self._turns.changes_s):
            return entered
        self._may_admit, self._admitted_s, self._turns.changes_s = False, now_s, math.inf
        if self._rooms.serving:
            entered += [*self._admit_small(now_s), *self._admit_oldest(now_s)]
            self._wants_blocks = self._wants_blocks or bool(self.held)
            return entered
        everyone = list(self.held)
        for holding in everyone:
            self._turns.drop(holding.key)
        return [*entered, *(Entered(one.key, None, now_s - one.since_s) for one in everyone)]

    def sent(self, key: Hashable, instance: InstanceId) -> None:
        """Note that a request was sent to an instance, which need not be the one where it has room."""
        arrived = self._requests.get(key)
        if arrived is None:
            return
        context, room = arrived.context, self.instances.get(instance)
        self._note_sent(context)
        if context.instance != instance:
            if arrived.lane_tokens:
                self._leave_lane(arrived)
                self._take_lane(arrived, room)
            if context.is_inside:
                self._rooms.around(context).leave(context)
                self._may_admit = True
                if room is not None:
                    room.enter(context)
            context.instance = instance
            arrived.common_tokens = 0
        context.is_computed = True

    def ended(
        self, key: Hashable, now_s: float, usage: Usage | None = None, *, was_refused: bool = False
    ) -> None:
        """Note that a request has ended, failed or was dropped.

        Args:
            usage: what its instance says of it; None if there was no answer.
            was_refused: whether its instance has refused it, so that nothing of it was computed.
        """
        arrived = self._requests.pop(key, None)
        if arrived is None:
            return
        self._may_admit = True
        context = arrived.context
        context.request = None
        self._note_sent(context)
        if self.held.get(key) is not None:
            self._turns.drop(key)
        self._leave_lane(arrived)
        if usage is not None:
            self._learn(arrived, usage)
        is_new = not context.is_computed or (was_refused and arrived.is_first)
        if arrived.is_last or context.program.is_over or is_new:
            self._forget(context)
            return
        if not context.is_inside:
            self._remember(context)
        elif not self._silent.patience(context):
            self._leave(context)
        if (forgotten := self._silent.begin(context, now_s)) is not None:
            self._forget(forgotten)

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
        if not self.held:
            return None
        due_s = min(self._turns.changes_s, self._silent.next_s)
        return due_s if due_s < math.inf else None

    def claimed(self) -> dict[InstanceId, int]:
        """Return how many tokens the contexts inside take of each instance's memory."""
        return {room.id: round(room.claims) for room in self.instances.values()}

    def look(self, now_s: float) -> None:
        """Let contexts leave that have been silent for too long, so that `claimed` is that of now. While
        something is held `admit` does so, at the time that `due_s` says.
        """
        if not self.held:
            self._leave_overdue(now_s)

    def wait_s(self, now_s: float) -> float:
        """Return the predicted seconds until a request that would be held now has room: until as many tokens
        have entered as those that are held need, at the rate at which they entered lately. At least a second.
        """
        return self._rate.wait_s(self.held.need, now_s)

    def reason(self) -> str:
        """Say why what is held has to wait."""
        taken = sum(self.claimed().values())
        tokens = sum(room.belief.tokens for room in self.instances.values())
        num_inside = sum(len(room.inside) for room in self.instances.values())
        return (
            f"{num_inside} contexts take {taken} of {tokens:.0f} tokens, and {len(self.held)} requests wait"
        )

    # --- who enters

    def _going_on(self, context: Context) -> Entered | None:
        """Let a request go out at once if its context has room, or is probably still in the cache, or its
        program has room with another context, and the whole memory holds what it adds. None if it may not.
        """
        if not self.instances:
            return Entered(context.request)
        if not context.is_inside:
            there = self._rooms.cached_at(context)
            return None if there is None else self._go(context, there)
        room = self._rooms.around(context)
        fits = room.claims <= room.belief.tokens or len(room.inside) == 1
        if fits and room is not self._rooms.cleared:
            return self._go(context, room)
        return None

    def _fitting(self, context: Context, now_s: float) -> Entered | None:
        """Let a newcomer enter at once if nothing is held and it fits, as `admit` would; else None."""
        if self.held or context.is_inside or not self._rooms.serving:
            return None
        need, room = self._rooms.roomiest(context)
        if room is None:
            return None
        if need > self._rooms.emptiest_lane()[1]:
            self._rate.note(need, now_s)
        return self._go(context, room)

    def _admit_unlikely(self, now_s: float) -> Iterator[Entered]:
        """Let requests go whose kind has turned out not to come back since they arrived. Those that have
        entered already take no more room.
        """
        for silences, contexts in list(self._unsent.items()):
            if not self._silent.is_worth_room(silences):
                del self._unsent[silences]
                for context in contexts:
                    if context.is_inside:
                        self._leave(context)
                    elif (holding := self.held.get(context.request)) is not None:
                        self._turns.drop(holding.key)
                        yield Entered(holding.key, None, now_s - holding.since_s)

    def _note_sent(self, context: Context) -> None:
        """Note that the request of a context was sent or has ended."""
        unsent = self._unsent.get(context.silences)
        if unsent is not None and context in unsent:
            del unsent[context]
            if not unsent:
                del self._unsent[context.silences]

    def _admit_small(self, now_s: float) -> Iterator[Entered]:
        """Let small requests that are held go by the lane, as far as it has room."""
        for holding, lane in self._turns.small(now_s):
            if (inside := self._rooms.roomiest(holding.context)[1]) is not None:
                yield self._go(holding.context, inside, now_s - holding.since_s)
            else:
                holding.context.instance = lane.id
                self._take_lane(self._requests[holding.key], lane)
                yield Entered(holding.key, lane.id, now_s - holding.since_s)

    def _admit_oldest(self, now_s: float) -> Iterator[Entered]:
        """Let requests that are held enter, in their turns."""
        for holding, need, room in self._turns.oldest(now_s):
            self._rate.note(need, now_s)
            yield self._go(holding.context, room, now_s - holding.since_s)

    def _go(self, context: Context, room: InstanceRoom, held_s: float = 0.0) -> Entered:
        """Send a request out to an instance where its context has room from now on."""
        if not context.is_inside:
            room.enter(context)
        context.in_lane = False
        self._wants_blocks = self._wants_blocks or room.is_pressed
        is_bound = self._wants_blocks and len(self.instances) > 1
        return Entered(context.request, room.id if is_bound else None, held_s)

    def _take_lane(self, arrived: _Request, room: InstanceRoom | None) -> None:
        context = arrived.context
        context.in_lane = True
        if room is not None:
            arrived.lane_tokens = max(1, context.num_tokens + arrived.num_output)
            room.lane_tokens += arrived.lane_tokens

    def _leave_lane(self, arrived: _Request) -> None:
        room = self._rooms.of(arrived.context)
        if room is not None and arrived.lane_tokens:
            room.lane_tokens -= arrived.lane_tokens
            self._may_admit = True
        arrived.lane_tokens = 0

    # --- who leaves

    def _leave_overdue(self, now_s: float) -> None:
        """Let contexts leave that have been silent for too long."""
        for context in self._silent.overdue(now_s):
            self._leave(context)

    def _leave(self, context: Context) -> None:
        self._rooms.around(context).leave(context)
        self._may_admit = True
        if context.request is None:
            self._remember(context)

    def _remember(self, context: Context) -> None:
        if (forgotten := self._silent.remember(context)) is not None:
            self._forget(forgotten)

    def _forget(self, context: Context) -> None:
        if context.is_inside:
            self._rooms.around(context).leave(context)
        self._silent.forget(context)
        self._index.forget(context)

    def _learn(self, arrived: _Request, usage: Usage) -> None:
        """Learn from the tokens of an answer, and from what its prompt found in the cache."""
        context = arrived.context
        room = self._rooms.of(context)
        if room is None or not usage.num_prompt_tokens:
            return
        self._rooms.means.note_output(usage.num_output_tokens)
        since, cached = room.computed - context.used_at, usage.num_cached_tokens
        room.belief.note(arrived.common_tokens, cached, since, room.claims)
        room.computed += usage.num_prompt_tokens - cached + usage.num_output_tokens
        context.used_at = room.computed

    def check_invariants(self) -> None:
        """Check that counts agree, and that nothing is held that has room. For tests."""
        self.held.check_invariants()
        self._turns.check_invariants()
        self._index.check_invariants()
        lanes = dict.fromkeys(self.instances, 0)
        for key, arrived in self._requests.items():
            assert arrived.context.request == key
            if arrived.lane_tokens:
                lanes[arrived.context.instance] += arrived.lane_tokens  # type: ignore[index]
        for silences, contexts in self._unsent.items():
            assert contexts
            assert all(one.silences is silences and one.request in self._requests for one in contexts)
        for room in self.instances.values():
            room.check_invariants()
            assert room.lane_tokens == lanes[room.id]
        assert all(one.key in self._requests and not one.context.is_inside for one in self.held)
        self._silent.check_invariants()
        assert self._rooms.cleared_for is None or self._turns.next(self._admitted_s) is not None
        if not self._may_admit and (first := self._turns.next(self._admitted_s)) is not None:
            assert self._turns.roomiest(first, self._admitted_s)[1] is None, "it is held though there is room"
