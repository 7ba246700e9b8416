"""Where the calls of queries count: in which nodes of the plan, and which of them can be made now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.planner.deciding.nodes import DrawnApplication, node_name, step_of_node
from stretto.planner.deciding.query_calls import QueryCall, QueryCalls
from stretto.planner.running.planned_calls import PlannedCall

Key = tuple[str, int]
"""A call of a query: its step and its number."""


@dataclass(slots=True)
class LiveQuery:
    """A query that has begun.

    Attributes:
        calls: calls that can be made, or are under way.
        answers: answers so far.
        counts: nodes in which it counts as left.
    """

    query: QueryCalls
    calls: dict[PlannedCall, QueryCall] = field(default_factory=dict)
    answers: dict[Key, object] = field(default_factory=dict)
    seen: Counter[Key] = field(default_factory=Counter)
    counts: frozenset[str] = frozenset()
    is_growing: bool = True


class QueryCounts:
    """Counts of a run's queries, `num_queries` of which begin in all nodes.

    Attributes:
        num_left: requests that may still make calls of each node of the plan.
        num_ready: calls of each node that can be made now, or are under way.
        num_growing: requests that may still make calls which count in no node now.
    """

    def __init__(self, app: DrawnApplication, num_queries: int) -> None:
        self._app = app
        self._source = app.source
        self.num_left = {node.name: num_queries for node in app.nodes}
        self.num_ready = dict.fromkeys(self.num_left, 0)
        self.num_growing = num_queries
        self._inner = {node.name: step_of_node(node.name) for node in app.nodes}

    def add_ready(self, call: QueryCall, number: int) -> None:
        """Count a call that can be made from now on (1), or that has ended (-1)."""
        self.num_ready[self._node_of(call)] += number

    def update(self, live: LiveQuery) -> None:
        """Count a query in the nodes whose calls it may still make."""
        counts = frozenset[str]() if live.query.has_ended else frozenset(self._open_nodes(live))
        for name in live.counts - counts:
            self.num_left[name] -= 1
        for name in counts - live.counts:
            self.num_left[name] += 1
        live.counts = counts
        names = (node_name(place) for place, _ in live.query.open_steps())
        is_growing = live.query.may_grow or any(name not in self.num_left for name in names)
        is_growing = is_growing and not live.query.has_ended
        self.num_growing += is_growing - live.is_growing
        live.is_growing = is_growing

    def _node_of(self, call: QueryCall) -> str:
        """Return the node in which a call counts: of a step that no draw has had, the last of its model."""
        name = node_name(call.place)
        return (
            name if name in self.num_left else self._app.models[self._source.model_of(call.engine)][-1].name
        )

    def _open_nodes(self, live: LiveQuery) -> Iterator[str]:
        """Yield the nodes whose calls a query may make."""
        for place, _ in live.query.open_steps():
            if (name := node_name(place)) in self.num_left:
                yield name
        yield from map(self._node_of, live.calls.values())
        if live.query.may_grow:
            for name, (step, at) in self._inner.items():
                if step in self._source.inner_steps and at >= live.query.num_joined(step):
                    yield name
