"""The load of an LLM engine's instances, from which the placement policy chooses one for a request.

A running request counts against an instance's budget with its prompt and the output expected of it. What
requests of jobs share counts once, where the instance shares it (`shared_context.py`). A running request
delays others by its prefill until its first output, and by its part of every step while it decodes: all
sequences of an instance decode side by side.

Offline requests give way to all others, so that these and the placement policy do not see them. An offline
request goes to the instance with the most room beside everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.cluster.held_blocks import loading_shares
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement import (
    Dispatched,
    Ended,
    Joined,
    Left,
    Placement,
)
from stretto.cluster.prompt_keys import PromptKeys
from stretto.cluster.transitions import State
from stretto.costs.offline import OfflineLimits
from stretto.model.replica import Engine, Replica
from stretto.sched.llm.eligible import EligibleInstances
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.instance_choice import InstanceChoice, PolicyCalls
from stretto.sched.llm.measured_times import MeasuredTimes
from stretto.sched.llm.running_requests import Running
from stretto.sched.llm.shared_context import SharedContext
from stretto.sched.llm.waiting_loads import WaitingLoads
from stretto.sched.queries.request import StepRequest

DEFAULT_BUDGET_TOKENS = 8192
"""Default budget of tokens in flight on an instance, if neither engine nor replica says how many fit."""

OFFLINE_BESIDE = OfflineLimits().context_tokens
"""Most tokens of offline requests at a server while others run there."""


class InstanceLoads:
    """The load of each instance of an LLM engine: the requests that run and wait there. The placement policy
    reads the loads.

    Attributes:
        table: the instances that can take work, as the policy sees them; this class keeps their views up to
            date. An instance without a view gets no work.
        policy: the placement policy, with the exception that it has raised.
        eligible: which instances may take a request.
        choice: which instance gets it, and whether there is room.
        waiting: the load of requests that have an instance and wait for it.
        times: how slow each instance is.
        num_running: number of requests that were sent to instances and have not ended.
        num_offline: how many of them are offline.
    """

    def __init__(
        self, engine: Engine, placement: Placement, outputs: ExpectedOutputs, keys: PromptKeys
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._outputs = outputs
        self.policy = PolicyCalls(placement)
        self.table = InstanceTable(self.policy.load, with_full=self.policy.binds_early)
        self.eligible = EligibleInstances(self.table, outputs, binds_early=self.policy.binds_early)
        self.num_running = self.num_offline = 0
        self._running: dict[InstanceId, dict[int, Running]] = {}
        self.times = MeasuredTimes(self.table, outputs, counts_slowness=self.policy.binds_early)
        self._running_context = SharedContext()
        self.waiting = WaitingLoads(self.table, self.policy)
        self.choice = InstanceChoice(
            self.table, self.policy, self.eligible, self._running_context, self.waiting.context
        )

    def join(self, instance: InstanceId, replica: Replica, slot: int) -> None:
        """Add an instance that can take work, so that the placement policy may choose it; nothing happens if
        it is there. `slot` is its slot in the fleet.
        """
        self._running.setdefault(instance, {})
        if self.table.get(instance) is None:
            self.eligible.join(instance, replica, slot)
            num_slots = replica.num_slots or self._engine.max_running
            space = self._keys.join(instance, replica)
            self.policy.tell(Joined(instance, space, replica.kv_tokens, loading_shares(replica.profile)))
            budget = replica.kv_tokens or DEFAULT_BUDGET_TOKENS
            if self._engine.max_batch is not None:
                budget = self._engine.max_batch
            view = InstanceView(instance, replica.profile, budget, num_slots, space)
            view.offline_beside = None if replica.limits_offline else OFFLINE_BESIDE
            self.table.join(view)
            self._running_context.join(instance, space)
            self.waiting.context.join(instance, space)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance from those that the placement policy may choose, so that it gets no more work;
        requests that run there go on.
        """
        if self.table.get(instance) is not None:
            self._keys.leave(instance)
            self.times.forget(instance)
            self.policy.tell(Left(instance))
            self.table.leave(instance)
            self._running_context.leave(instance)
            self.waiting.context.leave(instance)
            self.eligible.leave(instance)

    def num_held(self, request: StepRequest) -> int | None:
        """Return how many tokens of the first prompt of a request some instance reports to hold; None if not
        all instances that can take work have reported what they hold.
        """
        reported = self.policy.placement.reported
        if reported is None or not reported.num_instances or reported.num_instances < len(self.table):
            return None
        keys = self._keys.of(request.prompts[0], request.record.tenant).values()
        return max((key.block_tokens * reported.longest(key.blocks) for key in keys), default=None)

    def observe(self, report: KVReport) -> None:
        """Pass an instance's report of changes of its prefix cache on to the placement policy."""
        if self.table.get(report.instance) is not None:
            self.policy.tell(report)
            self.table.changed(report.instance)

    def of(self, instance: InstanceId) -> dict[int, Running]:
        """Return the requests that were sent to an instance and have not ended, by task id."""
        return self._running.get(instance, {})

    def add(self, running: Running) -> None:
        """Add a request that is sent to its instance to the load of that instance."""
        self._running.setdefault(running.instance, {})[running.task] = running
        self.num_running += 1
        if running.is_offline:
            self._change_offline(running.instance, 1, running.num_tokens)
            return
        self.policy.tell(Dispatched(running.instance, running.placed, running.handed_s))
        self.times.sent(running)
        num_shared = self._running_context.add(running.instance, running.placed)
        self._change(running.instance, running.num_tokens, running.prefill_s, num_shared)
        waited_for = num_shared - self.waiting.context.add(running.instance, running.placed)
        self.waiting.change(running.instance, num_tokens=waited_for)
        if (view := self.table.get(running.instance)) is not None:
            running.num_resident = view.running_tokens

    def remove(self, running: Running, held_tokens: int | None = None) -> None:
        """Remove a request that has ended or was stopped from the load of its instance.

        `held_tokens` is how many tokens of its prompt were found in the cache there, None if not known.
        """
        del self._running[running.instance][running.task]
        self.num_running -= 1
        if running.is_offline:
            self._change_offline(running.instance, -1, -running.num_tokens)
            return
        self.policy.tell(Ended(running.instance, running.placed, held_tokens))
        if running.is_decoding and (view := self.table.get(running.instance)) is not None:
            view.num_decoding -= 1
        num_shared = self._running_context.remove(running.instance, running.placed)
        self._change(running.instance, -running.num_tokens, -running.prefill_s, -num_shared)
        waited_for = self.waiting.context.remove(running.instance, running.placed) - num_shared
        self.waiting.change(running.instance, num_tokens=waited_for)

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
            if not running.is_decoding:
                running.is_decoding = True
                if (view := self.table.get(running.instance)) is not None:
                    view.num_decoding += 1
                    view.prefill_from_s = now_s
            self._change(running.instance, running.num_output - num_before, -prefill_s)

    def in_the_way(self) -> Iterator[Running]:
        """Yield the offline requests, the youngest first, that have to leave servers: others need their room,
        or would be too slow beside them. The caller must remove each before it asks for the next.
        """
        for view in self.table:
            while view.num_offline and view.num_running and view.offline_beside is not None:
                offline = (one for one in reversed(self._running[view.id].values()) if one.is_offline)
                youngest = next(offline)
                num_others = view.offline_tokens - youngest.num_tokens
                if num_others < view.offline_beside and not _is_overfull(view):
                    break
                yield youngest

    def check_invariants(self) -> None:
        """Check that the load of each instance is the sum of its running requests and keeps within the
        limits.

        For tests.
        """
        for view in self.table:
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
        assert self.num_running == sum(map(len, self._running.values()))

    def forget(self, instance: InstanceId) -> None:
        """Drop what is recorded of an instance that is gone, if none of its requests is left to be
        handled.
        """
        if not self._running.get(instance):
            self._running.pop(instance, None)

    def _change_offline(self, instance: InstanceId, num: int, num_tokens: int) -> None:
        self.num_offline += num
        view = self.table.get(instance)
        if view is not None:
            view.num_offline += num
            view.offline_tokens += num_tokens

    def _change(self, instance: InstanceId, num_tokens: int, prefill_s: float, num_repeated: int = 0) -> None:
        view = self.table.get(instance)
        if view is None:
            return
        num_running = len(self._running[instance]) - view.num_offline
        view.num_running = num_running
        view.running_tokens += num_tokens - num_repeated
        view.repeated_tokens += num_repeated
        view.prefill_s = view.prefill_s + prefill_s if num_running else 0.0
        view.expected_output = self._outputs.typical
        self.table.changed(instance)


def mark(table: InstanceTable, instance: InstanceId, state: State, probe_s: float = 0.0) -> None:
    """Mark an instance as suspect, or as serving again, if it is in a table.

    `probe_s` is the time from which a suspect instance may be tried with a request.
    """
    if (view := table.get(instance)) is not None:
        view.state = state
        view.probe_s = probe_s
        table.changed(instance)


def _is_overfull(view: InstanceView) -> bool:
    """Return whether what is not offline lacks room at an instance."""
    return (
        view.num_running + view.num_offline > view.num_slots
        or view.running_tokens + view.offline_tokens > view.capacity_tokens
    )
