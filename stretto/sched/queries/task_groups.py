"""The task groups of a session: LLM requests of one stage of one job, which matter only all together.

The stage of a request is the number of LLM answers until the variable is there that a caller waits for. Where
a job is wanted for latency and one of its stages has several requests, the time of the last one counts: they
are a task group, and are batched for throughput. A request alone in its stage is sensitive to latency. A step
that is applied to each item of a list is a group by itself.

A group stays one while a request of it has not ended, so that the last one is treated as the first was.

Source: Parrot §5.2. Differs: a group is known as soon as its second request is submitted, and what waits
already joins it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.graph.execution_graph import Node
from stretto.sched.queries.demand import Demand

_Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Stage:
    """The requests of one stage of one job.

    Attributes:
        num_answers: number of its answers, ended ones included; an answer for each item of a list counts as
            two.
        live: nodes that have not ended, with what is asked of them.
    """

    num_answers: int = 0
    live: dict[int, tuple[Node, Demand]] = field(default_factory=dict)

    @property
    def is_group(self) -> bool:
        return self.num_answers > 1


class TaskGroups:
    """The stages of the jobs of a session that are wanted for latency, and the task groups among them."""

    def __init__(self) -> None:
        self._stages: dict[_Key, _Stage] = {}
        self._keys: dict[int, _Key] = {}

    def of(self, node: Node, demand: Demand) -> Demand:
        """Return what is asked of a node, with the name of its task group."""
        key = self._keys.get(node.id)
        if key is None or not self._stages[key].is_group:
            return demand
        return demand._replace(group=f"{key[0]}#{key[1]}")

    def update(self, changes: list[tuple[Node, Demand]]) -> list[tuple[Node, Demand]]:
        """Record new demands on nodes; return these demands with their task groups, and the demands
        on all other nodes whose requests have become a group by it or are one no longer. They are in order of
        the nodes' ids.
        """
        before: dict[_Key, bool] = {}
        stages, keys = self._stages, self._keys
        for change in changes:
            node, demand = change
            key, old = _key(node, demand), keys.get(node.id)
            if key is None and old is None:
                continue
            if key != old:
                self._note(before, old)
                self._note(before, key)
                self._leave(node, is_moved=True)
                if key is not None:
                    self._join(key, node)
            if key is not None:
                stages[key].live[node.id] = change
        turned = [
            stage.live
            for key, was_group in before.items()
            if (stage := stages.get(key)) is not None and stage.is_group != was_group
        ]
        if turned:
            found = {change[0].id: change for change in changes}
            for live in turned:
                found.update(live)
            changes = [found[node_id] for node_id in sorted(found)]
        if not keys:
            return changes
        return [
            change
            if (key := keys.get(change[0].id)) is None or not stages[key].is_group
            else (change[0], self.of(*change))
            for change in changes
        ]

    def end(self, node: Node) -> None:
        """Forget a node that has ended; its siblings stay a group."""
        self._leave(node, is_moved=False)

    def __len__(self) -> int:
        """Return the number of stages that have a live request."""
        return len(self._stages)

    def _note(self, before: dict[_Key, bool], key: _Key | None) -> None:
        """Note whether a stage that is about to change is a group, unless that is noted already."""
        if key is not None and key not in before:
            stage = self._stages.get(key)
            before[key] = stage is not None and stage.is_group

    def _join(self, key: _Key, node: Node) -> None:
        if key not in self._stages:
            self._stages[key] = _Stage()
        self._stages[key].num_answers += _num_answers(node)
        self._keys[node.id] = key

    def _leave(self, node: Node, *, is_moved: bool) -> None:
        key = self._keys.pop(node.id, None)
        if key is None:
            return
        stage = self._stages[key]
        del stage.live[node.id]
        if is_moved:
            stage.num_answers -= _num_answers(node)
        if not stage.live:
            del self._stages[key]


def _key(node: Node, demand: Demand) -> _Key | None:
    """Return the job and stage of an LLM request that is wanted for latency; None for other steps."""
    is_wanted = demand.criteria == "latency" and demand.job and node.spec.runs_on == "llm"
    return (demand.job, demand.stage) if is_wanted else None


def _num_answers(node: Node) -> int:
    if not node.spec.makes_text:
        return 0
    return 2 if node.is_mapped else 1
