"""What is left to do in the present stage of a plan that is being carried out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from stretto.planner.application import Application
from stretto.planner.stage_sequence import PresentStage


class WorkOfStage:
    """The calls that are left, by the models of the present stage.

    Attributes:
        num_left: calls of each node that have to be made, as the driver counts them.
        may_grow: whether calls may still come that count in no node now.
        stage: the present stage; None before the first, and after the last.
        abandoned: models that cannot run any more.
    """

    def __init__(self, app: Application, num_left: Mapping[str, int], may_grow: Callable[[], bool]) -> None:
        self.num_left = num_left
        self.may_grow = may_grow
        self.stage: PresentStage | None = None
        self.abandoned: set[str] = set()
        self._app = app
        self._at_begin: dict[str, int] = {}
        self._weights: dict[str, list[float]] = {}

    def begin(self, stage: PresentStage | None) -> None:
        """Go on with the next stage."""
        self.stage = stage
        self._weights = {}
        for one in stage.replicas if stage else ():
            self._weights.setdefault(one.model, []).append(one.weight)
        nodes = stage.nodes if stage else {}
        self._at_begin = {model: self._num_left_of(names) for model, names in nodes.items()}

    def is_done(self, node: str) -> bool:
        """Return whether a node has no calls that are left."""
        return self.num_left[node] == 0 or self._app.node(node).model in self.abandoned

    def has_any(self, model: str) -> bool:
        """Return whether a model has calls that are left."""
        return not all(self.is_done(node.name) for node in self._app.models[model])

    def has_ended(self, model: str) -> bool:
        """Return whether a model has nothing left to do in the present stage."""
        return self.stage is None or all(map(self.is_done, self.stage.nodes.get(model, ())))

    def is_over(self, models: Collection[str]) -> bool:
        """Return whether the stage is over, `models` being those with replicas that do not drain."""
        if all(map(self.has_ended, models)):
            return not self.may_grow() or any(map(self.has_any, self._app.models))
        stage = self.stage
        return stage is not None and stage.ends_at_first and any(map(self.has_ended, stage.roots))

    def has_done_share(self, model: str, weight: float) -> bool:
        """Return whether a model's replicas have done what the share of one of this weight leaves to them."""
        weights, num_begun = self._weights.get(model, []), self._at_begin.get(model, 0)
        if self.stage is None or weight >= max(weights, default=weight):
            return False
        share = sum(min(weight, other) for other in weights) / sum(weights)
        return num_begun - self._num_left_of(self.stage.nodes[model]) >= share * num_begun

    def _num_left_of(self, nodes: Iterable[str]) -> int:
        return sum(self.num_left[name] for name in nodes)
