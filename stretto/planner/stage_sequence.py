"""Which replicas each stage of a plan runs, one stage after the other.

`execute` carries a plan out in simulated time, and `PlanExecutor` in a run. What both have in common is here,
without a clock:

- A stage runs those of its nodes that are not done and whose inputs are done or run too. If it has none, it
  is left out.
- A node that runs, is not done, and is in no later stage keeps its replicas.
- Replicas come in the order of the stage, but after those of their inputs. A replica waits for devices of
  those before it only, so none waits for one that waits for its answers.
- A stage that ends at its first node does so when a node is done whose inputs do not run in it. The last
  stage of a plan has no such end.
- After the last stage, nodes that are not done get the replicas of their last stage once more.

What differs stays with the two: when devices are free, how calls are dealt, and what becomes of calls that
have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stretto.planner.application import Application
from stretto.planner.plan import Plan, PlannedReplica, Stage

IsDone = Callable[[str], bool]
"""Whether all calls of a node have ended."""


@dataclass(frozen=True, slots=True)
class PresentStage:
    """What a stage runs.

    Attributes:
        replicas: replicas that stay, then those of the stage, each after those of its inputs.
        roots: nodes whose inputs do not run in the stage.
        ends_at_first: whether it ends when the first of `roots` is done; else when all its nodes are.
    """

    replicas: tuple[PlannedReplica, ...]
    roots: tuple[str, ...]
    ends_at_first: bool


class StageSequence:
    """The stages of a plan that is being carried out."""

    def __init__(self, app: Application, plan: Plan) -> None:
        last = {one.node: stage for stage in plan.stages for one in stage.replicas}
        again = (one for name, stage in last.items() for one in stage.replicas if one.node == name)
        self._app = app
        self._again = Stage(tuple(again))
        self._stages = plan.stages
        self._at = -1

    def next(self, running: Sequence[PlannedReplica], is_done: IsDone) -> PresentStage | None:
        """Begin the next stage that can run; None if there is none.

        Args:
            running: replicas that run now.
        """
        while self._at < len(self._stages):
            self._at += 1
            later = {one.node for stage in self._stages[self._at + 1 :] for one in stage.replicas}
            wanted = [one for one in self._present.replicas if not is_done(one.node)]
            nodes = {one.node for one in wanted}
            stays = [one for one in running if one.node not in nodes | later and not is_done(one.node)]
            able = self._that_can_run(nodes | {one.node for one in stays}, is_done)
            if not nodes.isdisjoint(able) or (stays and not later):
                together = [one for one in (*stays, *wanted) if one.node in able]
                roots = tuple(name for name in able if set(able).isdisjoint(self._app.node(name).inputs))
                ends_at_first = self._present.ends_at_first and bool(later)
                return PresentStage(self._in_order(together), roots, ends_at_first)
        return None

    def rest(self, present: Sequence[PlannedReplica], is_done: IsDone) -> tuple[Stage, ...]:
        """Return what is left of the plan, from the present stage on.

        Args:
            present: replicas of the present stage that run or wait for their devices.
        """
        now = (Stage(tuple(present), self._present.ends_at_first),) if present else ()
        stages = (*now, *self._stages[self._at + 1 :])
        names = {one.node for stage in stages for one in stage.replicas}
        again = [one for one in self._again.replicas if one.node not in names and not is_done(one.node)]
        return (*stages, Stage(tuple(again))) if again else stages

    @property
    def _present(self) -> Stage:
        return self._stages[self._at] if self._at < len(self._stages) else self._again

    def _that_can_run(self, nodes: Iterable[str], is_done: IsDone) -> list[str]:
        """Return the nodes, in topological order, whose inputs are done or run too."""
        wanted, found = set(nodes), list[str]()
        for node in self._app.nodes:
            if node.name in wanted and all(name in found or is_done(name) for name in node.inputs):
                found.append(node.name)
        return found

    def _in_order(self, replicas: Sequence[PlannedReplica]) -> tuple[PlannedReplica, ...]:
        """Return replicas in their order, but each after those of its inputs."""
        waiting, ordered = list(replicas), list[PlannedReplica]()
        while waiting:
            names = {one.node for one in waiting}
            first = next(one for one in waiting if names.isdisjoint(self._app.node(one.node).inputs))
            waiting.remove(first)
            ordered.append(first)
        return tuple(ordered)
