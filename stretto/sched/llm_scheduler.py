"""The lower tier for an LLM engine: admits requests one by one, under a token budget per instance.

Slots come back request by request, so admission runs after every event. The policy says what is admitted
next and the depth goes along as its priority, for the instance's own scheduler to order steps by. A
request goes where its predicted seconds are least: the work already there, plus the prefill that a held
prefix would save.

Source: Teola §5.2 and §6 (load balancing by occupied KV slots).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count

from stretto.core import KV, Prompt
from stretto.engine import Engine
from stretto.errors import BadReply, EngineTimeout, StrettoError
from stretto.messages import Action, Admit, CancelTask, Release, Restart
from stretto.sched.load_order import LoadOrder
from stretto.sched.policies import POLICIES, PolicyConfig, wanted_first
from stretto.sched.prefills_ahead import PrefillsAhead
from stretto.sched.results import Completed, Delivered, Report, failed, is_worth_retrying
from stretto.sched.snapshot import EnginePicture
from stretto.sched.work import Work
from stretto.tasks import Done, Failed, LLMEvent, LLMTask, Piece

_UNBOUNDED = 1 << 60


@dataclass(slots=True)
class _Running:
    """A request on an instance. `heard_s` is None until the instance has started it."""

    work: Work
    item: int
    prompt: Prompt
    units: int
    seconds: float
    offset: int = 0
    heard_s: float | None = None


@dataclass(slots=True)
class _Instance:
    running: dict[int, _Running] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    heard_s: float = 0.0
    touched: set[str] = field(default_factory=set)


class LLMScheduler:
    """Queue and running requests of one LLM engine."""

    def __init__(self, engine: Engine, ids: count[int]) -> None:
        self.engine = engine
        self.queue: list[Work] = []
        self.not_before_s: float | None = None
        self._policy = POLICIES[engine.policy]
        self._policy_config = PolicyConfig.of(engine)
        self._ids = ids
        self._instances = [_Instance() for _ in range(engine.instances)]
        self._order = LoadOrder(engine.instances, engine.batch_units)
        self._visited: dict[str, set[int]] = {}
        self._ahead = PrefillsAhead(engine.profile)

    def add(self, work: Work, now_s: float) -> None:
        """Work has become ready."""
        work.arrival_s = now_s
        self.queue.append(work)

    def report(self, instance_id: int, event: LLMEvent, now_s: float) -> list[Report]:
        """An instance says something. What it says of tasks already given up is ignored."""
        instance = self._instances[instance_id]
        instance.heard_s = now_s
        running = instance.running.get(event.task)
        if running is None:
            return []
        work = running.work
        running.heard_s = now_s
        match event:
            case Piece(value=piece):
                offset = running.offset
                running.offset += 1 if work.decode and work.decode.items else len(piece)
                return [Delivered(work.query, work.node.id, offset, piece)]
            case Done(value=value):
                self._remove(instance_id, event.task)
                self._ahead.end(work.query, work.node.id)
                return [self._completed(running, instance_id, value)]
            case Failed(error=error):
                self._remove(instance_id, event.task)
                self._ahead.stop(work.query, work.node.id, None, now_s)
                if is_worth_retrying(error):
                    return self._retry([running], error)
                return [failed(work, running.item, running.item + 1, error)]
        return []

    def lost(self, instance_id: int, error: StrettoError) -> list[Report]:
        """An instance died with all its sequences and KV."""
        instance = self._instances[instance_id]
        lost = list(instance.running.values())
        self._instances[instance_id] = _Instance(heard_s=instance.heard_s)
        self._ahead.lose(instance_id)
        self._note_load(instance_id)
        return self._retry(lost, error)

    def expire(self, now_s: float) -> tuple[list[Report], list[Action]]:
        """Give up instances that have been silent for too long, and requests that got stuck."""
        reports: list[Report] = []
        actions: list[Action] = []
        if self.engine.timeout_s is None:
            return reports, actions
        timeout_s = self.engine.timeout_s
        error = EngineTimeout(f"engine {self.engine.name!r} was silent for {self.engine.timeout_s:g} s")
        for instance_id, instance in enumerate(self._instances):
            if instance.running and instance.heard_s + timeout_s <= now_s:
                reports += self.lost(instance_id, error)
                actions.append(Restart(self.engine.name, instance_id))
                continue
            for task, running in list(instance.running.items()):
                if running.heard_s is not None and running.heard_s + timeout_s <= now_s:
                    self._remove(instance_id, task)
                    self._ahead.stop(running.work.query, running.work.node.id, None, now_s)
                    reports += self._retry([running], error)
                    actions.append(CancelTask(self.engine.name, instance_id, task))
        return reports, actions

    def next_expiry_s(self) -> float | None:
        """When `expire` may next have something to do."""
        if self.engine.timeout_s is None:
            return None
        busy = [instance for instance in self._instances if instance.running]
        heard = [instance.heard_s for instance in busy]
        heard += [r.heard_s for instance in busy for r in instance.running.values() if r.heard_s is not None]
        return min(heard) + self.engine.timeout_s if heard else None

    def schedule(self, now_s: float) -> list[Action]:
        """Admit as much as fits, in the policy's order."""
        actions: list[Action] = []
        self.not_before_s = None
        while self.queue:
            roomiest = self._order.roomiest
            if roomiest == 0:
                break
            admitted = self._admit_within(roomiest, now_s)
            if not admitted and self.not_before_s is None:
                admitted = self._admit_oversize(now_s)
            if not admitted:
                break
            actions += admitted
            self.queue = [work for work in self.queue if work.lo < work.hi]
        return actions

    def want(self, query: str, wanted: Collection[int]) -> None:
        """Other nodes of a query are wanted than before."""
        for work in self.queue:
            if work.query == query:
                work.is_wanted = work.node.id in wanted

    def withdraw(self, query: str, node: int, now_s: float) -> list[Action]:
        """Stop the requests of a node; what they have computed stays where it is."""
        self.queue = [work for work in self.queue if (work.query, work.node.id) != (query, node)]
        actions: list[Action] = []
        for instance_id in sorted(self._visited.get(query, ())):
            for task, running in list(self._instances[instance_id].running.items()):
                if (running.work.query, running.work.node.id) == (query, node):
                    self._remove(instance_id, task)
                    self._ahead.stop(query, node, running.heard_s, now_s)
                    actions.append(CancelTask(self.engine.name, instance_id, task))
        return actions

    def queries(self) -> Iterator[str]:
        """The queries of which anything waits or runs."""
        yield from dict.fromkeys(work.query for work in list(self.queue))
        for instance_id in range(len(self._instances)):
            yield from self.queries_in(instance_id)

    def queries_in(self, instance_id: int, task: int | None = None) -> list[str]:
        """The queries that an instance runs something of, or the one that has `task` there."""
        running = self._instances[instance_id].running
        found = running.values() if task is None else filter(None, (running.get(task),))
        return [one.work.query for one in found]

    def end_query(self, query: str) -> list[Action]:
        """Drop what waits for `query`, stop what runs, let go of its KV."""
        self.queue = [work for work in self.queue if work.query != query]
        self._ahead.forget(query)
        actions: list[Action] = []
        for instance_id in sorted(self._visited.pop(query, ())):
            instance = self._instances[instance_id]
            for task in [t for t, running in instance.running.items() if running.work.query == query]:
                self._remove(instance_id, task)
                actions.append(CancelTask(self.engine.name, instance_id, task))
            if query in instance.touched:
                instance.touched.discard(query)
                actions.append(Release(self.engine.name, instance_id, query))
        return actions

    def releases(self) -> list[Action]:
        """Nothing: a cancelled sequence frees its KV at once, so `end_query` releases all."""
        return []

    def picture(self) -> EnginePicture:
        """What waits and what runs."""
        num_running = tuple(len(instance.running) for instance in self._instances)
        return EnginePicture(self.engine.name, sum(work.hi - work.lo for work in self.queue), num_running)

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.queue and not any(instance.running for instance in self._instances)

    def check_invariants(self) -> None:
        """For tests: token and slot counts agree with what runs, and keep within the limits."""
        assert all(work.lo < work.hi for work in self.queue)
        for instance in self._instances:
            tokens = sum(running.units for running in instance.running.values())
            assert tokens == instance.tokens
            assert tokens <= self.engine.batch_units or len(instance.running) == 1
            assert len(instance.running) <= self.engine.max_running
        assert self._order.roomiest == max(map(self._room, self._instances))

    def _room(self, instance: _Instance) -> int:
        if len(instance.running) >= self.engine.max_running:
            return 0
        return max(0, self.engine.batch_units - instance.tokens)

    def _admit_within(self, budget: int, now_s: float) -> list[Action]:
        """Admit what the policy takes for `budget`, as far as single instances have room for it."""
        selection = self._policy(wanted_first(self.queue), budget, now_s, self._policy_config)
        self.not_before_s = selection.not_before_s
        admitted: list[Action] = []
        for work, num_items in selection.take:
            for _ in range(num_items):
                place = self._place(work, work.units_of(work.lo, work.lo + 1))
                if place is None:
                    break
                admitted.append(self._admit(place, work, now_s))
        return admitted

    def _admit_oversize(self, now_s: float) -> list[Action]:
        """Admit what no instance has room for to one that runs nothing else, if there is one."""
        empty = [i for i, instance in enumerate(self._instances) if not instance.running]
        if not empty:
            return []
        queue = wanted_first(self.queue)
        unbounded = self._policy(queue, _UNBOUNDED, now_s, self._policy_config).take
        work = unbounded[0][0] if unbounded else queue[0]
        hint = self._ahead.hint_of(work).instance
        return [self._admit(hint if hint in empty else empty[0], work, now_s)]

    def _place(self, work: Work, units: int) -> int | None:
        """The instance with room where the request ends first; a holder of its prefix wins a tie.

        An instance that is just computing at least half of its prompt comes before all: the request waits
        there for blocks that it would compute again elsewhere.
        Source: Preble §4.2, where a prefix that is longer than the rest decides the place.
        """
        hint = self._ahead.hint_of(work)
        if hint.is_running and 2 * hint.num_tokens >= units - _num_output(work):
            place = hint.instance
            if place is not None and self._room(self._instances[place]) >= max(units, 1):
                return place
        best: tuple[float, bool, int, int] | None = None
        if (found := self._order.least_loaded(max(units, 1), other_than=hint.instance)) is not None:
            end_s = self._instances[found].seconds + self._seconds(work, units, found)
            best = end_s, True, self._instances[found].tokens, found
        if hint.instance is not None and 0 <= hint.instance < len(self._instances):
            instance = self._instances[hint.instance]
            if self._room(instance) >= max(units, 1):
                end_s = instance.seconds + self._seconds(work, units, hint.instance)
                held = end_s, False, instance.tokens, hint.instance
                best = held if best is None else min(best, held)
        return None if best is None else best[3]

    def _seconds(self, work: Work, units: int, instance_id: int) -> float:
        """Predicted: the prefill of what the instance does not hold, and the decode."""
        num_output, hint = _num_output(work), self._ahead.hint_of(work)
        num_held = hint.num_tokens if hint.instance == instance_id else 0
        profile = self.engine.profile
        return profile.batch_s(max(0, units - num_output - num_held)) + profile.per_output_s * num_output

    def _admit(self, instance_id: int, work: Work, now_s: float) -> Admit:
        item = work.lo
        work.lo += 1
        units = work.units_of(item, item + 1)
        prompt = work.prompts[item - work.base]
        seconds = self._seconds(work, units, instance_id)
        task = LLMTask(
            next(self._ids),
            work.query,
            work.step,
            prompt,
            work.decode,
            work.record.tenant,
            work.record.criteria,
        )
        instance = self._instances[instance_id]
        if not instance.running:
            instance.heard_s = now_s
        instance.running[task.id] = _Running(work, item, prompt, units, seconds)
        instance.tokens += units
        instance.seconds += seconds
        self._visited.setdefault(work.query, set()).add(instance_id)
        if work.decode is None and not work.each:
            self._ahead.start(work, instance_id, units)
        self._note_load(instance_id)
        if self.engine.keeps_state:
            instance.touched.add(work.query)
        return Admit(self.engine.name, instance_id, task, float(work.node.depth))

    def _note_load(self, instance_id: int) -> None:
        instance = self._instances[instance_id]
        self._order.update(instance_id, self._room(instance), instance.seconds, instance.tokens)

    def _remove(self, instance_id: int, task: int) -> None:
        instance = self._instances[instance_id]
        running = instance.running.pop(task)
        instance.tokens -= running.units
        instance.seconds = instance.seconds - running.seconds if instance.running else 0.0
        self._note_load(instance_id)

    def _completed(self, running: _Running, instance_id: int, value: object) -> Report:
        work = running.work
        result: object = KV(running.prompt, instance_id)
        if work.node.op == "decode" or work.node.fused is not None:
            wanted = list if work.decode and work.decode.items else str
            if not isinstance(value, wanted):
                message = f"the engine returned a {type(value).__name__}, not a {wanted.__name__}"
                return failed(work, running.item, running.item + 1, BadReply(message))
            result = (result, value) if work.node.fused is not None else value
        return Completed(work.query, work.node.id, running.item, (result,))

    def _retry(self, lost: list[_Running], error: StrettoError) -> list[Report]:
        reports: list[Report] = []
        again = []
        for running in lost:
            work = running.work
            if work.attempt + 1 >= self.engine.max_attempts:
                reports.append(failed(work, running.item, running.item + 1, error))
            else:
                again.append(
                    work.again(running.item, running.item + 1, attempt=work.attempt + 1, alone=False)
                )
        self.queue[:0] = again
        return reports


def _num_output(work: Work) -> int:
    return work.decode.max_tokens if work.decode else 0
