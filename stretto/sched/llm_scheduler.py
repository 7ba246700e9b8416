"""The lower tier for an LLM engine: admits requests one by one, under a token budget per instance.

Slots come back request by request, so admission runs after every event. The order of the queue says what is
admitted next, and its rank goes along, for the instance's own scheduler to order prefills by. A request goes
where it is predicted to end first.

Source: Teola §5.2 and §6 (load balancing by occupied KV slots). Differs: budgets count the output that is
expected, not the limit.
"""

from __future__ import annotations

from itertools import count

from stretto.core import KV
from stretto.costs.tokens import num_tokens
from stretto.engine import Engine
from stretto.errors import BadReply, EngineTimeout, StrettoError
from stretto.messages import Action, Admit, CancelTask, Release, Restart
from stretto.sched.engine_queue import EngineQueue
from stretto.sched.expected_outputs import ExpectedOutputs, num_output_tokens
from stretto.sched.handed_over import HandedOver
from stretto.sched.last_heard import LastHeard
from stretto.sched.llm_loads import InstanceLoads, Running
from stretto.sched.orders.order import Hold, Take
from stretto.sched.request import Entry, Request, queue_entry
from stretto.sched.results import Broken, Completed, Delivered, Report, is_worth_retrying
from stretto.tasks import Done, Failed, LLMEvent, LLMTask, Piece


