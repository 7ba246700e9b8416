"""Models that wait for each other's answers, as in a debate: what that costs a plan, by its run times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import accumulate

from stretto.planner.problem import Problem


def models_given(problem: Problem) -> dict[str, set[str]]:
    """Return the models whose answers each model takes itself."""
    app = problem.app
    return {
        model: {app.node(one).model for name in problem.nodes_of(model) for one in _inputs(problem, name)}
        for model in problem.models
    }


def _inputs(problem: Problem, name: str) -> list[str]:
    """Return the inputs of a node that have calls."""
    return [one for one in problem.app.node(name).inputs if one in problem.names]


class Circles:
    """The models of a problem that wait for each other.

    Args:
        parts: returns the share of each node in the work of its model.

    Attributes:
        of: models that each model waits for, and that wait for it.
    """

    def __init__(self, problem: Problem, parts: Callable[[str], Mapping[str, float]]) -> None:
        sources = problem.app.sources(problem.names)
        self._problem = problem
        self._parts = parts
        self.of = {
            model: tuple(one for one in problem.models if one != model and sources[one] == sources[model])
            for model in problem.models
        }

    def floors_s(self, spans: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return when each model ends at the earliest that waits for others which wait for it.

        Args:
            spans: begin and end of the work of each model, if it waited for no other.
        """
        floors: dict[str, float] = {}
        for model, source, share in self._mutual:
            begin_s, end_s = spans[source]
            floors[model] = max(begin_s + share * (end_s - begin_s), floors.get(model, 0.0))
        return floors

    def reload_s(self, model: str, holders: Iterable[str | None]) -> float:
        """Return for how long models are loaded again that this one follows on a device, if each waits for
        the other's answers.
        """
        costs = (self._problem.costs[one].values() for one in holders if one in self.of[model])
        return max((min(cost.loading_s for cost in one) for one in costs), default=0.0)

    @cached_property
    def _mutual(self) -> list[tuple[str, str, float]]:
        """The models that wait for others which wait for them, each with one of these, and the share of its
        work after which it has given what the model waits for.
        """
        problem = self._problem
        found: dict[tuple[str, str], float] = {}
        for model, circle in self.of.items():
            names = problem.nodes_of(model) if circle else []
            for node in (problem.app.node(one) for name in names for one in _inputs(problem, name)):
                if node.model in circle:
                    parts = self._parts(node.model)
                    done = dict(zip(parts, accumulate(parts.values()), strict=True))
                    found[model, node.model] = max(done[node.name], found.get((model, node.model), 0.0))
        return [(*key, share) for key, share in found.items()]
