"""Predicts a run from its present state, and plans what is left of it again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.costs.output_lengths import LengthsBySource
from stretto.model.errors import UserError
from stretto.planner.answers_so_far import NO_ANSWERS, AnswersSoFar
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.execute import execute
from stretto.planner.keep_loaded import keep_loaded
from stretto.planner.machine import PlanMachine, costs_by_tp, planned_model
from stretto.planner.plan import Plan, ReplicaKey
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes
from stretto.planner.running.losses import renumbered


@dataclass(frozen=True, slots=True)
class Situation:
    """The present state of a run.

    Attributes:
        requests: requests that have not ended.
        rest: what is left of the present plan.
        loaded: replicas that run, by model and devices; seconds of real time for which they have run.
        dead: devices that cannot be used.
        unable: models that cannot run.
    """

    requests: Sequence[AppRequest]
    answers: AnswersSoFar = NO_ANSWERS
    rest: Plan | None = None
    loaded: Mapping[ReplicaKey, float] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()
    unable: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Attributes:
        plan: the best plan found; None if nothing is left that can run.
        predicted_s: predicted seconds until the end with this plan, one for each draw of lengths.
        unable: reasons for which models cannot run, by model.
    """

    plan: Plan | None
    predicted_s: Sequence[float]
    unable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Replanner:
    """Plans for a machine and predicts them. Seconds are of real time.

    Attributes:
        make_plan: planner.
        speed: seconds of the machine per second of real time.
    """

    app: Application
    machine: PlanMachine
    lengths: LengthsBySource
    make_plan: Callable[[RunTimes], Plan]
    speed: float = 1.0

    def predict(self, now: Situation) -> list[float]:
        """Return the predicted seconds until the end with the present plan, one for each draw of lengths."""
        assert now.rest is not None
        requests, answers = self._without(now, now.unable)
        if not requests:
            return [0.0]
        problem = self._problem(requests, answers, self.machine, now.loaded)
        return self._seconds(problem, now.rest) if problem.names else [0.0]

    def search(self, now: Situation) -> Search:
        """Plan what is left again, on the devices that are left.

        Requests are planned without the nodes whose models cannot run, and those that wait for them.
        """
        order = renumbered(self.machine.num_devices, now.dead)
        machine = replace(self.machine, num_devices=len(order))
        unable = dict.fromkeys(now.unable, "it was lost on several devices")
        unable.update(self._too_large(machine, unable))
        requests, answers = self._without(now, unable)
        if not requests:
            return Search(None, [], unable)
        number_of = {device: number for number, device in enumerate(order)}
        loaded = {
            (model, tuple(sorted(number_of[device] for device in devices))): seconds
            for (model, devices), seconds in now.loaded.items()
            if now.dead.isdisjoint(devices)
        }
        problem = self._problem(requests, answers, machine, loaded)
        if not problem.names:
            return Search(None, [], unable)
        times = RunTimes(problem)
        plan = keep_loaded(self.make_plan(times), len(order), self._saved_s(problem))
        predicted_s = self._seconds(problem, plan)
        stages = tuple(
            replace(
                stage,
                replicas=tuple(
                    replace(one, devices=tuple(order[device] for device in one.devices))
                    for one in stage.replicas
                ),
            )
            for stage in plan.stages
        )
        return Search(replace(plan, stages=stages), predicted_s, unable)

    def _problem(
        self,
        requests: Sequence[AppRequest],
        answers: AnswersSoFar,
        machine: PlanMachine,
        loaded: Mapping[ReplicaKey, float],
    ) -> Problem:
        problem = Problem(self.app, requests, machine, self.lengths, answers=answers)
        problem.loaded = {
            (model, devices): max(0.0, problem.costs[model][len(devices)].loading_s - seconds * self.speed)
            for (model, devices), seconds in loaded.items()
            if len(devices) in problem.costs.get(model, {})
        }
        return problem

    def _saved_s(self, problem: Problem) -> dict[ReplicaKey, float]:
        return {
            (model, devices): problem.costs[model][len(devices)].loading_s - left_s
            for (model, devices), left_s in problem.loaded.items()
        }

    def _seconds(self, problem: Problem, plan: Plan) -> list[float]:
        return [execute(problem, plan, drawn).makespan_s / self.speed for drawn in problem.possible_draws]

    def _too_large(self, machine: PlanMachine, unable: Collection[str]) -> dict[str, str]:
        """Return why models cannot run on a machine, by model."""
        if not machine.num_devices:
            return dict.fromkeys(self.app.models, "no device is left")
        reasons: dict[str, str] = {}
        for model in self.app.models:
            sizes = planned_model(model, self.machine)
            try:
                if model not in unable:
                    costs_by_tp(sizes, machine, sizes.max_context_tokens)
            except UserError as error:
                reasons[model] = str(error)
        return reasons

    def _without(self, now: Situation, unable: Collection[str]) -> tuple[Sequence[AppRequest], AnswersSoFar]:
        """Return the requests without the nodes whose models cannot run, and those that wait for them."""
        if not unable:
            return now.requests, now.answers
        requests: list[AppRequest] = []
        places: dict[int, int] = {}
        for place, request in enumerate(now.requests):
            able: list[str] = []
            for node in self.app.nodes:
                if request.nodes and node.name not in request.nodes:
                    continue
                inputs = [name for name in node.inputs if not request.nodes or name in request.nodes]
                can_run = node.model not in unable or _is_answered(node, place, request, now.answers)
                if can_run and all(name in able for name in inputs):
                    able.append(node.name)
            if able:
                places[place] = len(requests)
                requests.append(replace(request, nodes=tuple(able)))
        ended = {
            node: {(places[at], call): tokens for (at, call), tokens in calls.items() if at in places}
            for node, calls in now.answers.ended.items()
        }
        return requests, replace(now.answers, ended=ended)


def _is_answered(node: ModelNode, place: int, request: AppRequest, answers: AnswersSoFar) -> bool:
    """Return whether all calls that a request makes of a node have been answered."""
    ended = answers.ended.get(node.name, {})
    return all((place, call) in ended for call in range(node.num_calls(len(request.chunks))))
