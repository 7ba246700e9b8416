"""The requests of an LLM engine that were sent to instances, from then on to their end, by query and by node,
and how long each instance and each task has been silent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.errors import BadReply
from stretto.model.foreign import check_nesting
from stretto.model.tasks import Done, Ending
from stretto.model.values import KV, Prompt, answer_segment, as_text
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.llm.expected_outputs import num_output_tokens
from stretto.sched.queries.request import QueueEntry
from stretto.sched.queries.results import Completed, Report, failed


@dataclass(slots=True, eq=False)
class Running:
    """A request that was sent to an LLM instance and has not ended: one item of a queue entry.

    Attributes:
        queue: queue that it was taken from.
        placed: description of the request that the placement policy was given.
        num_output: expected number of output tokens, raised when it generates more.
        prefill_s: predicted seconds of its prefill; 0 once it has generated something.
        handed_s: time at which it was sent to the instance.
        first_s: predicted seconds from then to the end of its prefill; only set if the placement policy lets
            requests wait at instances.
        sent_prefill_s: predicted seconds of all prefills that were sent to the instance up to then, its own
            included; set where `first_s` is.
        offset: number of items or characters of its output that have been passed on.
        num_written: estimated number of tokens of its output so far.
        num_resident: tokens in flight at the instance when it was sent there, its own included.
        decoding_s: time at which its first output was reported; None before.
        num_first: estimated number of tokens of that output.
        is_decoding: whether it has generated something, so that its prefill is over.
        started_s: time at which the instance began its prefill; None if not known yet.
        slot: slot of the instance (`Fleet.slot`).
        is_probe: whether the instance was suspect when the request was sent.
        output_key: key of the instance's model and dtype (`Replica.output_key`), at which alone its output
            can go on.
    """

    task: int
    instance: InstanceId
    entry: QueueEntry
    item: int
    prompt: Prompt
    queue: EngineQueue
    placed: PlacementRequest
    prefill_s: float
    handed_s: float
    first_s: float = 0.0
    sent_prefill_s: float = 0.0
    num_output: int = field(init=False)
    offset: int = 0
    num_written: int = 0
    num_resident: int = 0
    decoding_s: float | None = None
    num_first: int = 0
    is_decoding: bool = False
    started_s: float | None = None
    slot: int = 0
    is_probe: bool = False
    output_key: object = None

    def __post_init__(self) -> None:
        self.num_output = self.placed.expected_output

    @property
    def is_offline(self) -> bool:
        """Whether it gives way to all requests that are not offline."""
        return self.placed.purpose.preference == "offline"

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the instance's budget that the request takes: its prompt and the output
        expected of it.
        """
        return self.placed.num_tokens + self.num_output


def completed(running: Running, done: Done) -> Report:
    """Return the report that a request has ended with `done`, or that it failed if the value is not of the
    type asked for.
    """
    request, value = running.entry.request, done.value
    kv = KV(running.prompt, running.instance)
    result: object = kv
    if request.node.spec.makes_text or request.node.fused is not None:
        wanted = list if request.decode and request.decode.items else str
        if not isinstance(value, wanted):
            message = f"the engine returned a {type(value).__name__}, not a {wanted.__name__}"
            return failed(request, running.item, running.item + 1, BadReply(message))
        try:
            check_nesting(value)
        except BadReply as error:
            return failed(request, running.item, running.item + 1, error)
        outputs: tuple[object, ...] = (value,)
        if request.is_continued:
            answer = done.written or answer_segment(as_text(value))
            outputs = value, KV(running.prompt, running.instance, answer)
        result = (kv, *outputs) if request.node.fused is not None else outputs if len(outputs) > 1 else value
    ending = None
    if done.finish != "stop":
        ending = Ending(request.step, done.finish, num_output_tokens(done.usage, value))
    return Completed(request.query, request.node.id, running.item, (result,), done.usage, ending)


Who = TypeVar("Who")


