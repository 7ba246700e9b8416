"""The admission of queries by deadline: one that is predicted to end after its deadline is refused at once.

    needs_s = (alone_s + wait_s) * factor

`alone_s` is the slowest way through the app's graph, by the profiles of its engines. `wait_s` is the work
that running queries have still to do, on that engine of the app that is busiest: in seconds of all its
instances with full batches. `factor` corrects both: nine of ten recent queries of the app took at most
`factor` times what was predicted. It is 1 at first, and what was measured is forgotten after a while.

Before a query of an app has ended, the profiles may be far off; one is let in then if nothing runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto.graph.execution_graph import Node
from stretto.model.deployment import Deployment
from stretto.model.errors import DeadlineTooClose

_NUM_RECENT = 32
_RECENT_S = 60.0
_SHARE_IN_TIME = 0.9
_LEAST_RETRY_S = 1.0
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class EngineShare:
    """Converts the seconds of a step alone into seconds of an engine with full batches on all instances.

    Attributes:
        decode: factor of a decode's seconds.
        unit: factor of the seconds of a step that handles one unit of work.
        batch: factor of the seconds of a step that fills a batch by itself.
    """

    decode: float
    unit: float
    batch: float


def share_of(deployment: Deployment) -> EngineShare:
    """Return the factors for an engine, from the number of its replicas and the profile of the first one."""
    profile, num_instances = deployment.profile, max(1, len(deployment.replicas))
    slots = deployment.engine.max_running
    if deployment.replicas and deployment.replicas[0].num_slots is not None:
        slots = deployment.replicas[0].num_slots
    batch = profile.max_efficient_batch
    alone_s, full_s = profile.batch_s(1), profile.batch_s(batch)
    decode = profile.decode_s(slots) / (slots * profile.per_output_s) if profile.per_output_s else 1.0
    unit = full_s / (batch * alone_s) if alone_s else 1.0
    if deployment.engine.is_llm:  # its unit is a token of a prompt
        unit = 1.0
    return EngineShare(decode / num_instances, unit / num_instances, 1 / num_instances)


def work_s(nodes: Iterable[Node], shares: Mapping[str, EngineShare]) -> dict[str, float]:
    """Return the predicted seconds for which nodes keep each engine busy, by engine."""
    found: dict[str, float] = {}
    for node in nodes:
        share = shares.get(node.engine or "")
        if share is None or node.engine is None:
            continue
        part = share.decode if node.spec.makes_text else share.batch if node.is_mapped else share.unit
        found[node.engine] = found.get(node.engine, 0.0) + node.own_s * part
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted time of a query: seconds from its start to its end.

    Attributes:
        planned_s: seconds as the profiles predict them.
        needs_s: seconds as corrected by what recent queries took.
    """

    app: str
    planned_s: float
    needs_s: float


class Admission:
    """The rule by which queries with a deadline are let in or refused. It learns from queries that end."""

    def __init__(self, deployments: Iterable[Deployment]) -> None:
        self.shares = {deployment.name: share_of(deployment) for deployment in deployments}
        self._ratios: dict[str, deque[tuple[float, float]]] = {}

    def estimate(self, app: str, nodes: Iterable[Node], open_nodes: Iterable[Node], now_s: float) -> Estimate:
        """Predict how long a query of an app would take if it began now.

        Args:
            nodes: steps of the query.
            open_nodes: steps of running queries that have not ended.
        """
        own = tuple(nodes)
        planned_s = self._wait_s(own, open_nodes) + max((node.path_s for node in own), default=0.0)
        return Estimate(app, planned_s, planned_s * self._factor(app, now_s))

    def check(self, estimate: Estimate, deadline_s: float, open_nodes: Iterable[Node], now_s: float) -> None:
        """Check that a query with this estimate may start: it is predicted to end within `deadline_s`.

        Raises:
            DeadlineTooClose: it would end later; the error says what it needs, and when to come again.
        """
        if estimate.needs_s <= deadline_s or (
            not self._recent(estimate.app, now_s) and not any(True for _ in open_nodes)
        ):
            return
        raise DeadlineTooClose(
            f"deadline_s is {deadline_s:g}; the query is predicted to need {estimate.needs_s:.3g} s now",
            retry_after_s=max(_LEAST_RETRY_S, estimate.needs_s - deadline_s),
            needs_s=estimate.needs_s,
        )

    def note_end(self, estimate: Estimate, took_s: float, now_s: float, *, is_whole: bool = True) -> None:
        """Learn from a query of this estimate that has ended after `took_s` seconds.

        Args:
            is_whole: whether it ended by itself. One that its deadline ended would have taken longer, so it
                teaches only that a smaller estimate is wrong.
        """
        ratio = took_s / max(estimate.planned_s, _LEAST_S)
        if is_whole or ratio > self._factor(estimate.app, now_s):
            ratios = self._ratios.setdefault(estimate.app, deque(maxlen=_NUM_RECENT))
            ratios.append((now_s, ratio))

    def _wait_s(self, own: Iterable[Node], open_nodes: Iterable[Node]) -> float:
        needed = {node.engine for node in own}
        waits = work_s(open_nodes, self.shares)
        return max((wait_s for engine, wait_s in waits.items() if engine in needed), default=0.0)

    def _recent(self, app: str, now_s: float) -> list[float]:
        return [ratio for at_s, ratio in self._ratios.get(app, ()) if now_s - at_s <= _RECENT_S]

    def _factor(self, app: str, now_s: float) -> float:
        ratios = sorted(self._recent(app, now_s))
        return ratios[math.ceil(_SHARE_IN_TIME * len(ratios)) - 1] if ratios else 1.0
