"""Where the steps of sessions have run, and why, for people who look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.model.tasks import Objective
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.observer import Observer

_MAX_STEPS = 1000
_NUMBER = re.compile(r"\.\d+\Z")
"""Number that tells a step from others of its name in one graph."""


@dataclass(frozen=True, slots=True)
class LastInstance:
    """The instance that a request of a step went to last.

    Attributes:
        objective: what the instance is best filled for by it: "throughput" in a task group too.
        reason: why it was chosen, as the placement policy says.
    """

    engine: str
    instance: int
    objective: Objective
    reason: str


class LastInstances(Observer):
    """An observer that keeps the last place of each step of each query, of one of the 1,000 last steps."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, LastInstance]] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        """Keep the place of a request; forget those of a query that ends."""
        if type(action) is Admit and action.task.decode is not None:
            places = self._of.setdefault(action.task.query, {})
            step = _NUMBER.sub("", action.task.step)
            places.pop(step, None)
            places[step] = LastInstance(action.engine, action.instance, action.task.objective, action.reason)
            if len(places) > _MAX_STEPS:
                del places[next(iter(places))]
        elif type(action) is Reply:
            self._of.pop(action.query, None)

    def of(self, query: str) -> Mapping[str, LastInstance]:
        """Return the last place of each step of a query, by the step's name without a number."""
        return self._of.get(query, {})
