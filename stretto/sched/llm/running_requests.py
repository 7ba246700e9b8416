"""The requests of an LLM engine that were sent to instances, by query and by node, and how long each instance
and each task has been silent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from stretto.cluster.messages import InstanceId
from stretto.sched.llm.running_request import Running

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
