"""The load of an LLM engine's instances, from which the placement policy chooses one for a request.

A running request counts against an instance's budget with its prompt and the output expected of it. What
requests of jobs share counts once, where the instance shares it (`shared_context.py`). A running request
delays others by its prefill until its first output, and by its part of every step while it decodes: all
sequences of an instance decode side by side.

Offline requests give way to all others, so that these and the placement policy do not see them. An offline
request goes to the instance with the most room beside everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.load_order import Load
from stretto.cluster.loading import loading_shares
from stretto.cluster.messages import InstanceId, KVReport, LoadReport
from stretto.cluster.placement import (
    Bound,
    Choice,
    Dispatched,
    Ended,
    Joined,
    Left,
    Placement,
    PlacementEvent,
    PlacementRequest,
    Unbound,
)
from stretto.cluster.prompt_keys import PromptKeys
from stretto.costs.offline import OfflineLimits
from stretto.model.deployment import Engine, Replica
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.running_request import Running
from stretto.sched.llm.shared_context import SharedContext
from stretto.sched.queries.request import QueueEntry

DEFAULT_BUDGET_TOKENS = 8192
"""Default budget of tokens in flight on an instance, if neither engine nor replica says how many fit."""

OFFLINE_BESIDE = OfflineLimits().context_tokens
"""Most tokens of offline requests at a server while others run there."""

_SLOWNESS_WEIGHT = 0.3
"""Weight of an answer in the slowness of its instance: a few answers show that it has become slower."""
_PACE_WEIGHT = 0.1
"""Weight of an answer in the seconds that a token in flight adds to a step."""
_LEAST_PACED = 8
"""Number of tokens after the first output from which the time of an answer tells how long steps take."""
_LEAST_SLOWNESS = 1.5
"""Slowness that counts. Less is within the error of predictions."""


class InstanceLoads:
    """The load of each instance of an LLM engine: the requests that run and wait there. The placement policy
    reads the loads.

    The policy sees the instances that can take work in a table of `InstanceView`s, which this class keeps up
    to date. An exception that a policy raises when it is told of an event is kept until `raise_bug`, so that
    the counts here stay right.
    """

    def __init__(
        self, engine: Engine, placement: Placement, outputs: ExpectedOutputs, keys: PromptKeys
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._placement = placement
        self._outputs = outputs
        self._output_keys: dict[InstanceId, object] = {}
        self._slots: dict[InstanceId, int] = {}
        self._binds_early = placement.binds != "late"
        self._table = InstanceTable(self._load, with_full=self._binds_early)
        self._bug: Exception | None = None
        self._running: dict[InstanceId, dict[int, Running]] = {}
        self._num_running = 0
        self.num_offline = 0
        """Number of offline requests that were sent to instances and have not ended."""
        self._running_context = SharedContext()
        self._context = SharedContext()
        self._slowness: dict[InstanceId, float] = {}
        self._sent_prefill_s: dict[InstanceId, float] = {}
        self._in_time_s: dict[InstanceId, float] = {}

    @property
    def roomiest(self) -> int:
        """Largest number of tokens that still fit on any one serving instance."""
        return self._table.roomiest

    @property
    def may_place(self) -> bool:
        """Whether some instance could be sent a request now: one that serves and is not full, or one that is
        suspect (perhaps down, but it may be tried with a request while no other serves).
        """
        return self._table.roomiest > 0 or self._only_suspects

    def may_fit(self, entry: QueueEntry) -> bool:
        """Return whether there could be room for the next item of a queue entry on some
        instance now. It answers without asking the placement policy.
        """
        num_tokens = self._tokens_of(entry)
        if entry.demand.criteria == "offline":
            return self._roomiest_offline(num_tokens, self._allowed(entry, num_tokens)) is not None
        if self._table.roomiest >= self._table.room_for(num_tokens) or self._only_suspects:
            return True
        return bool(entry.demand.job and self._running_context)

    def may_bind_now(self, entry: QueueEntry) -> bool:
        """Return whether the next item of a queue entry may be assigned to an instance now.
        What is offline may if there is room for it.
        """
        if entry.demand.criteria != "offline":
            return True
        num_tokens = self._tokens_of(entry)
        return self._roomiest_offline(num_tokens, self._allowed(entry, num_tokens)) is not None

    @property
    def may_bind(self) -> bool:
        """Whether some instance could be assigned a request now, to wait in its queue: one that serves, full
        or not, or one that is suspect (perhaps down, but it may be tried with a request).
        """
        return self._table.has_hosts or self._table.has_suspects

    def has_host(self, entry: QueueEntry) -> bool:
        """Return whether an instance serves that could run the next item of a queue entry
        if it were idle; or none serves at all, so that suspect ones may be tried with it.
        """
        may_be_all = entry.like is None and not entry.wrong_at
        if may_be_all and not (self._table.has_suspects and self._table.has_hosts):
            return True
        if may_be_all:
            return bool(self._table.all_hosts(self._table.room_for(self._tokens_of(entry))))
        others = [view for view in self._table if self._may_answer(entry, view)]
        return bool(others) and (not self._table.has_hosts or any(view.state == "serving" for view in others))

    def has_untried(self, running: Running, tried: Set[int]) -> bool:
        """Return whether an instance could answer a request which was answered wrongly in the slots `tried`:
        one that serves, or that is suspect and may serve again.
        """
        entry, item = running.entry, running.item
        room = self._table.room_for(entry.num_units(item, item + 1) + self._outputs.expected(entry.request))
        like = running.output_key if running.offset and entry.request.shows else entry.like
        return any(
            self._slots[view.id] not in tried and like in (None, self._output_keys[view.id])
            for view in self._table
            if view.capacity_tokens >= room
        )

    def may_hold_up(self, entry: QueueEntry) -> bool:
        """Return whether the next item of a queue entry may keep others waiting until it
        has room. One that may not go everywhere may not, as others could go where it may not.
        """
        may_go_everywhere = entry.like is None and not entry.avoids
        if may_go_everywhere or self._binds_early or not self._table.has_hosts:
            return True
        room = self._tokens_of(entry)
        allowed = self._allowed(entry, room)
        assert allowed is not None
        return any(
            view.state == "serving" and view.room_tokens >= max(1, min(room, view.capacity_tokens))
            for view in allowed
        )

    def idle_host_of_all(self, entries: Collection[QueueEntry]) -> InstanceId | None:
        """Return a serving instance without any work at which each of some entries may run; None if there is
        none, or no entry. For tests.
        """
        for view in self._table:
            is_idle = not (view.num_running or view.num_waiting or view.num_offline)
            if (
                entries
                and is_idle
                and view.state == "serving"
                and all(self._may_run(e, view) for e in entries)
            ):
                return view.id
        return None

    def has_others(self, instance: InstanceId, like: object) -> bool:
        """Return whether another instance than this serves, among those of the model and dtype `like`; None
        stands for all.
        """
        if len(self._table) == 1 and self._table.get(instance) is not None:
            return False
        return any(
            view.state == "serving" and view.id != instance and like in (None, self._output_keys[view.id])
            for view in self._table
        )

    @property
    def num_running(self) -> int:
        """Number of requests that were sent to instances and have not ended."""
        return self._num_running

    def join(self, instance: InstanceId, replica: Replica, slot: int) -> None:
        """Add an instance that can take work, so that the placement policy may choose it; nothing happens if
        it is there. `slot` is its slot in the fleet.
        """
        self._running.setdefault(instance, {})
        if self._table.get(instance) is None:
            self._output_keys[instance] = replica.output_key
            self._slots[instance] = slot
            num_slots = replica.num_slots or self._engine.max_running
            space = self._keys.join(instance, replica)
            self._tell(Joined(instance, space, replica.kv_tokens, loading_shares(replica.profile)))
            view = InstanceView(instance, replica.profile, self._budget(replica), num_slots, space)
            view.offline_beside = None if replica.limits_offline else OFFLINE_BESIDE
            self._table.join(view)
            self._running_context.join(instance, space)
            self._context.join(instance, space)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance from those that the placement policy may choose, so that it gets no more work;
        requests that run there go on.
        """
        if self._table.get(instance) is not None:
            self._keys.leave(instance)
            self._slowness.pop(instance, None)
            self._sent_prefill_s.pop(instance, None)
            self._in_time_s.pop(instance, None)
            self._tell(Left(instance))
            self._table.leave(instance)
            self._running_context.leave(instance)
            self._context.leave(instance)
            del self._output_keys[instance], self._slots[instance]

    def set_suspect(self, instance: InstanceId, *, is_suspect: bool, probe_s: float = 0.0) -> None:
        """Mark an instance as suspect, or as serving again.

        `probe_s` is the time from which a suspect instance may be tried with a request.
        """
        if (view := self._table.get(instance)) is not None:
            view.state = "suspect" if is_suspect else "serving"
            view.probe_s = probe_s
            self._table.changed(instance)

    def observe(self, report: KVReport | LoadReport) -> None:
        """Pass an instance's report of changes of its prefix cache, or of its load, on to the placement
        policy.
        """
        view = self._table.get(report.instance)
        if view is None:
            return
        if isinstance(report, LoadReport):
            view.reported = report.load
        self._tell(report)
        self._table.changed(report.instance)

    def of(self, instance: InstanceId) -> dict[int, Running]:
        """Return the requests that were sent to an instance and have not ended, by task id."""
        return self._running.get(instance, {})

    def add(self, running: Running) -> None:
        """Add a request that is sent to its instance to the load of that instance."""
        self._running.setdefault(running.instance, {})[running.task] = running
        self._num_running += 1
        if running.is_offline:
            self._change_offline(running.instance, 1, running.num_tokens)
            return
        self._tell(Dispatched(running.instance, running.placed, running.handed_s))
        if self._binds_early and (view := self._table.get(running.instance)) is not None:
            running.first_s = view.prefill_left_s(running.handed_s) + running.prefill_s
            if view.num_running == view.num_decoding:
                view.prefill_from_s = running.handed_s
            sent_s = self._sent_prefill_s.get(running.instance, 0.0) + running.prefill_s
            self._sent_prefill_s[running.instance] = running.sent_prefill_s = sent_s
        num_shared = self._running_context.add(running.instance, running.placed)
        self._change(running.instance, running.num_tokens, running.prefill_s, num_shared)
        waited_for = num_shared - self._context.add(running.instance, running.placed)
        self._change_waiting(running.instance, 0, waited_for, 0.0, 0.0)
        if (view := self._table.get(running.instance)) is not None:
            running.num_resident = view.running_tokens

    def answered(self, running: Running, num_output: int, now_s: float) -> None:
        """Update how slow an instance is, relative to predictions, from a request that has ended there: the
        that it took, with `num_output` tokens, over the predicted time.

        The time of its tokens also shows how much each token in flight adds to a step.
        """
        if running.is_offline:
            return
        self._measure_steps(running, num_output, now_s)
        if not self._binds_early or (view := self._table.get(running.instance)) is None:
            return
        predicted_s = self._predicted_s(running, view, num_output)
        if predicted_s > 0:
            before = self._slowness.get(view.id, 1.0)
            ratio = (now_s - running.handed_s) / predicted_s
            if not running.is_decoding:
                view.prefill_from_s = now_s
            if ratio < _LEAST_SLOWNESS:
                self._in_time_s[view.id] = now_s
            self._set_slowness(view, before + _SLOWNESS_WEIGHT * (ratio - before))

    def note_overdue(self, instance: InstanceId, now_s: float) -> None:
        """Raise the measured slowness of an instance (actual over predicted seconds) if nothing has ended
        there in time for longer than its oldest request was predicted to take, if its answer were as long as
        the longest so far.

        An instance is not slow because one answer is long.
        """
        view = self._table.get(instance)
        running = next((one for one in self.of(instance).values() if not one.is_offline), None)
        if view is None or running is None:
            return
        num_output = max(running.num_output, self._outputs.longest(running.entry.request))
        predicted_s = self._predicted_s(running, view, num_output)
        silent_s = now_s - max(running.handed_s, self._in_time_s.get(instance, running.handed_s))
        if predicted_s > 0 and silent_s / predicted_s > self._slowness.get(instance, 1.0):
            self._set_slowness(view, silent_s / predicted_s)
            self._table.changed(instance)

    def remove(self, running: Running, held_tokens: int | None = None) -> None:
        """Remove a request that has ended or was stopped from the load of its instance.

        `held_tokens` is how many tokens of its prompt were found in the cache there, None if not known.
        """
        del self._running[running.instance][running.task]
        self._num_running -= 1
        if running.is_offline:
            self._change_offline(running.instance, -1, -running.num_tokens)
            return
        self._tell(Ended(running.instance, running.placed, held_tokens))
        if running.is_decoding and (view := self._table.get(running.instance)) is not None:
            view.num_decoding -= 1
        num_shared = self._running_context.remove(running.instance, running.placed)
        self._change(running.instance, -running.num_tokens, -running.prefill_s, -num_shared)
        waited_for = self._context.remove(running.instance, running.placed) - num_shared
        self._change_waiting(running.instance, 0, waited_for, 0.0, 0.0)

    def wrote(self, running: Running, num_tokens: int, now_s: float) -> None:
        """Count `num_tokens` more output tokens of a running request. Its prefill is over.

        If it writes more than was expected, a longer output is expected from now on.
        """
        decode = running.entry.request.decode
        limit = decode.max_tokens if decode else 0
        running.num_written += num_tokens
        if running.decoding_s is None:
            running.decoding_s, running.num_first = now_s, num_tokens
        num_before = running.num_output
        if running.num_written > num_before:
            running.num_output = max(num_before, min(limit, 2 * running.num_written))
        if running.is_offline:
            self._change_offline(running.instance, 0, running.num_output - num_before)
        elif not running.is_decoding or running.num_output > num_before:
            prefill_s, running.prefill_s = running.prefill_s, 0.0
            self._set_decoding(running, now_s)
            self._change(running.instance, running.num_output - num_before, -prefill_s)

    def wait(
        self,
        instance: InstanceId,
        request: PlacementRequest,
        seconds: float,
        prefill_s: float,
        now_s: float,
    ) -> None:
        """Add a request to the load of the instance in whose queue it waits from now on.

        `seconds` is the predicted time by which it delays the next request there, of which `prefill_s` is the
        prefill.
        """
        self._tell(Bound(instance, request, now_s))
        num_tokens = request.all_tokens - self._context.add(instance, request)
        self._change_waiting(instance, 1, num_tokens, seconds, prefill_s)

    def wait_no_more(
        self, instance: InstanceId, request: PlacementRequest, seconds: float, prefill_s: float
    ) -> None:
        """Take a request out of the waiting load of an instance, because it has left that instance's queue:
        it starts, moves or was cancelled.

        `seconds` and `prefill_s` are those that were told when it joined the queue.
        """
        self._tell(Unbound(instance, request))
        num_tokens = request.all_tokens - self._context.remove(instance, request)
        self._change_waiting(instance, -1, -num_tokens, -seconds, -prefill_s)

    def choose(self, request: PlacementRequest, now_s: float, entry: QueueEntry) -> Choice | None:
        """Return which instance the placement policy chooses for a request, the next item
        of a queue entry; None if the request has to wait. Changes nothing.

        An answer that was shown in part may only go to an instance of the same model and dtype.
        """
        allowed = self._allowed(entry, request.all_tokens)
        if request.purpose.preference == "offline":
            view = self._roomiest_offline(request.all_tokens, allowed)
            return None if view is None else Choice(view.id, reason="most room for offline work")
        if allowed is None:
            return self._choose(request, self._table, now_s)
        table = InstanceTable(self._load, with_full=self._binds_early)
        for view in allowed:
            table.join(view)
        return self._choose(request, table, now_s)

    def in_the_way(self) -> Iterator[Running]:
        """Yield the offline requests, the youngest first, that have to leave servers: others need their room,
        or would be too slow beside them. The caller must remove each before it asks for the next.
        """
        for view in self._table:
            while view.num_offline and view.num_running and view.offline_beside is not None:
                offline = (one for one in reversed(self._running[view.id].values()) if one.is_offline)
                youngest = next(offline)
                num_others = view.offline_tokens - youngest.num_tokens
                if num_others < view.offline_beside and not _is_overfull(view):
                    break
                yield youngest

    def note_bug(self, bug: Exception) -> None:
        """Keep an exception that a placement policy has raised, to be
        raised by `raise_bug` when the caller has finished its changes. Only the first is kept.
        """
        self._bug = self._bug or bug

    @property
    def has_bug(self) -> bool:
        """Whether `raise_bug` would raise an exception."""
        return self._bug is not None

    def raise_bug(self) -> None:
        """Raise the exception of a placement policy that `note_bug` has kept since the last call; nothing
        happens if there was none.
        """
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def output_key(self, instance: InstanceId) -> object:
        """Return the key (`Replica.output_key`) that says which model and dtype an instance runs: instances
        with equal keys can continue each other's answers.

        The instance must be able to take work.
        """
        return self._output_keys[instance]

    def admits(self, instance: InstanceId, request: PlacementRequest, now_s: float) -> bool:
        """Return whether the placement policy lets a request, which fits on an instance, run there beside
        the others.
        """
        view = self._table.get(instance)
        if num_shared := self._running_context.tokens(instance, request):
            request = replace(request, shared_tokens={instance: num_shared})
        return view is not None and self._placement.admits(request, view, now_s)

    def has_room(self, instance: InstanceId, request: PlacementRequest) -> bool:
        """Return whether a request fits on an instance now.

        A request that is larger than the whole budget of the instance fits when the instance is empty.
        """
        view = self._table.get(instance)
        if view is None:
            return False
        num_shared = self._running_context.tokens(instance, request)
        room = min(request.all_tokens, view.capacity_tokens) - num_shared
        return self._table.has_room(instance, max(1, room))

    def view(self, instance: InstanceId) -> InstanceView | None:
        """Return the state of an instance as the placement policy sees it;
        None if the instance may not get work.
        """
        return self._table.get(instance)

    def share_s(self, request: PlacementRequest, held_tokens: int, instance: InstanceId) -> float:
        """Return the predicted seconds by which a request that waits at an instance delays the next one
        there.
        """
        view = self._table.get(instance)
        return 0.0 if view is None else request.share_s(view, held_tokens)

    def prefill_s(self, num_missing: int, instance: InstanceId) -> float:
        """Return the predicted seconds of prefilling `num_missing` tokens at an instance; 0 if the instance
        is not among those that may get work.
        """
        view = self._table.get(instance)
        return 0.0 if view is None else view.profile.batch_s(max(0, num_missing))

    def check_invariants(self) -> None:
        """Check that the load of each instance is the sum of its running requests and keeps within the
        limits.

        For tests.
        """
        for view in self._table:
            offline = [one for one in self._running[view.id].values() if one.is_offline]
            assert view.num_offline == len(offline)
            assert view.offline_tokens == sum(one.num_tokens for one in offline)
            running = [one for one in self._running[view.id].values() if not one.is_offline]
            assert view.num_running == len(running)
            assert view.num_decoding == sum(one.is_decoding for one in running)
            placed = [one.placed for one in running]
            num_repeated = self._running_context.num_repeated(view.id, placed)
            assert view.repeated_tokens == num_repeated
            assert view.running_tokens == sum(one.num_tokens for one in running) - num_repeated
            num_planned = sum(one.all_tokens for one in placed) - num_repeated
            assert num_planned <= view.capacity_tokens or len(running) == 1
            assert len(running) <= view.num_slots
        assert self._num_running == sum(map(len, self._running.values()))

    def num_repeated(self, instance: InstanceId, waiting: Collection[PlacementRequest]) -> int:
        """Return how many tokens of requests that wait at an instance count no more, because others that run
        or wait there have them too. For tests: computed anew.
        """
        running = [one.placed for one in self._running.get(instance, {}).values() if not one.is_offline]
        context = self._context
        return context.num_repeated(instance, [*running, *waiting]) - context.num_repeated(instance, running)

    def views(self) -> Iterable[InstanceView]:
        """Return the states of all instances that may take work, as the placement policy
        sees them.
        """
        return iter(self._table)

    def forget(self, instance: InstanceId) -> None:
        """Drop what is recorded of an instance that is gone, if none of its requests is left to be
        handled.
        """
        if not self._running.get(instance):
            self._running.pop(instance, None)

    def _choose(self, request: PlacementRequest, table: InstanceTable, now_s: float) -> Choice | None:
        if shared_tokens := self._context.by_instance(request):
            request = replace(request, shared_tokens=shared_tokens)
        choice = self._placement.choose(request, table, now_s)
        if choice is not None and table.get(choice.instance) is None:
            raise ValueError(
                f"the placement policy names instance {choice.instance!r}, which it was not offered"
            )
        return choice

    def _tokens_of(self, entry: QueueEntry) -> int:
        return entry.num_units(entry.lo, entry.lo + 1) + self._outputs.expected(entry.request)

    @property
    def _only_suspects(self) -> bool:
        """Whether instances may be tried with a request, as none serves and some are suspect."""
        return self._table.has_suspects and not self._table.has_hosts

    def _allowed(self, entry: QueueEntry, num_tokens: int) -> Collection[InstanceView] | None:
        """Return the instances that may get the next item of an entry, of `num_tokens` tokens: those that may
        continue its answer and have not answered it wrongly, without those where it has failed if another one
        serves. None stands for all.
        """
        avoids = entry.avoids
        if entry.room_at is not None:
            view = self._table.get(entry.room_at)
            may_run = view is not None and view.state == "serving" and self._may_answer(entry, view)
            if view is not None and may_run and self._slots[view.id] not in avoids:
                return [view]
        if entry.like is None and not avoids:
            return None
        views = [view for view in self._table if self._may_answer(entry, view)]
        others = [view for view in views if self._slots[view.id] not in avoids]
        room = min(num_tokens, max((view.capacity_tokens for view in views), default=0))
        has_host = any(view.state == "serving" and view.capacity_tokens >= room for view in others)
        return others if has_host else views

    def _may_answer(self, entry: QueueEntry, view: InstanceView) -> bool:
        """Return whether an instance may continue the answer of an entry, and has not answered it wrongly."""
        is_like = entry.like in (None, self._output_keys[view.id])
        return is_like and self._slots[view.id] not in entry.wrong_at

    def _may_run(self, entry: QueueEntry, view: InstanceView) -> bool:
        num_tokens = self._tokens_of(entry)
        allowed = self._allowed(entry, num_tokens)
        is_large = view.capacity_tokens < self._table.room_for(num_tokens)
        return not is_large and (allowed is None or view in allowed)

    def _roomiest_offline(
        self, num_tokens: int, allowed: Collection[InstanceView] | None
    ) -> InstanceView | None:
        """Return the instance with the most room for an offline request of `num_tokens` tokens, among those
        allowed or, with None, all; None if it fits nowhere now. What is larger than an instance fits when
        that is empty.
        """
        views = self._table if allowed is None else allowed
        view = max(views, key=lambda one: one.offline_room_tokens, default=None)
        if view is None or view.offline_room_tokens < max(1, min(num_tokens, view.capacity_tokens)):
            return None
        return view

    def _change_offline(self, instance: InstanceId, num: int, num_tokens: int) -> None:
        self.num_offline += num
        view = self._table.get(instance)
        if view is not None:
            view.num_offline += num
            view.offline_tokens += num_tokens

    def _tell(self, event: PlacementEvent) -> None:
        try:
            self._placement.observe(event)
        except Exception as bug:
            self.note_bug(bug)

    def _load(self, view: InstanceView) -> Load:
        try:
            return self._placement.load(view)
        except Exception as bug:
            self.note_bug(bug)
            return ()

    def _measure_steps(self, running: Running, num_output: int, now_s: float) -> None:
        """Learn from an answer how many seconds a token in flight adds to a step of its instance."""
        view, num_paced = self._table.get(running.instance), num_output - running.num_first
        if view is None or running.decoding_s is None or num_paced < _LEAST_PACED:
            return
        step_s = (now_s - running.decoding_s) / num_paced
        num_resident = (running.num_resident + view.running_tokens) / 2
        per_resident_s = max(0.0, step_s - view.profile.per_output_s) / max(1.0, num_resident)
        before = per_resident_s if view.per_resident_s is None else view.per_resident_s
        view.per_resident_s = before + _PACE_WEIGHT * (per_resident_s - before)

    def _predicted_s(self, running: Running, view: InstanceView, num_output: int) -> float:
        """Return how many seconds an answer of `num_output` tokens takes, beside those that run there now and
        the prefills that were sent there since its request was.
        """
        later_s = self._sent_prefill_s.get(view.id, 0.0) - running.sent_prefill_s
        return running.first_s + later_s + num_output * view.profile.decode_s(view.num_running)

    def _set_slowness(self, view: InstanceView, mean: float) -> None:
        self._slowness[view.id] = mean
        view.slowness = mean if mean >= _LEAST_SLOWNESS else 1.0

    def _set_decoding(self, running: Running, now_s: float) -> None:
        if not running.is_decoding:
            running.is_decoding = True
            if (view := self._table.get(running.instance)) is not None:
                view.num_decoding += 1
                view.prefill_from_s = now_s

    def _budget(self, replica: Replica) -> int:
        if self._engine.max_batch is not None:
            return self._engine.max_batch
        return replica.kv_tokens or DEFAULT_BUDGET_TOKENS

    def _change_waiting(
        self, instance: InstanceId, num: int, num_tokens: int, seconds: float, prefill_s: float
    ) -> None:
        view = self._table.get(instance)
        if view is None or not (num or num_tokens):
            return
        view.num_waiting += num
        view.waiting_tokens += num_tokens
        view.waiting_s = max(0.0, view.waiting_s + seconds) if view.num_waiting else 0.0
        view.waiting_prefill_s = max(0.0, view.waiting_prefill_s + prefill_s) if view.num_waiting else 0.0
        self._table.changed(instance)

    def _change(self, instance: InstanceId, num_tokens: int, prefill_s: float, num_repeated: int = 0) -> None:
        view = self._table.get(instance)
        if view is None:
            return
        num_running = len(self._running[instance]) - view.num_offline
        view.num_running = num_running
        view.running_tokens += num_tokens - num_repeated
        view.repeated_tokens += num_repeated
        view.prefill_s = view.prefill_s + prefill_s if num_running else 0.0
        view.expected_output = self._outputs.typical
        self._table.changed(instance)


def _is_overfull(view: InstanceView) -> bool:
    """Return whether what is not offline lacks room at an instance."""
    return (
        view.num_running + view.num_offline > view.num_slots
        or view.running_tokens + view.offline_tokens > view.capacity_tokens
    )
