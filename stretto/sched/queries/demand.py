"""The demands on the nodes of a running graph, deduced from the demands on its variables.

A reader asks for a variable with criteria and perhaps a deadline. All nodes that the variable comes of have
to serve that reader: they have the strictest criteria of all their readers, they have to start a predicted
path before the earliest deadline, and their path is the longest one. They belong to the job of that reader,
at a stage: the number of LLM answers until the variable is there. Requests of one stage of one job are a
task group (`task_groups.py`).

Source: Parrot §5.2 (performance objective deduction). Differs: readers may have deadlines, and a later reader
may ask for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from stretto.graph.execution_graph import Node
from stretto.model.tasks import Criteria, Objective
from stretto.sched.queries.live_graph import LiveGraph

_STRICTEST: Sequence[Objective | None] = ("latency", "throughput", "offline", None)


class Demand(NamedTuple):
    """The urgency of a value, or of the result of a node.

    Attributes:
        criteria: the strictest ("latency" before "throughput" before "offline") of what all who wait ask;
            None if nobody waits.
        start_by_s: time, by the clock of the runtime or simulator, at which a node has to start so that all
            deadlines can be kept; of a value, when it has to be there. Infinite without a deadline.
        path_s: predicted seconds from its start until the last value that somebody waits for. Within a job,
            the longest path has the least slack.
        stage: number of LLM answers until the variable of its job is there, its own included.
        job: name of the variable that the strictest reader waits for; "" if nobody waits, and in one-shot
            queries.
        answer: what the answer of an LLM that makes the value asks of its instance; None for `criteria`.
        group: name of its task group: the requests of one stage of one job, if there are several and the job
            is wanted for latency. "" outside of any.
    """

    criteria: Objective | None
    start_by_s: float = math.inf
    path_s: float = 0.0
    stage: int = 0
    job: str = ""
    group: str = ""
    answer: Objective | None = None

    @property
    def preference(self) -> Objective | None:
        """Objective for which the instance that serves it is best filled; None if nobody waits. A task group
        is as late as its last request, so it is batched for throughput, though its job is wanted for latency.

        Source: Parrot §5.2.
        """
        return "throughput" if self.group else self.answer or self.criteria

    def joined(self, other: Demand) -> Demand:
        """Return how urgently a value with two readers is needed: the stricter criteria, the earlier latest
        start, and the longer path to the end.

        It belongs to the job of the stricter reader; of readers alike, to that of the first name.
        """
        first, second = (self, other) if _is_as_strict(self, other) else (other, self)
        stage, job = first.stage, first.job
        if first.criteria == second.criteria:
            stage = max(stage, second.stage)
            job = min(job, second.job) if job and second.job else job or second.job
        return Demand(
            first.criteria,
            min(self.start_by_s, other.start_by_s),
            max(self.path_s, other.path_s),
            stage,
            job,
            answer=_stricter_answer(first, second),
        )

    def before(self, seconds: float, num_answers: int = 0) -> Demand:
        """Return how urgently a step that takes `seconds` must start, if this demand says how urgently its
        result is needed.

        The step must start `seconds` earlier, and its predicted path to the end is `seconds` longer.
        `num_answers` is 1 for the answer of an LLM, which is a stage of its own, and 0 for any other step.
        """
        return Demand(
            self.criteria,
            self.start_by_s - seconds,
            self.path_s + seconds,
            self.stage + num_answers,
            self.job,
            answer=self.answer,
        )


def asked_by(criteria: Criteria, deadline_s: float = math.inf) -> Demand:
    """Return the demand on a variable of a reader with these criteria, who needs it by `deadline_s`.

    A text that is to begin soon may then come beside many others; one that is to come fast may begin late.
    """
    if criteria == "first_token":
        return Demand("latency", deadline_s, answer="throughput")
    if criteria == "time_per_token":
        return Demand("throughput", deadline_s, answer="latency")
    return Demand(criteria, deadline_s)


def _stricter_answer(one: Demand, other: Demand) -> Objective | None:
    """Return what an answer with two readers asks of its instance, of which `one` is the stricter reader."""
    if one.answer is None and other.answer is None:
        return None
    answer = min(one.answer or one.criteria, other.answer or other.criteria, key=_STRICTEST.index)
    return None if answer == one.criteria else answer


def _is_as_strict(one: Demand, other: Demand) -> bool:
    return _STRICTEST.index(one.criteria) <= _STRICTEST.index(other.criteria)


NOBODY = Demand(None)
"""Demand on a node whose results are not needed yet."""
MOST_AT_ONCE = 1024
"""Number of nodes whose demands are corrected before others have a turn: some ms of work."""


@lru_cache(maxsize=4096)
def usual(criteria: Objective, path_s: float) -> Demand:
    """Return the demand on a node of a one-shot query, of which every result is needed, by no deadline
    of its own.

    `path_s` is the predicted seconds from its start to the query's end. Queries of one app share the objects.
    """
    return Demand(criteria, path_s=path_s)


def deduce(
    live: LiveGraph,
    demands: dict[int, Demand],
    asked: Mapping[int, Demand],
    of_effects: Demand,
    changed: dict[int, None],
    most: int = MOST_AT_ONCE,
) -> list[tuple[Node, Demand]]:
    """Correct how urgently each node is needed; return (node, new demand) pairs of the nodes for which
    that has changed, in order of their ids.

    Only the nodes in `changed` and what is behind them are looked at, and only if something changes there.

    Args:
        demands: demands on nodes by id, computed backwards from the demands on values and effects; changed
            in place. Nodes that nobody needs are left out, and have the demand `NOBODY` in what is returned.
        asked: demands on values that somebody waits for, by id.
        of_effects: demand on each effect that has still to
            happen.
        changed: ids of nodes that are new, or for which other nodes wait, or values are asked for, than at
            the last call. Some may have ended. Those that have been looked at are taken out; what is left is
            for the next call.
        most: number of nodes after whose change to stop.
    """

    def of(node: Node) -> Demand | None:
        nodes, values = live.dependencies.reached(node)
        joined = of_effects if node.id in live.effects else None
        for value_id in values:
            if (demand := asked.get(value_id)) is not None:
                joined = demand if joined is None else joined.joined(demand)
        for node_id in nodes:
            if (demand := demands.get(node_id)) is not None:
                if demand.answer is not None and _begins_answer(live.nodes[node_id], node):
                    demand = demand._replace(answer=None)
                joined = demand if joined is None else joined.joined(demand)
        return None if joined is None else joined.before(node.own_s, node.spec.makes_text)

    order = None if live.is_in_order else _sources_first(live, changed)
    places = None if order is None else {node_id: place for place, node_id in enumerate(order)}
    latest_first = [
        -(node_id if places is None else places[node_id]) for node_id in changed if node_id in live.nodes
    ]
    heapify(latest_first)
    found: dict[int, tuple[Node, Demand]] = {}
    while latest_first and len(found) < most:
        place = -heappop(latest_first)
        node = live.nodes[place if order is None else order[place]]
        del changed[node.id]
        demand = of(node)
        if demand == demands.get(node.id):
            continue
        if demand is None:
            del demands[node.id]
            found[node.id] = node, NOBODY
        else:
            demands[node.id] = demand
            found[node.id] = node, demand
        for source in live.dependencies.sources(node):
            if source.id not in changed:
                changed[source.id] = None
                heappush(latest_first, -(source.id if places is None else places[source.id]))
    if not latest_first:
        changed.clear()
    return [found[node_id] for node_id in sorted(found)]


def _begins_answer(node: Node, source: Node) -> bool:
    """Return whether a node is the first step of a request to an LLM, of which `source` is no part."""
    spec = node.spec
    return spec.computes_prompt or (spec.makes_text and not source.spec.computes_prompt)


def _sources_first(live: LiveGraph, ends: Iterable[int]) -> list[int]:
    """Return the nodes that `ends` depend on, `ends` included, sources first."""
    order: list[int] = []
    seen: set[int] = set()
    for end in ends:
        if end in seen or end not in live.nodes:
            continue
        seen.add(end)
        stack = [(end, iter(live.dependencies.sources(live.nodes[end])))]
        while stack:
            node_id, unseen = stack[-1]
            for source in unseen:
                if source.id not in seen:
                    seen.add(source.id)
                    stack.append((source.id, iter(live.dependencies.sources(source))))
                    break
            else:
                order.append(node_id)
                stack.pop()
    return order