class LLMScheduler:
    """Queue and running requests of one LLM engine."""

    def __init__(self, engine: Engine, ids: count[int]) -> None:
        self.engine = engine
        self.queue = EngineQueue(engine)
        self.not_before_s: float | None = None
        self._ids = ids
        self._outputs = ExpectedOutputs()
        self._loads = InstanceLoads(engine, self._outputs)
        self._handed_over = HandedOver(engine.name)
        self._num_changes: dict[str, int] = {}
        self._of_query: dict[str, dict[int, dict[int, Running]]] = {}
        self._touched: dict[int, set[str]] = {}
        self._heard_instances = LastHeard[int]()
        self._heard_tasks = LastHeard[tuple[int, int]]()

    def add(self, request: Request, now_s: float) -> None:
        """A request has become ready."""
        self._queue(queue_entry(request, arrival_s=now_s, num_output=self._outputs.expected(request)))

    def report(self, instance: int, event: LLMEvent, now_s: float) -> list[Report]:
        """An instance says something. What it says of tasks already given up is ignored."""
        if instance in self._heard_instances:
            self._heard_instances.note(instance, now_s)
        running = self._loads.of(instance).running.get(event.task)
        if running is None:
            return []
        request = running.entry.request
        self._start(running)
        self._heard_tasks.note((instance, event.task), now_s)
        match event:
            case Piece(value=piece):
                offset = running.offset
                running.offset += 1 if request.decode and request.decode.items else len(piece)
                self._loads.wrote(running, num_tokens(piece))
                return [Delivered(request.query, request.node.id, offset, piece)]
            case Done(value=value, usage=usage):
                self._remove(running)
                self._outputs.observe(request, num_output_tokens(usage, value))
                return [_completed(running, value)]
            case Failed(error=error):
                self._remove(running)
                if is_worth_retrying(error):
                    return self._retry([running], error)
                return [Broken(request.query, error.at(request.step))]
        return []

    def lost(self, instance: int, error: StrettoError) -> list[Report]:
        """An instance died with all its sequences and KV."""
        lost = list(self._loads.of(instance).running.values())
        for running in lost:
            self._remove(running)
        self._touched.pop(instance, None)
        return self._retry(lost, error)

    def expire(self, now_s: float) -> tuple[list[Report], list[Action]]:
        """Give up instances that have been silent for too long, and requests that got stuck."""
        reports: list[Report] = []
        actions: list[Action] = []
        timeout_s = self.engine.timeout_s
        if timeout_s is None:
            return reports, actions
        error = EngineTimeout(f"engine {self.engine.name!r} was silent for {timeout_s:g} s")
        for instance in self._heard_instances.silent_for(timeout_s, now_s):
            reports += self.lost(instance, error)
            actions.append(Restart(self.engine.name, instance))
        for instance, task in self._heard_tasks.silent_for(timeout_s, now_s):
            running = self._loads.of(instance).running[task]
            self._remove(running)
            reports += self._retry([running], error)
            actions.append(CancelTask(self.engine.name, instance, task))
        return reports, actions

    def next_expiry_s(self) -> float | None:
        """When `expire` may next have something to do."""
        if self.engine.timeout_s is None:
            return None
        found = (self._heard_instances.oldest(), self._heard_tasks.oldest())
        heard_s = min((one[1] for one in found if one is not None), default=None)
        return None if heard_s is None else heard_s + self.engine.timeout_s

    def schedule(self, now_s: float) -> list[Action]:
        """Admit as much as fits, in the queue's order; correct ranks given earlier."""
        actions: list[Action] = []
        self.not_before_s = None
        while self.queue and self._loads.roomiest > 0:
            admitted = self._admit_next(0 if actions else self._loads.roomiest, now_s)
            if admitted is None:
                break
            actions.append(admitted)
        actions += self._handed_over.reprioritise(self._num_changes, self.queue.rank)
        self._num_changes.clear()
        return actions

    def end_query(self, query: str) -> list[Action]:
        """Drop what waits for `query`, stop what runs, let go of its KV."""
        actions: list[Action] = []
        for instance, tasks in sorted(self._of_query.pop(query, {}).items()):
            for task, running in list(tasks.items()):
                self._remove(running)
                actions.append(CancelTask(self.engine.name, instance, task))
            if query in self._touched.get(instance, ()):
                self._touched[instance].discard(query)
                actions.append(Release(self.engine.name, instance, query))
        self.queue.end_query(query)
        return actions

    def releases(self) -> list[Action]:
        """Nothing: a cancelled sequence frees its KV at once, so `end_query` releases all."""
        return []

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.queue and not self._loads.num_running

    def check_invariants(self) -> None:
        """For tests: token and slot counts agree with what runs, and keep within the limits."""
        assert all(entry.lo < entry.hi for entry in self.queue)
        self._loads.check_invariants()

    def _admit_next(self, to_fill: int, now_s: float) -> Admit | None:
        """Admit the next request that an instance has room for; one that exceeds a whole budget goes to an
        instance that runs nothing else."""
        place: int | None = None

        def fits(entry: Entry) -> int:
            nonlocal place
            num_output = self._outputs.expected(entry.request)
            num_prompt = entry.num_units(entry.lo, entry.lo + 1)
            place = self._loads.place(entry, num_prompt + num_output, num_output)
            return int(place is not None)

        chosen = self.queue.choose(to_fill, fits, now_s)
        if chosen is None and (place := self._loads.empty_one()) is not None:
            chosen = self.queue.choose(to_fill, lambda entry: 1, now_s)
            if isinstance(chosen, Take) and self._loads.is_empty(chosen.entry.request.hint):
                place = chosen.entry.request.hint
        if isinstance(chosen, Hold):
            self.not_before_s = chosen.until_s
        if chosen is None or isinstance(chosen, Hold):
            return None
        assert place is not None
        return self._admit(place, chosen.entry, now_s)

    def _admit(self, instance: int, entry: Entry, now_s: float) -> Admit:
        request = entry.request
        rank = self.queue.rank(entry)
        item = self.queue.take(entry, 1)
        prompt = request.prompts[item - request.lo]
        task = LLMTask(
            next(self._ids),
            request.query,
            request.step,
            prompt,
            request.decode,
            request.tenant,
            request.objective,
        )
        num_prompt = entry.num_units(item, item + 1)
        prefill_s = self._loads.prefill_s(entry, num_prompt, instance)
        num_output = self._outputs.expected(request)
        running = Running(task.id, instance, entry, item, prompt, num_prompt, num_output, prefill_s)
        if not self._loads.of(instance).running:
            self._heard_instances.note(instance, now_s)
        self._loads.add(running)
        self._of_query.setdefault(request.query, {}).setdefault(instance, {})[task.id] = running
        if self.engine.keeps_state:
            self._touched.setdefault(instance, set()).add(request.query)
        return Admit(self.engine.name, instance, task, self._handed_over.add(running, rank))

    def _queue(self, entry: Entry) -> None:
        self.queue.add(entry)
        self._note_change(entry.query)

    def _note_change(self, query: str) -> None:
        self._num_changes[query] = self._num_changes.get(query, 0) + 1

    def _start(self, running: Running) -> None:
        """A request has left its instance's queue."""
        if not running.has_started:
            running.has_started = True
            self._note_change(running.entry.query)
            self._handed_over.remove(running)
            self.queue.started(running.entry, running.item, running.item + 1)

    def _remove(self, running: Running) -> None:
        """A request has left its instance."""
        self._start(running)
        self._loads.remove(running)
        self._heard_tasks.forget((running.instance, running.task))
        if not self._loads.of(running.instance).running:
            self._heard_instances.forget(running.instance)
        tasks = self._of_query.get(running.entry.query, {}).get(running.instance, {})
        tasks.pop(running.task, None)

    def _retry(self, lost: list[Running], error: StrettoError) -> list[Report]:
        reports: list[Report] = []
        for running in lost:
            entry, item = running.entry, running.item
            if entry.attempt + 1 >= self.engine.max_attempts:
                reports.append(Broken(entry.query, error.at(entry.request.step)))
            else:
                self._queue(entry.again(item, item + 1, attempt=entry.attempt + 1, alone=False))
        return reports


def _completed(running: Running, value: object) -> Report:
    request = running.entry.request
    result: object = KV(running.prompt, running.instance)
    if request.node.op == "decode" or request.node.fused is not None:
        wanted = list if request.decode and request.decode.items else str
        if not isinstance(value, wanted):
            message = f"the engine returned a {type(value).__name__}, not a {wanted.__name__}"
            return Broken(request.query, BadReply(message, step=request.step))
        result = (result, value) if request.node.fused is not None else value
    return Completed(request.query, request.node.id, running.item, (result,))
