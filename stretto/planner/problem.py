"""What a planner has to solve: the calls of an application, a machine, and what replicas cost on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, partial

from stretto.costs.loading import Source
from stretto.costs.output_lengths import LengthsBySource
from stretto.costs.shape import LLMModel
from stretto.model.errors import ConfigError
from stretto.planner.answers_so_far import NO_ANSWERS, AnswersSoFar
from stretto.planner.application import Application, AppRequest, ModelNode, model_name
from stretto.planner.deciding.nodes import DrawnApplication
from stretto.planner.deciding.workload import DrawnWorkload
from stretto.planner.drawn_calls import DrawnCalls
from stretto.planner.machine import PlanMachine, ReplicaCost, costs_by_tp, planned_model
from stretto.planner.plan import ReplicaKey
from stretto.planner.workload import Workload


class Problem:
    """An application with its requests on a machine; the lengths of answers, and what answers decide, are
    drawn several times.

    Attributes:
        app: the application; of one whose answers decide, the steps that the draws have.
        sizes: sizes of each model that has calls.
        deciding: distributions of the answers that decide what is asked next, by step.
        costs: costs of one replica, by model that has calls and number of its devices.
        preempts: whether a stage of a plan may end replicas that still have calls.
        loaded: seconds until each replica that runs now is ready, by model and devices. Plans need not load
            them again. Whoever knows such replicas sets it; there are none at first.

    Args:
        weights: place of all models' weights before the first start.

    Raises:
        ConfigError: a model or node is unknown, or a model is too large.
        CapacityError: a prompt is longer than its model's context.
    """

    def __init__(
        self,
        app: Application,
        requests: Sequence[AppRequest],
        machine: PlanMachine,
        lengths: LengthsBySource,
        *,
        num_draws: int = 5,
        seed: int = 0,
        preempts: bool = True,
        answers: AnswersSoFar = NO_ANSWERS,
        weights: Source = "cache",
    ) -> None:
        self.machine = machine
        self._seeds = [seed * 1000 + number for number in range(num_draws)]
        if isinstance(app, DrawnApplication):
            self.workload: Workload | DrawnWorkload = DrawnWorkload(
                app.source, requests, partial(planned_model, machine=machine), lengths, answers, self._seeds
            )
        else:
            models = {node.name: _model(node, machine) for node in app.nodes}
            self.workload = Workload(app, requests, models, lengths, answers)
        self.app = self.workload.app
        self.deciding = self.workload.deciding if isinstance(self.workload, DrawnWorkload) else {}
        self.sizes = {
            node.model: self.workload.models[node.name] for node in self.app.nodes if node.name in self.names
        }
        self.costs: dict[str, dict[int, ReplicaCost]] = {
            model: costs_by_tp(sizes, machine, sizes.max_context_tokens, weights)
            for model, sizes in self.sizes.items()
        }
        self.preempts = preempts
        self.loaded: Mapping[ReplicaKey, float] = {}
        self._drawn: dict[int, dict[str, DrawnCalls]] = {}
        self._has_lines = any(request.max_tokens is not None for request in requests)

    @property
    def num_draws(self) -> int:
        """Number of draws of the lengths of all answers."""
        return len(self._seeds)

    def draw(self, number: int) -> dict[str, DrawnCalls]:
        """Return one draw of the lengths of all answers, by node. It is made when it is asked for first."""
        if number not in self._drawn:
            self._drawn[number] = self.workload.draw(self._seeds[number])
        return self._drawn[number]

    @property
    def draws(self) -> list[dict[str, DrawnCalls]]:
        """Draws of the lengths of all answers, by node."""
        return [self.draw(number) for number in range(self.num_draws)]

    @cached_property
    def possible_draws(self) -> list[dict[str, DrawnCalls]]:
        """Draws from distributions of lengths that may be the true ones, for predictions."""
        return [self.workload.draw_possible(seed) for seed in self._seeds]

    def knowing(self, *draws: dict[str, DrawnCalls]) -> Problem:
        """Return the problem of a planner that has these draws of the lengths of all answers."""
        known = copy(self)
        known._seeds = list(range(len(draws)))
        known._drawn = dict(enumerate(draws))
        return known

    def apart(self) -> Problem | None:
        """Return the problem in which parts that no answers connect have servers of their own; None if no
        model is in several parts, answers decide, or there are lines of a Batch file, which name models.
        """
        is_fixed = self._has_lines or isinstance(self.app, DrawnApplication)
        app = self.app if is_fixed else self.app.apart()
        if len(app.models) == len(self.app.models):
            return None
        other = copy(self)
        other.app = app
        other.__dict__.pop("models", None)
        for node in (app.node(name) for name in self.names):
            other.sizes = {**other.sizes, node.model: self.workload.models[node.name]}
            other.costs = {**other.costs, node.model: self.costs[model_name(node.model)]}
        return other

    def smallest(self) -> Problem:
        """Return the problem in which each replica has as few devices as it can."""
        small = copy(self)
        small.costs = {model: {min(costs): costs[min(costs)]} for model, costs in self.costs.items()}
        return small

    @cached_property
    def reads_disk(self) -> bool:
        """Whether first starts read weights from the disk."""
        return any(cost.start.disk_s for costs in self.costs.values() for cost in costs.values())

    @cached_property
    def estimates(self) -> str:
        """Words that name the models whose times were not measured on this machine, and what stands in for
        them; none if all were.
        """
        preset = self.machine.costs
        models = sorted(
            {
                self.sizes[model].name
                for model, costs in self.costs.items()
                if all(cost.is_estimated for cost in costs.values())
            }
        )
        if not models:
            return ""
        others = "other models"
        if preset.stands_in:
            others = f"{preset.stands_in}, scaled by peak figures,"
        return (
            f"steps or starts of {', '.join(models)} were not measured on {preset.name}; those of {others} "
            "stand in"
        )

    @cached_property
    def names(self) -> list[str]:
        """Names of the nodes that have calls, in topological order."""
        return [name for name, calls in self.workload.calls.items() if len(calls.requests)]

    @cached_property
    def models(self) -> list[str]:
        """Models that have calls, each after those that it waits for, unless these wait for it too."""
        sources = self.app.sources(self.names)
        return sorted(sources, key=lambda model: len(sources[model]))

    def nodes_of(self, model: str) -> list[str]:
        """Return the nodes of a model that have calls, in topological order."""
        return [name for name in self.names if self.app.node(name).model == model]


def _model(node: ModelNode, machine: PlanMachine) -> LLMModel:
    try:
        return planned_model(node.model, machine)
    except ConfigError as error:
        raise ConfigError(f"node {node.name!r}: {error.message}") from error
