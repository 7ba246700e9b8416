"""The requests that wait for a session's variables, and the criteria that they and its calls have named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from stretto.model.tasks import Criteria, Objective
from stretto.sched.queries.demand import asked_by


class Readers:
    """The readers of a session.

    Attributes:
        number: number of requests that wait for variables.
    """

    def __init__(self) -> None:
        self.number = 0
        self._wishes: Counter[tuple[str, Criteria | None]] = Counter()

    @contextmanager
    def reading(self, name: str, criteria: Criteria | None) -> Iterator[None]:
        """Count a reader of a variable."""
        wish = (name, criteria)
        self.number += 1
        self._wishes[wish] += 1
        try:
            yield
        finally:
            self.number -= 1
            self._wishes[wish] -= 1
            if self._wishes[wish] <= 0:
                del self._wishes[wish]

    def note_wish(self, name: str, criteria: Criteria | None) -> None:
        """Note that a variable is wanted until it is forgotten."""
        self._wishes[name, criteria] += 1

    def forget(self, name: str) -> None:
        """Forget what was wished of a variable that is given up."""
        for criteria in (None, *get_args(Criteria)):
            self._wishes.pop((name, criteria), None)

    def objectives(self, objective: Objective) -> dict[str, Objective]:
        """Return the class in which each variable is wanted, which is `objective` where nothing is said."""
        wanted: dict[str, Objective] = {}
        for name, criteria in self._wishes:
            asked = asked_by(criteria or objective).criteria
            if wanted.get(name) != "latency" and asked is not None:
                wanted[name] = asked
        return wanted