class LastHeard(Generic[Who]):
    """The times of the last messages of participants (instances or tasks), from which the silent ones are
    found without a search.

    Times never go back, so the order of messages is the order of times.
    """

    def __init__(self) -> None:
        self._heard_s: OrderedDict[Who, float] = OrderedDict()

    def __contains__(self, who: Who) -> bool:
        return who in self._heard_s

    def note(self, who: Who, now_s: float) -> None:
        """Record that the participant `who` (an instance or task) has sent a message at the time `now_s`."""
        self._heard_s[who] = now_s
        self._heard_s.move_to_end(who)

    def forget(self, who: Who) -> None:
        """Stop expecting messages of the participant `who` (an instance or task); nothing happens if it is
        unknown.
        """
        self._heard_s.pop(who, None)

    def oldest(self) -> tuple[Who, float] | None:
        """Return which participant has been silent for longest, and the time of its last message; None if no
        messages are expected.
        """
        return next(iter(self._heard_s.items()), None)

    def silent_for(self, timeout_s: float, now_s: float) -> list[Who]:
        """Return all participants that have sent no message for at least `timeout_s` seconds, the longest
        silence first.
        """
        silent = []
        for who, heard_s in self._heard_s.items():
            if now_s < heard_s + timeout_s:
                break
            silent.append(who)
        return silent


class RunningRequests:
    """The requests at instances of one engine.

    Attributes:
        tasks: last messages about tasks, by (instance, task).
        instances: last messages of instances that run something.
    """

    def __init__(self) -> None:
        self.tasks = LastHeard[tuple[InstanceId, int]]()
        self.instances = LastHeard[InstanceId]()
        self._of_query: dict[str, dict[InstanceId, dict[int, Running]]] = {}
        self._of_node: dict[tuple[str, int], dict[int, Running]] = {}
        self._num_at: dict[InstanceId, int] = {}

    def add(self, running: Running, now_s: float) -> None:
        """Add a request that is sent to its instance."""
        query, instance = running.entry.query, running.instance
        num = self._num_at.get(instance, 0)
        if not num:
            self.instances.note(instance, now_s)
        self._num_at[instance] = num + 1
        self._of_query.setdefault(query, {}).setdefault(instance, {})[running.task] = running
        self._of_node.setdefault((query, running.entry.request.node.id), {})[running.task] = running

    def remove(self, running: Running) -> None:
        """Remove a request that has left its instance."""
        query, instance = running.entry.query, running.instance
        self.tasks.forget((instance, running.task))
        self._num_at[instance] -= 1
        if not self._num_at[instance]:
            del self._num_at[instance]
            self.instances.forget(instance)
        self._of_query.get(query, {}).get(instance, {}).pop(running.task, None)
        place = query, running.entry.request.node.id
        of_node = self._of_node[place]
        del of_node[running.task]
        if not of_node:
            del self._of_node[place]

    def of_node(self, query: str, node: int) -> Iterable[Running]:
        """Return the requests of one node of a query."""
        return self._of_node.get((query, node), {}).values()

    def queries(self) -> list[str]:
        """Return the ids of the queries that have requests at instances."""
        return [query for query, tasks in self._of_query.items() if any(tasks.values())]

    def end_query(self, query: str) -> list[tuple[InstanceId, list[Running]]]:
        """Return the instances to which requests of a query were sent, with those that still run there. The
        caller must remove each of these. The query is forgotten.
        """
        found = self._of_query.pop(query, {})
        return [(instance, list(tasks.values())) for instance, tasks in sorted(found.items())]

    def next_expiry_s(self, timeout_s: float) -> float | None:
        """Return when the instance or task that is silent longest has been silent for `timeout_s` seconds;
        None if nothing runs.
        """
        found = (self.instances.oldest(), self.tasks.oldest())
        heard_s = min((one[1] for one in found if one is not None), default=None)
        return None if heard_s is None else heard_s + timeout_s

    def check_invariants(self) -> None:
        """Check that both tables have the same requests. For tests."""
        of_query = {one for of in self._of_query.values() for tasks in of.values() for one in tasks}
        assert of_query == {task for tasks in self._of_node.values() for task in tasks}
        assert sum(self._num_at.values()) == len(of_query)
