"""The scheduler of an LLM engine, which admits requests one by one, under a token budget per instance.

Slots come back request by request, so admission runs after every event. The order of the queue says what is
admitted next, and its rank goes along, for the instance's own scheduler to order prefills by. The placement
policy says which instance gets it.

Source: Teola §5.2 and §6. Differs: budgets count the output that is expected, not the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from contextlib import suppress
from itertools import count

from stretto.cluster.messages import DrainHow, InstanceId, KVReport
from stretto.cluster.placement import Placement
from stretto.cluster.prompt_keys import PromptKeys, SpaceOf, no_space
from stretto.costs.mean_output import num_tokens
from stretto.llm.output.sampling import with_seed
from stretto.model.errors import EngineTimeout, StrettoError
from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.model.tasks import Done, Failed, LLMEvent, LLMTask, Piece
from stretto.sched.actions import Action, Admit, CancelTask, Release, Retain
from stretto.sched.engines.instances import EngineInstances
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.expected_outputs import ExpectedOutputs, num_output_tokens
from stretto.sched.llm.handed_over import HandedOver
from stretto.sched.llm.loads import InstanceLoads, mark
from stretto.sched.llm.lost_requests import LostRequests, left_by
from stretto.sched.llm.place_early import PlaceEarly
from stretto.sched.llm.place_late import PlaceLate
from stretto.sched.llm.placing import Placed, PlacementRequests, Placing
from stretto.sched.llm.prefills_ahead import PrefillsAhead
from stretto.sched.llm.reuse_forecasts import ReuseForecasts
from stretto.sched.llm.room_gate import RoomGate
from stretto.sched.llm.running_requests import Running, RunningRequests, completed
from stretto.sched.llm.shown_parts import RunApart, ShownParts
from stretto.sched.llm.waiting_requests import WaitingRequests
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import NewOrder, prices_s
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, StepRequest
from stretto.sched.queries.results import Delivered, Report
from stretto.sched.snapshot import EnginePicture, HeldPicture, engine_picture


class LLMScheduler:
    """The scheduler of one LLM engine: it decides which waiting request goes to which instance, and when.

    Attributes:
        follows_prefixes: whether its placement policy sends prompts where their prefixes are held.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        placement: Placement,
        ids: count[int],
        orders: Mapping[str, NewOrder] = ORDERS,
        space_of: SpaceOf = no_space,
        account: ProgramAccount | None = None,
    ) -> None:
        self.engine = engine
        self.follows_prefixes = placement.uses_keys == "always"
        self.instances = EngineInstances(engine)
        self.account = account or ProgramAccount(*prices_s(engine, profile))
        fleet = self.instances.fleet
        self.queue = EngineQueue(engine, profile, orders, self.account, lambda: len(fleet.serving))
        self._ids = ids
        self._outputs = ExpectedOutputs()
        keys = PromptKeys(engine.name, placement.uses_keys, space_of)
        self._loads = InstanceLoads(engine, placement, self._outputs, keys)
        self.account.num_held = self._loads.num_held
        self._gate = RoomGate(engine, keys)
        self._ahead = PrefillsAhead(profile)
        self._apart = RunApart(engine.max_attempts)
        self._shown = ShownParts(self.queue, engine, self.instances.fleet, self._loads, self._apart)
        describe = PlacementRequests(self._outputs, self._ahead, keys, engine.age_limit_s)
        self._placing: Placing = (
            PlaceLate(self.queue, self._loads, self._shown, describe)
            if placement.binds == "late"
            else PlaceEarly(
                self.queue,
                self._loads,
                self._shown,
                describe,
                new_queue=lambda: EngineQueue(engine, profile, orders, self.account),
                moves=placement.binds == "early",
            )
        )
        self._handed_over = HandedOver(engine.name)
        self._waiting = WaitingRequests(self._gate, self.queue, self._placing, self._handed_over.changes)
        self._has_left = False
        self._running = RunningRequests()
        self._too_slow: dict[str, dict[int, set[int]]] = {}
        self._touched: dict[InstanceId, set[str]] = {}
        self._drained: dict[InstanceId, None] = {}
        self._decided: list[Action] = []
        self._reuse = ReuseForecasts()
        self._lost = LostRequests(
            engine, self.instances.fleet, self._loads.eligible, self._reuse, self.account, self._requeue
        )
        self._retains: list[Retain] = []

    @property
    def not_before_s(self) -> float | None:
        """Next time at which `schedule` should be called even if no event comes: because it has held requests
        back until then, or because a waiting request fails then. None if there is none.
        """
        first_s = self._placing.not_before_s
        for time_s in (self._shown.due_s(), self._gate.due_s()):
            if time_s is not None and (first_s is None or time_s < first_s):
                first_s = time_s
        return first_s

    @property
    def may_decide(self) -> bool:
        """Whether `schedule` may have something to decide after a report: something waits or has left its
        instance, or an instance is to be told something.
        """
        return bool(
            self._has_left
            or self._handed_over.changed
            or self._waiting
            or self._retains
            or self._drained
            or self._loads.policy.bug
        )

    # --- instances

    def ready(self, instance: InstanceId, now_s: float) -> None:
        """Let an instance take work: it has started, or has answered after it was suspected to be down."""
        if self.instances.ready(instance, now_s):
            fleet = self.instances.fleet
            self._loads.join(instance, fleet.replica(instance), fleet.slot(instance))
            mark(self._loads.table, instance, "serving")
            self._waiting.join(instance, fleet.replica(instance))

    def suspected(self, instance: InstanceId, reason: str, now_s: float, rest_s: float = 0.0) -> None:
        """Mark an instance as suspect: until it is ready again it gets nothing while another
        serves, else one request at a time. It is left alone for `rest_s` seconds, as it has asked for.
        """
        if self.instances.suspected(instance, reason, now_s, rest_s):
            probe_s = self.instances.fleet.probe_s(instance)
            self._waiting.suspend(instance)
            mark(self._loads.table, instance, "suspect", probe_s)

    def lost(
        self, instance: InstanceId, error: StrettoError, now_s: float
    ) -> tuple[list[Report], list[Action]]:
        """Handle the death of an instance: queue its requests again for other instances, and start a new
        instance in its place.

        Returns reports of the requests that failed for good, and the actions to carry out.
        """
        return self._drop(instance, error, now_s), [*self.instances.lost(instance, error, now_s)]

    def drain(self, instance: InstanceId, how: DrainHow, now_s: float) -> list[Action]:
        """Give an instance no more work, and stop it when it is idle (`how` is "finish") or at once
        ("suspend").

        Returns the actions to carry out.
        """
        actions = self.instances.drain(instance, how, now_s)
        self._waiting.leave(instance)
        self._loads.leave(instance)
        self._drained[instance] = None
        return [*actions]

    def suspended(self, instance: InstanceId, task: int, token_ids: tuple[int, ...]) -> None:
        """Queue again a task that was taken off an instance before its end; it will continue at another
        instance after `token_ids`, the tokens that it has generated.
        """
        running = self._loads.of(instance).get(task)
        if running is not None:
            self._remove(running)
            self._requeue(left_by(running, running.entry.resumed(running.item, token_ids)))

    def stopped(self, instance: InstanceId, now_s: float) -> list[Report]:
        """Remove an instance that has ended as it was told to (after draining), and queue again the requests
        that it still had.

        Returns reports of the requests that failed for good.
        """
        reports = self._drop(
            instance, EngineTimeout(f"{self.engine.name}/{instance} was stopped"), now_s, kills=False
        )
        self.instances.stopped(instance, now_s)
        return reports

    def observe(self, report: KVReport) -> None:
        """Pass an instance's report of its prefix cache on to the placement policy."""
        self._loads.observe(report)

    def expire(self, now_s: float) -> tuple[list[Report], list[Action]]:
        """Give up instances that have been silent for the engine's timeout, and requests that got stuck;
        restart failed instances whose waiting time before a restart is over.

        Returns reports of the requests that failed for good, and the actions to carry out.
        """
        self._gate.now_s = now_s
        late = [*self._shown.overdue(now_s), *self._gate.overdue()]
        for one in late:
            self.withdraw(one.query, one.node, now_s, one.items)
        reports: list[Report] = [*late]
        actions: list[Action] = [*self.instances.expire(now_s)]
        timeout_s = self.engine.timeout_s
        if timeout_s is None:
            return reports, actions
        error = EngineTimeout(f"engine {self.engine.name!r} was silent for {timeout_s:g} s")
        for instance in self._running.instances.silent_for(timeout_s, now_s):
            reports += self._drop(instance, error, now_s)
            actions += self.instances.give_up(instance, error, now_s)
        for instance, task in self._running.tasks.silent_for(timeout_s, now_s):
            running = self._loads.of(instance)[task]
            self._remove(running)
            self._ahead.stop(running.entry.query, running.entry.request.node.id, None, now_s)
            reports += self._lost.again([running], error, now_s)
            actions.append(CancelTask(self.engine.name, instance, task))
        return reports, actions

    def next_expiry_s(self) -> float | None:
        """Return the time at which the instance or task that is silent longest reaches the engine's timeout.

        `expire` must be called then. None if nothing runs or the engine has no timeout.
        """
        if self.engine.timeout_s is None:
            return None
        return self._running.next_expiry_s(self.engine.timeout_s)

    # --- requests

    def add(self, request: StepRequest, now_s: float) -> None:
        """Put a request into the engine's queue. All inputs of the request are known."""
        if self.engine.keeps_state and not request.is_alone:
            self._reuse.arrived(request, now_s)
        self._gate.now_s = now_s
        entry = QueueEntry(request, now_s, self._outputs.expected(request))
        entry.fresh = self.account.arrived(request, entry.num_output, now_s)
        if slow := self._too_slow.get(request.query):
            entry.avoids = frozenset(slow.get(request.node.id, ()))
        self._waiting.arrive(entry)

    def report(self, instance: InstanceId, event: LLMEvent, now_s: float) -> list[Report]:
        """Handle an instance's report on a task, such as new text or its end; return reports for the query.

        Reports on tasks that were given up are ignored.
        """
        if instance in self._running.instances:
            self._running.instances.note(instance, now_s)
        running = self._loads.of(instance).get(event.task)
        if running is None:
            return []
        self._gate.now_s = now_s
        request = running.entry.request
        self._start(running, now_s)
        self._running.tasks.note((instance, event.task), now_s)
        match event:
            case Piece():
                offset, piece = running.offset, event.value
                running.offset += 1 if request.decode and request.decode.items else len(piece)
                self._loads.wrote(running, num_tokens(piece), now_s)
                return [Delivered(request.query, request.node.id, offset, piece)]
            case Done():
                usage = event.usage
                num_output = num_output_tokens(usage, event.value)
                self._loads.times.answered(running, num_output, now_s)
                self._gate.ended(running.entry, running.item, usage)
                self._remove(running, usage.num_cached_tokens if usage.num_prompt_tokens else None)
                self._ahead.end(request.query, request.node.id)
                self.instances.fleet.answered(instance)
                self._outputs.observe(request, num_output)
                self.account.answered(request, usage, num_output, now_s)
                self._forecast(running, event, now_s)
                return [completed(running, event)]
            case Failed(error=error):
                self._remove(running)
                self._ahead.stop(request.query, request.node.id, None, now_s)
                return self._lost.failed(running, error, now_s)
        return []

    def _forecast(self, running: Running, done: Done, now_s: float) -> None:
        """Note what the instance should be told of the later use of what it has computed."""
        if not self.engine.keeps_state:
            return
        request = running.entry.request
        reuse = self._reuse.ended(request, running.prompt, done.value, now_s, done.written)
        if reuse is not None:
            self._retains.append(Retain(self.engine.name, running.instance, reuse))

    def withdraw(self, query: str, node: int, now_s: float, items: Set[int] | None = None) -> list[Action]:
        """Drop the requests of one node of a query, or those of some of its items only, because their results
        are no longer wanted, or their attempt has taken too long; return actions that stop those that run.

        The KV that they have computed stays cached. A further attempt avoids the instances where they ran.
        """
        of_node = self._running.of_node(query, node)
        tasks = [one for one in of_node if items is None or one.item in items]
        num_waiting = self._waiting.withdraw(query, node, items)
        self._reuse.withdrawn(query, node, None if items is None else num_waiting + len(tasks))
        self.account.withdrawn(query, node, items)
        actions: list[Action] = []
        for running in sorted(tasks, key=lambda one: (one.instance, one.task)):
            started_s = running.started_s
            self._remove(running)
            if running.entry.request.node.is_watched:
                self._too_slow.setdefault(query, {}).setdefault(node, set()).add(running.slot)
            self._ahead.stop(query, node, started_s, now_s)
            actions.append(CancelTask(self.engine.name, running.instance, running.task))
        return actions

    def schedule(self, now_s: float) -> list[Action]:
        """Send as many waiting requests to instances as fit, in the queue's order; return the actions to
        carry out.

        Some of the actions correct the priorities of earlier requests in the instances' own queues.
        """
        self._decided = actions = list[Action]()
        self._gate.now_s = now_s
        self._waiting.release()
        self._shown.update(now_s)
        for placed in self._placing.place(now_s):
            actions.append(self._admit(placed, now_s))
        if self._loads.num_offline:
            for running in self._loads.in_the_way():
                actions.append(self._put_back(running))
        if self._retains:
            actions += self._retains
            self._retains.clear()
        if self._handed_over.changed:
            actions += self._handed_over.reprioritise()
        self._has_left = False
        if self._drained:
            for instance in [i for i in self._drained if not self._loads.of(i)]:
                del self._drained[instance]
                actions += self.instances.fleet.idle(instance)
        self._loads.policy.raise_bug()
        self._decided = []
        return actions

    def recover(self) -> tuple[list[str], list[Action]]:
        """Drop all waiting work after a bug in a queue order (which says what goes next), in a placement
        policy (which chooses instances) or in this scheduler; what runs goes on.

        Returns:
            ids of all queries that have work here, which the caller has to end, and the actions that
                a `schedule` that did not return had decided on.
        """
        queries, actions = list(dict.fromkeys(self.queries())), self._decided
        self._waiting.clear()
        self.account.nothing_waits()
        self._shown.clear()
        self._decided = []
        return queries, actions

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move the waiting requests of a query to their new places in the queues, because
        some of its nodes are needed more or less urgently now.

        `demands` says, by node, how urgently its result is needed.
        """
        self._waiting.ask(query, demands)
        self._handed_over.ask(query, demands)
        for node, demand in demands.items():
            for running in self._running.of_node(query, node):
                running.entry.demand = demand
        self._handed_over.changes(query)

    def queries(self) -> list[str]:
        """Return the ids of the queries that have waiting or running work."""
        return [*self._waiting.queries(), *self._running.queries()]

    def queries_in(self, instance: InstanceId) -> list[str]:
        """Return the queries with work on an instance."""
        return [running.entry.query for running in self._loads.of(instance).values()]

    def queries_of(self, instance: InstanceId, task: int) -> tuple[str, ...]:
        """Return the query that a task on an instance belongs to; empty if it has ended."""
        running = self._loads.of(instance).get(task)
        return () if running is None else (running.entry.query,)

    def request_of(self, task: int) -> StepRequest | None:
        """Return the request that a running task belongs to; None if the task has ended."""
        found = (self._loads.of(instance).get(task) for instance in self.instances.fleet.live)
        return next((running.entry.request for running in found if running is not None), None)

    def end_query(self, query: str) -> list[Action]:
        """Drop all requests of a query that has ended; return actions that stop the
        running ones and free the query's KV.
        """
        actions: list[Action] = []
        for instance, tasks in self._running.end_query(query):
            for running in tasks:
                self._remove(running)
                actions.append(CancelTask(self.engine.name, instance, running.task))
            if query in self._touched.get(instance, ()):
                self._touched[instance].discard(query)
                actions.append(Release(self.engine.name, instance, query))
        self._waiting.end_query(query)
        self._too_slow.pop(query, None)
        self._ahead.forget(query)
        self._reuse.forget(query)
        self.account.query_ended(query)
        self._retains = [one for one in self._retains if one.reuse.query != query]
        return actions

    def end_program(self, program: str, tenant: str) -> None:
        """Free the room of a tenant's program in KV memory, and learn from it: it makes no more queries."""
        self._gate.end_program(program, tenant)
        self.account.program_ended(program, tenant)

    def held(self, query: str) -> list[HeldPicture]:
        """Return the requests of a query that are held, as its program has no room."""
        return self._gate.held_of(query)

    def picture(self) -> EnginePicture:
        """Return a snapshot of the engine: how many requests wait in its queue, and what its instances are
        doing.
        """
        fleet = self.instances.fleet
        running = {instance: len(self._loads.of(instance)) for instance in fleet.live}
        return engine_picture(fleet, len(self._waiting), running, self._gate.claimed(), self._gate.pictures())

    def is_idle(self) -> bool:
        """Return whether no request waits or runs."""
        return not (self._waiting or self._loads.num_running)

    def check_invariants(self) -> None:
        """Check that counts of tokens and slots agree with the running requests and keep within their limits.

        For tests.
        """
        self._waiting.check_invariants()
        self._loads.check_invariants()
        self.account.check_invariants()
        self._running.check_invariants()
        self._shown.check_invariants()
        fleet = self.instances.fleet
        assert {view.id for view in self._loads.table} == {*fleet.serving, *fleet.suspects}
        fleet.check_invariants()

    def _admit(self, placed: Placed, now_s: float) -> Admit:
        queue, entry, choice = placed.queue, placed.entry, placed.choice
        request, instance = entry.request, choice.instance
        rank = queue.classes.rank(entry)
        item, decode = entry.lo, request.decode
        prompt = request.prompts[item - request.lo]
        output_key = self._loads.eligible.output_keys[instance]
        task = LLMTask(
            next(self._ids),
            request.query,
            request.step,
            prompt,
            None if decode is None else with_seed(decode, f"{request.query} {request.node.id} {item}"),
            request.record.tenant,
            entry.demand.preference or request.record.criteria,
            entry.generated if entry.said_by == output_key else (),
            item,
            self._silence_s(request),
            request.is_continued,
            self._loads.eligible.has_others(instance, entry.like),
        )
        num_tokens = placed.request.num_tokens
        view = self._loads.table.get(instance)
        num_missing = max(0, num_tokens - choice.held_tokens)
        prefill_s = 0.0 if view is None else view.profile.batch_s(num_missing)
        queue.take(entry, 1)
        self.account.sent(request, now_s)
        running = Running(task.id, instance, entry, item, prompt, queue, placed.request, prefill_s, now_s)
        running.output_key = output_key
        running.slot = self.instances.fleet.slot(instance)
        running.is_probe = self.instances.fleet.state[instance] == "suspect"
        self._loads.add(running)
        self._apart.add(entry)
        self._gate.sent(entry, item, instance)
        self._running.add(running, now_s)
        if request.decode is None and not request.each:
            self._ahead.start(request, instance, num_tokens)
        if self.engine.keeps_state:
            self._touched.setdefault(instance, set()).add(request.query)
        rank = self._handed_over.add(running, rank)
        reason = f"{choice.reason}; held {entry.held_s:.3g} s for room" if entry.held_s else choice.reason
        return Admit(
            self.engine.name, instance, task, rank, choice.terms, reason, choice.held_tokens, entry.held_s
        )

    def _put_back(self, running: Running) -> Action:
        """Queue an offline request again whose instance others need; it begins anew."""
        self._remove(running)
        item = running.item
        again = running.entry.again(item, item + 1, attempt=running.entry.attempt, alone=False)
        self._requeue(left_by(running, again) if running.offset else again)
        return CancelTask(self.engine.name, running.instance, running.task)

    def _silence_s(self, request: StepRequest) -> float:
        """Return for how many seconds an instance may report nothing of a request that it runs."""
        if request.shows:
            return 0.0
        return math.inf if self.engine.timeout_s is None else self.engine.timeout_s

    def _requeue(self, entry: QueueEntry) -> None:
        """Queue an entry of an instance that goes; what the order raises does not keep it from going."""
        try:
            self._waiting.arrive(entry)
        except Exception as bug:
            self._loads.policy.note_bug(bug)

    def _start(self, running: Running, now_s: float) -> None:
        """A request has left its instance's queue."""
        if running.started_s is None:
            running.started_s = now_s
            self._leave_queue(running)

    def _leave_queue(self, running: Running) -> None:
        self._handed_over.remove(running)
        try:
            running.queue.started(running.entry, running.item, running.item + 1)
        except Exception as bug:
            self._loads.policy.note_bug(bug)
            raise

    def _remove(self, running: Running, held_tokens: int | None = None) -> None:
        """A request has left its instance."""
        self._gate.ended(running.entry, running.item)
        if running.started_s is None:
            with suppress(Exception):  # noted; the request leaves all the same
                self._leave_queue(running)
        self._loads.remove(running, held_tokens)
        self._apart.remove(running.entry)
        self._placing.freed(running.instance)
        self._has_left = True
        self._running.remove(running)

    def _drop(
        self, instance: InstanceId, error: StrettoError, now_s: float, *, kills: bool = True
    ) -> list[Report]:
        """Take an instance out of service, and try again elsewhere what it was running.

        One of these requests may have killed it, unless `kills` says that none has.
        """
        self._waiting.leave(instance)
        lost = list(self._loads.of(instance).values())
        for running in lost:
            self._remove(running)
        self._touched.pop(instance, None)
        self._drained.pop(instance, None)
        self._ahead.lose(instance)
        self._loads.leave(instance)
        self._loads.forget(instance)
        return self._lost.again(lost, error, now_s, killed=kills)
