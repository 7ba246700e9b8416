"""How urgent a request is, as its client says: by its class, and by a deadline of its program.

The class comes of `service_tier`, or of vLLM's `priority`, of which the sign counts: negative numbers go
before others, positive ones give way to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stretto.http.client.headers import Headers, value_of
from stretto.model.tasks import Objective
from stretto.router.messages import RoutedRequest
from stretto.router.per_client import PerClient
from stretto.wire.errors import malformed, unacceptable
from stretto.wire.service_tiers import TIERS

DEADLINE = b"x-stretto-deadline"
"""Header with the seconds within which the program of a request should end."""
_TIERS: Mapping[str, Objective] = {**TIERS, "standard_only": "throughput"}
"""Tiers of OpenAI and of Anthropic."""
_MAX_DEADLINE_S = 1e7
_MAX_PROGRAMS = 8192


def read_objective(fields: Mapping[str, Any]) -> Objective:
    """Return the class that the fields of a request ask for; the tier counts before the priority.

    Raises:
        RequestRefused: a value means nothing here.
    """
    priority, tier = fields.get("priority"), fields.get("service_tier")
    if priority is None and tier is None:
        return "throughput"
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise malformed("priority", "must be a whole number; the lower goes first")
    if tier is not None:
        if not isinstance(tier, str) or tier not in _TIERS:
            raise unacceptable("service_tier", f"service_tier must be one of {', '.join(_TIERS)}")
        if tier not in ("auto", "default"):
            return _TIERS[tier]
    if not priority:
        return "throughput"
    return "latency" if priority < 0 else "offline"


def read_deadline(headers: Headers) -> float | None:
    """Return the seconds within which the program of a request should end; None if its client says nothing.

    Raises:
        RequestRefused: the header is no such number.
    """
    value = value_of(headers, DEADLINE)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= _MAX_DEADLINE_S:
        name = DEADLINE.decode()
        raise unacceptable(name, f"{name} is {value!r:.60}; it must be a positive number of seconds")
    return seconds


class ProgramDeadlines:
    """The deadlines of programs, each counted from the first request that names one.

    Of many programs, one of the client with most is forgotten, so that its deadline is counted anew.
    """

    def __init__(self) -> None:
        self._since: PerClient[tuple[float, float]] = PerClient(_MAX_PROGRAMS)

    def of(self, request: RoutedRequest, now_s: float) -> float | None:
        """Return the time by which the program of a request should end; None if there is none.

        A later request that names other seconds moves the deadline. One that names none keeps it.
        """
        within_s, program = request.deadline_s, request.program.name
        if not program:
            return None if within_s is None else now_s + within_s
        before = self._since.pop(request.owner, program)
        if within_s is None and before is None:
            return None
        since_s, before_s = before or (now_s, 0.0)
        within_s = before_s if within_s is None else within_s
        if not request.program.is_final:
            self._since.put(request.owner, program, (since_s, within_s))
        return since_s + within_s

    def check_invariants(self) -> None:
        """Check the table of programs. For tests."""
        self._since.check_invariants()
