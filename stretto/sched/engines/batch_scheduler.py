"""The scheduler of a batch engine, which fuses the waiting work of all queries into batches.

An instance runs one batch at a time. Whenever one is idle and something waits, the order of the queue fills
a batch: no slot stays idle while work is ready. Work whose instance was lost is tried again elsewhere; a
batch that failed is run again task by task, so that only the culprit's query fails. An effect that must not
happen twice is in a batch of its own and never run again: its query fails where it may have happened.

Source: Teola §5.2.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import count, takewhile

from stretto.cluster.messages import DrainHow, InstanceId
from stretto.model.errors import BadReply, BadServer, EngineTimeout, StrettoError
from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.sched.actions import Action, CancelTask, StartBatch
from stretto.sched.engines.batch_filling import BatchFilling, FilledBatch, num_batch_tokens, task_of
from stretto.sched.engines.batch_retries import BatchRetries, RunningBatch
from stretto.sched.engines.idle_instances import IdleInstances, KeptState
from stretto.sched.engines.instances import EngineInstances
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import NewOrder, prices_s
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.queries.results import (
    Report,
    checked_results,
    completed_value,
    is_worth_retrying,
)
from stretto.sched.snapshot import EnginePicture, HeldPicture, engine_picture


class BatchScheduler:
    """The scheduler of one engine whose instances work on batches, such as an embedding engine: it gathers
    the waiting work of all queries into batches and gives them to idle instances.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        ids: count[int],
        orders: Mapping[str, NewOrder] = ORDERS,
        account: ProgramAccount | None = None,
    ) -> None:
        self.engine = engine
        self.instances = EngineInstances(engine)
        self.account = account or ProgramAccount(*prices_s(engine, profile))
        fleet = self.instances.fleet
        self.queue = EngineQueue(engine, profile, orders, self.account, lambda: len(fleet.serving))
        self.not_before_s: float | None = None
        self._ids = ids
        self._running: OrderedDict[InstanceId, RunningBatch] = OrderedDict()  # the one begun first is first
        self.idle = IdleInstances(self.instances.fleet)
        self.kept = KeptState(engine.name, keeps_state=engine.keeps_state)
        self._retries = BatchRetries(engine, self.instances.fleet, self.queue, self.kept)
        self._drained: list[InstanceId] = []
        self._filling = BatchFilling(engine, self.instances.fleet, self.queue, self.idle, self._retries)
        self._decided: list[Action] = []

    def add(self, request: StepRequest, now_s: float) -> None:
        """Put a request into the engine's queue. All inputs of the request are known."""
        self.account.arrived(request, 0, now_s)
        self.queue.add(QueueEntry(request, now_s))

    def observe(self, instance: InstanceId, batch_id: int, now_s: float) -> None:
        """Learn from the time that a batch has taken, which has just been answered."""
        batch = self._running.get(instance)
        if batch is not None and batch.id == batch_id:
            self.idle.observe(instance, batch.num_units, batch.num_tokens, now_s - batch.started_s)

    def done(self, instance: int, batch_id: int, results: Sequence[object]) -> list[Report]:
        """Handle the results of a batch that an instance has finished; return reports that tell the queries.

        Results of a batch that was given up before, as by a timeout, are ignored.
        """
        batch = self._end(instance, batch_id)
        if batch is None:
            return []
        self.instances.fleet.answered(instance)
        ended = self.account.ended
        for entry, lo, hi in batch.parts:
            ended(entry.request, batch.started_s, hi - lo)
        try:
            results = checked_results(results, len(batch.tasks))
        except BadReply as error:
            return self._retries.apart(batch, error)
        return [
            completed_value(entry.request, lo, hi, result)
            for (entry, lo, hi), result in zip(batch.parts, results, strict=True)
        ]

    def failed(self, instance: int, batch_id: int, error: StrettoError) -> list[Report]:
        """Handle a batch that failed as a whole: queue its tasks again, or return reports that they failed
        for good.

        If the instance is to blame (it is down or silent), the tasks are tried again elsewhere. Otherwise
        each task runs again alone, so that only the faulty one fails.
        """
        batch = self._end(instance, batch_id)
        if batch is None:
            return []
        slot = self.instances.fleet.slot(instance)
        wrong_at = {slot}.union(*(entry.wrong_at for entry, _, _ in batch.parts))
        if is_worth_retrying(error) or (isinstance(error, BadServer) and self._retries.has_untried(wrong_at)):
            return self._retries.lost(batch, error, avoids={slot})
        return self._retries.apart(batch, error)

    def ready(self, instance: InstanceId, now_s: float) -> None:
        """Let an instance take work: it has started, or has answered after it was suspected to be down."""
        if self.instances.ready(instance, now_s):
            self.idle.serve(instance)
            if instance not in self._running:
                self.idle.add(instance)

    def suspected(self, instance: InstanceId, reason: str, now_s: float, rest_s: float = 0.0) -> None:
        """Mark an instance as suspect and give it no work until it is ready again."""
        if self.instances.suspected(instance, reason, now_s, rest_s):
            self.idle.rest(instance)

    def lost(
        self, instance: InstanceId, error: StrettoError, now_s: float
    ) -> tuple[list[Report], list[Action]]:
        """Handle the death of an instance: queue the work of its batch again for other instances, and start a
        new instance in its place.

        Returns reports of the work that failed for good, and the actions to carry out.
        """
        reports = self._drop(instance, error)
        return reports, [*self.instances.lost(instance, error, now_s)]

    def drain(self, instance: InstanceId, how: DrainHow, now_s: float) -> list[Action]:
        """Give an instance no more work, and stop it when its batch has ended. With either value of `how` the
        batch runs to its end, as batches cannot be suspended.

        Returns the actions to carry out.
        """
        actions = [*self.instances.drain(instance, "finish", now_s)]
        self.idle.rest(instance)
        if instance not in self._running:
            actions += self.instances.fleet.idle(instance)
        return [*actions]

    def stopped(self, instance: InstanceId, now_s: float) -> list[Report]:
        """Remove an instance that has ended as it was told to (after draining). It was idle, so the list of
        reports is empty.
        """
        self.instances.stopped(instance, now_s)
        self.idle.leave(instance)
        return []

    def expire(self, now_s: float) -> tuple[list[Report], list[Action]]:
        """Give up instances that have not answered within the engine's timeout, and restart failed instances
        whose waiting time before a restart is over.

        Returns reports of the work that failed for good, and the actions to carry out.
        """
        reports: list[Report] = []
        actions: list[Action] = [*self.instances.expire(now_s)]
        timeout_s = self.engine.timeout_s
        if timeout_s is None:
            return reports, actions
        error = EngineTimeout(f"engine {self.engine.name!r} gave no answer for {timeout_s:g} s")
        running = self._running.items()
        for instance in sorted(
            i for i, _ in takewhile(lambda one: one[1].started_s + timeout_s <= now_s, running)
        ):
            reports += self._drop(instance, error)
            actions += self.instances.give_up(instance, error, now_s)
        return reports, actions

    def next_expiry_s(self) -> float | None:
        """Return the time at which the oldest running batch reaches the engine's timeout, when `expire` must
        be called.

        None if no batch runs or the engine has no timeout.
        """
        if self.engine.timeout_s is None or not self._running:
            return None
        return next(iter(self._running.values())).started_s + self.engine.timeout_s

    def schedule(self, now_s: float) -> list[Action]:
        """Start a batch on every idle instance, as long as work waits; return the actions to carry out,
        `Release` first.
        """
        self._decided = actions = self.kept.releases() if self.kept.left else []
        self.not_before_s = None
        wronged = self._retries.wronged
        if wronged:
            self._retries.expire(now_s)
        if self.queue.num_entries and self.idle.keys:
            for filled in self._filling.batches(now_s):
                actions.append(self._start(filled, now_s))
            self.not_before_s = self._filling.not_before_s
        if wronged:
            self.not_before_s = min(wronged[0][0], self.not_before_s or math.inf)
        for instance in self._drained:
            actions += self.instances.fleet.idle(instance)
        self._drained.clear()
        self._decided = []
        return actions

    def recover(self) -> tuple[list[str], list[Action]]:
        """Drop all waiting work after a bug in a queue order or in this scheduler; running batches go on.

        Returns:
            ids of all queries that have work here, which the caller has to end, and the actions that
                a `schedule` that did not return had decided on.
        """
        queries, actions = list(dict.fromkeys(self.queries())), self._decided
        self.queue.clear()
        self.account.nothing_waits()
        self._retries.clear()
        self._filling.clear()
        self._decided = []
        return queries, actions

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move the waiting work of a query to its new place in the queue, because some of
        its nodes are needed more or less urgently now.

        `demands` says, by node, how urgently its result is needed.
        """
        self.queue.ask(query, demands)

    def withdraw(self, query: str, node: int, now_s: float, items: Set[int] | None = None) -> list[Action]:
        """Drop the waiting work of one node of a query, or of some of its items only,
        because their results are no longer wanted. Work that runs goes on.
        """
        self.queue.withdraw(query, node, items)
        self.account.withdrawn(query, node, items)
        return []

    def queries(self) -> list[str]:
        """Return the ids of the queries that have waiting or running work."""
        waiting = dict.fromkeys(entry.query for entry in self.queue)
        filling = (entry.query for entry, _, _ in self._filling.parts)
        return [*waiting, *self.kept.num_running, *filling]

    def queries_in(self, instance: InstanceId) -> Iterable[str]:
        """Return the ids of the queries that have work in the batch that an instance runs
        now, also when they are read after its end.
        """
        batch = self._running.get(instance)
        return () if batch is None else (entry.query for entry, _, _ in batch.parts)

    def end_program(self, program: str, tenant: str) -> None:
        """Learn from a tenant's program that has ended: it makes no more queries."""
        self.account.program_ended(program, tenant)

    def end_query(self, query: str) -> list[Action]:
        """Drop the waiting work of a query that has ended; return actions that tell
        instances to free what they keep for it.

        If some of its work still runs, it is stopped where that can be, and `schedule` returns these actions
        later.
        """
        self.queue.end_query(query)
        self.account.query_ended(query)
        if not self.kept.end_query(query):
            return self.kept.releases()
        stops = [
            CancelTask(self.engine.name, instance, task.id)
            for instance, batch in self._running.items()
            for task in batch.tasks
            if task.query == query
        ]
        return [*stops, *self.kept.releases()]

    def held(self, query: str) -> list[HeldPicture]:
        """Return nothing: only LLM engines hold requests for lack of memory."""
        return []

    def picture(self) -> EnginePicture:
        """Return a snapshot of the engine: how many items wait in its queue, and what its instances are
        doing.
        """
        fleet = self.instances.fleet
        running = {i: len(self._running[i].tasks) if i in self._running else 0 for i in fleet.live}
        return engine_picture(fleet, sum(entry.hi - entry.lo for entry in self.queue), running)

    def is_idle(self) -> bool:
        """Return whether no work waits in the queue or runs on an instance."""
        return not self._running and not self.queue.num_entries

    def check_invariants(self) -> None:
        """Check that queued work is not empty, batches keep within their limits, and no instance idles while
        work waits.

        For tests.
        """
        assert all(entry.lo < entry.hi for entry in self.queue)
        self.account.check_invariants()
        for instance, batch in self._running.items():
            units = sum(entry.units_of(lo, hi) for entry, lo, hi in batch.parts)
            single = len(batch.parts) == 1 and batch.parts[0][2] - batch.parts[0][1] == 1
            assert units == batch.num_units
            assert units <= self._filling.budget(instance) or single
        serving = set(self.instances.fleet.serving)
        assert {i for i in self._running if i in serving} | set(self.idle) == serving
        if self.not_before_s is None:
            for entry in self.queue:
                assert not any(self._retries.may_run(entry, instance) for instance in self.idle)
        self.instances.fleet.check_invariants()

    def _start(self, filled: FilledBatch, now_s: float) -> StartBatch:
        instance, parts, num_units = filled
        others_serve = self.idle.are_several and len(self.instances.fleet.serving) > 1
        ids, sent = self._ids, self.account.sent
        tasks = tuple([task_of(next(ids), entry, lo, hi, others_serve) for entry, lo, hi in parts])
        for entry, lo, hi in parts:
            sent(entry.request, now_s, hi - lo)
        self.kept.started(parts, instance)
        profile = self.instances.fleet.replica(instance).profile
        num_tokens = num_batch_tokens(parts) if profile.depends_on_length else None
        batch = RunningBatch(next(self._ids), tuple(parts), tasks, num_units, num_tokens, now_s)
        self._running[instance] = batch
        self.idle.assign(instance, num_units, num_tokens)
        return StartBatch(self.engine.name, instance, batch.id, tasks, num_units, num_tokens)

    def _end(self, instance: int, batch_id: int | None = None) -> RunningBatch | None:
        """Return what an instance was running, if it was that batch; the instance is idle from now on."""
        batch = self._running.get(instance)
        if batch is None or batch_id not in (None, batch.id):
            return None
        del self._running[instance]
        match self.instances.fleet.state[instance]:
            case "serving":
                self.idle.add(instance)
            case "draining":
                self._drained.append(instance)
        self.kept.ended(batch.parts)
        return batch

    def _drop(self, instance: InstanceId, error: StrettoError) -> list[Report]:
        """Take an instance out of service, and try again elsewhere what it was running."""
        batch = self._end(instance)
        self.idle.leave(instance)
        return [] if batch is None else self._retries.lost(batch, error)
