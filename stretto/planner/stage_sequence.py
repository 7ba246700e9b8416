"""Which replicas each stage of a plan runs, one stage after the other.

`execute` carries a plan out in simulated time, and `PlanExecutor` in a run. What both have in common is here,
without a clock:

- A stage makes the calls of those nodes that are not done, whose model it has, and whose inputs are done or
  run too. If there are none, it is left out.
- A model that runs, has nodes that are not done, and is in no later stage keeps its replicas.
- Replicas come in the order of the stage, but after those of the models that they wait for. A replica waits
  for devices of those before it only. A node is left to a later stage if it needs answers of a model that
  waits for the devices of its own one: so nothing waits for itself.
- A stage that ends at its first model does so when one has nothing left to do that waits for no other model.
  Models that all wait for each other count together. The last stage of a plan has no such end.
- After the last stage, models that are not done get the replicas of their last stage once more, and again
  while that brings nodes to their end.

What differs stays with the two: when devices are free, how calls are dealt, and what becomes of calls that
have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from stretto.planner.application import Application, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage

IsDone = Callable[[str], bool]
"""Whether all calls of a node have ended."""


@dataclass(frozen=True, slots=True)
class PresentStage:
    """What a stage runs.

    Attributes:
        replicas: replicas that stay, then those of the stage, each after those of the models it waits for.
        nodes: nodes whose calls are made, by model.
        roots: models that wait for none, or for none but those that wait for them.
        ends_at_first: whether it ends when the first of `roots` has nothing left to do; else when all have.
    """

    replicas: tuple[PlannedReplica, ...]
    nodes: dict[str, list[str]]
    roots: tuple[str, ...]
    ends_at_first: bool


class StageSequence:
    """The stages of a plan that is being carried out.

    Attributes:
        again: replicas of the last stage of each model, for what is left after the last stage.
    """

    def __init__(self, app: Application, plan: Plan) -> None:
        last = {one.model: stage for stage in plan.stages for one in stage.replicas}
        again = (one for model, stage in last.items() for one in stage.replicas if one.model == model)
        self._app = app
        self.again = Stage(tuple(again))
        self._stages = plan.stages
        self._at = -1
        self._left: set[str] = set()  # when the replicas of the last stages began once more

    def next(self, running: Sequence[PlannedReplica], is_done: IsDone) -> PresentStage | None:
        """Begin the next stage that can run; None if there is none.

        Args:
            running: replicas that run now.
        """
        while True:
            if self._at >= len(self._stages) - 1:
                left = {node.name for node in self._app.nodes if not is_done(node.name)}
                if self._at == len(self._stages) and left == self._left:
                    return None
                self._left = left
            self._at = min(self._at + 1, len(self._stages))
            later = {one.model for stage in self._stages[self._at + 1 :] for one in stage.replicas}
            wanted = [one for one in self._present.replicas if self._has_work(one.model, is_done)]
            models = {one.model for one in wanted}
            stays = [
                one
                for one in running
                if one.model not in models | later and self._has_work(one.model, is_done)
            ]
            found = self._that_can_run((*stays, *wanted), is_done, bool(later))
            if found and (not models.isdisjoint(found.nodes) or not later):
                return found

    def rest(self, present: Sequence[PlannedReplica], is_done: IsDone) -> tuple[Stage, ...]:
        """Return what is left of the plan, from the present stage on.

        Args:
            present: replicas of the present stage that run or wait for their devices.
        """
        now = (Stage(tuple(present), self._present.ends_at_first),) if present else ()
        stages = (*now, *self._stages[self._at + 1 :])
        models = {one.model for stage in stages for one in stage.replicas}
        again = [
            one
            for one in self.again.replicas
            if one.model not in models and self._has_work(one.model, is_done)
        ]
        return (*stages, Stage(tuple(again))) if again else stages

    @property
    def _present(self) -> Stage:
        return self._stages[self._at] if self._at < len(self._stages) else self.again

    def _has_work(self, model: str, is_done: IsDone) -> bool:
        return not all(is_done(node.name) for node in self._app.models[model])

    def _that_can_run(
        self, replicas: Sequence[PlannedReplica], is_done: IsDone, has_later: bool
    ) -> PresentStage | None:
        models = {one.model for one in replicas}
        nodes = self._able(models, is_done, lambda model, source: False)
        ordered = _in_order(replicas, self._app.sources(nodes))
        behind = _behind(ordered)
        nodes = self._able(models, is_done, lambda model, source: model in behind[source])
        if not nodes:
            return None
        sources = self._app.sources(nodes)
        together = [one for one in ordered if one.model in sources]
        roots = [model for model in sources if all(sources[one] == sources[model] for one in sources[model])]
        by_model = {
            model: [node.name for node in self._app.models[model] if node.name in nodes] for model in sources
        }
        return PresentStage(
            tuple(_in_order(together, sources)),
            by_model,
            tuple(roots),
            self._present.ends_at_first and has_later,
        )

    def _able(
        self, models: Collection[str], is_done: IsDone, is_behind: Callable[[str, str], bool]
    ) -> Collection[str]:
        """Return the nodes whose inputs are done or run too, if none of the models that their inputs wait for
        waits for devices of their own model.
        """
        able: dict[str, set[str]] = {}

        def sources(node: ModelNode) -> set[str]:
            """Return the models whose answers a node still waits for."""
            inputs = [self._app.node(name) for name in node.inputs if not is_done(name)]
            return {one.model for one in inputs}.union(*(able[one.name] for one in inputs))

        for node in self._app.nodes:
            if node.model not in models or is_done(node.name):
                continue
            if all(name in able or is_done(name) for name in node.inputs):
                waits_for = sources(node)
                if not any(is_behind(node.model, one) for one in waits_for):
                    able[node.name] = waits_for
        return able


def _behind(replicas: Sequence[PlannedReplica]) -> dict[str, set[str]]:
    """Return the models for whose devices each model waits, in the order of the replicas."""
    found: dict[str, set[str]] = {one.model: set() for one in replicas}
    waits: list[set[str]] = []
    for at, one in enumerate(replicas):
        before = [other for other in range(at) if not set(one.devices).isdisjoint(replicas[other].devices)]
        waits.append({replicas[other].model for other in before}.union(*(waits[other] for other in before)))
        found[one.model] |= waits[at]
    return found


def _in_order(
    replicas: Sequence[PlannedReplica], sources: Mapping[str, frozenset[str]]
) -> list[PlannedReplica]:
    """Return replicas in their order, but each after those of the models it waits for."""
    waiting, ordered = list(replicas), list[PlannedReplica]()
    while waiting:
        models = {one.model for one in waiting}
        first = next(one for one in waiting if not _waits(one.model, models, sources))
        waiting.remove(first)
        ordered.append(first)
    return ordered


def _waits(model: str, models: Collection[str], sources: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a model waits for one of `models` that does not wait for it."""
    mine = sources.get(model, frozenset())
    return any(one in mine and sources[one] != mine for one in models)
