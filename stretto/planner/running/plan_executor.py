"""Carries out a plan as a state machine: which replicas to add and to drain as calls and replicas end.

Rules:

- `StageSequence` says what each stage runs.
- A replica is added when its devices are free of all replicas before it in the stage.
- A replica is drained when its model has no more calls, or no more in this stage and another one waits for
  its devices. If another one waits, it is also drained when the model's replicas have together done what
  this one's share leaves to them: all replicas of a model are taken to do calls equally fast, and each up to
  its weight.
- At the end of a stage, replicas that the next one does not run are suspended.
- A replica that is lost for good is not replaced. The driver is told, and gives another plan to `switch` to,
  or abandons the model if it has no other replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from stretto.cluster.messages import DrainHow
from stretto.model.record import record
from stretto.planner.application import Application
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.running.work_of_stage import WorkOfStage
from stretto.planner.stage_sequence import StageSequence


@dataclass(frozen=True, slots=True, eq=False)
class PlacedReplica:
    """One use of a planned replica: the same replica may be added again later."""

    replica: PlannedReplica

    @property
    def model(self) -> str:
        """Model of the replica."""
        return self.replica.model


@record
class Add:
    """Action: start a replica."""

    placed: PlacedReplica


@record
class DrainReplica:
    """Action: give a replica no more calls; stop it when it is idle ("finish") or at once ("suspend")."""

    placed: PlacedReplica
    how: DrainHow


@record
class Lost:
    """Action: take note that a replica which still had calls is gone for good."""

    placed: PlacedReplica


@record
class Abandon:
    """Action: fail all calls of a model, which cannot run any more. An empty `reason` is not known here."""

    model: str
    reason: str = ""


ExecutorAction: TypeAlias = Add | DrainReplica | Lost | Abandon
State: TypeAlias = Literal["waiting", "running", "draining"]


class PlanExecutor:
    """A plan that is being carried out.

    Args:
        num_left: calls of each node that have to be made. The driver changes this mapping as calls end, and
            then calls `advance`.
        may_grow: whether calls may still come that count in no node now. Replicas that nothing waits for
            stay until then.
    """

    def __init__(
        self,
        app: Application,
        plan: Plan,
        num_left: Mapping[str, int],
        may_grow: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._work = WorkOfStage(app, num_left, may_grow)
        self._present: dict[PlacedReplica, State] = {}
        self._weight_of: dict[PlacedReplica, float] = {}
        self._last_of: dict[str, list[PlannedReplica]] = {}
        self._begin_plan(plan)

    @property
    def running(self) -> list[PlacedReplica]:
        """Replicas that have been added and hold their devices, also those that are being drained."""
        return [placed for placed, state in self._present.items() if state != "waiting"]

    @property
    def staying(self) -> list[PlacedReplica]:
        """Replicas that have been added and are not being drained."""
        return [placed for placed, state in self._present.items() if state == "running"]

    @property
    def rest(self) -> Plan:
        """The rest of the plan, from the present stage on."""
        present = [
            replace(placed.replica, weight=self._weight_of[placed])
            for placed, state in self._present.items()
            if state != "draining"
        ]
        return Plan(self._planner, self._stages.rest(present, self._work.is_done))

    def switch(self, plan: Plan) -> list[ExecutorAction]:
        """Carry out another plan from now on. Replicas with which it begins on the same devices stay."""
        self._begin_plan(plan)
        return self._begin_next() + self._drain_done() + self._add_free()

    def _begin_plan(self, plan: Plan) -> None:
        self._stages = StageSequence(self._app, plan)
        self._again = self._stages.again
        self._planner = plan.planner
        last_of: dict[str, list[PlannedReplica]] = {}
        for one in self._again.replicas:
            last_of.setdefault(one.model, []).append(one)
        self._last_of |= last_of

    def stalled(self, waiting: Iterable[str], num_ready: Mapping[str, int]) -> list[ExecutorAction]:
        """Go on where no call is under way, and those that can be made are all of models without a replica.

        Calls that may still come count no more then, but only those that can be made now. Models have the
        replicas of the last plan that had some; one that no plan had is given up.

        Args:
            waiting: models with calls that can be made.
            num_ready: numbers of such calls by node. The driver changes it as calls come and end.
        """
        models = set(waiting) - self._work.abandoned
        held = {placed.model for placed in self.staying}
        if not models or held & models or len(self.running) > len(self.staying):
            return []
        self._work.num_left = num_ready
        if unknown := sorted(models - self._last_of.keys()):
            return [one for model in unknown for one in self.abandon(model, "no plan has replicas of it")]
        stage = Stage(tuple(one for replicas in self._last_of.values() for one in replicas))
        self._stages = StageSequence(self._app, Plan(self._planner, (stage,)))
        return self._begin_next() + self._drain_done() + self._add_free()

    def abandon(self, model: str, reason: str = "") -> list[ExecutorAction]:
        """Give a model up; return what follows."""
        if model in self._work.abandoned:
            return []
        self._work.abandoned.add(model)
        return [Abandon(model, reason), *self.advance()]

    def weights(self, model: str) -> dict[PlacedReplica, float]:
        """Return the weights of a model's replicas that run, or wait for their devices."""
        return {
            placed: self._weight_of[placed]
            for placed, state in self._present.items()
            if placed.model == model and state != "draining"
        }

    def advance(self) -> list[ExecutorAction]:
        """Return what is to be done now; to be called at the beginning and whenever calls have ended."""
        models = {placed.model for placed, state in self._present.items() if state != "draining"}
        actions = self._begin_next() if self._work.is_over(models) else []
        return actions + self._drain_done() + self._add_free()

    def gone(self, placed: PlacedReplica) -> list[ExecutorAction]:
        """Note that a replica has stopped, or was lost and is not started again; return what follows."""
        state = self._present.pop(placed, None)
        is_lost = state == "running" and self._work.has_any(placed.model)
        return [Lost(placed)] if is_lost else self.advance()

    def _begin_next(self) -> list[ExecutorAction]:
        """Begin the next stage: suspend what it does not run, and let the rest wait for its devices."""
        held = self.staying
        running = [one.replica for one in held]
        stage = self._stages.next(running, self._work.is_done)
        if stage is None and any(map(self._work.has_any, self._app.models)):  # calls have come since
            self._stages = StageSequence(self._app, Plan(self._planner, (self._again,)))
            stage = self._stages.next(running, self._work.is_done)
        self._work.begin(stage)
        order = stage.replicas if stage else ()
        actions: list[ExecutorAction] = []
        places: list[PlacedReplica] = []
        taken: set[int] = set()
        for replica in order:
            same = (one for one in held if one.replica.key == replica.key)
            kept = next(same, None) if taken.isdisjoint(replica.devices) else None
            places.append(kept or PlacedReplica(replica))
            taken.update(replica.devices)
        present: dict[PlacedReplica, State] = {one: s for one, s in self._present.items() if s == "draining"}
        for placed in held:
            if placed not in places:
                present[placed] = "draining"
                actions.append(
                    DrainReplica(placed, "suspend" if self._work.has_any(placed.model) else "finish")
                )
        self._present = {**present, **{one: "running" if one in held else "waiting" for one in places}}
        self._weight_of = {placed: one.weight for one, placed in zip(order, places, strict=True)}
        return actions

    def _drain_done(self) -> list[ExecutorAction]:
        actions: list[ExecutorAction] = []
        for placed, state in list(self._present.items()):
            has_no_use = not self._work.has_any(placed.model) and not self._work.may_grow()
            if state == "running" and (has_no_use or self._must_leave(placed)):
                self._present[placed] = "draining"
                actions.append(DrainReplica(placed, "finish"))
            elif state == "waiting" and self._work.has_ended(placed.model):
                del self._present[placed]
        return actions

    def _must_leave(self, placed: PlacedReplica) -> bool:
        """Return whether a replica for whose devices another one waits has done its part of the stage."""
        devices = set(placed.replica.devices)
        is_awaited = any(
            state == "waiting"
            and not devices.isdisjoint(other.replica.devices)
            and not self._work.has_ended(other.model)
            for other, state in self._present.items()
        )
        if not is_awaited:
            return False
        return self._work.has_ended(placed.model) or self._work.has_done_share(
            placed.model, self._weight_of[placed]
        )

    def _add_free(self) -> list[ExecutorAction]:
        actions: list[ExecutorAction] = []
        taken: set[int] = set()
        for placed, state in self._present.items():
            if state == "waiting" and taken.isdisjoint(placed.replica.devices):
                self._present[placed] = "running"
                actions.append(Add(placed))
            taken.update(placed.replica.devices)
        return actions
