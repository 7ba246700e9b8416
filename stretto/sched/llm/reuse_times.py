"""The time until an LLM request goes on from an earlier one, learned from those that did.

It is what a tool, a user or a search took in between. So it is kept by the step that wrote the answer and by
the tool that the answer calls: for the session itself, and for all sessions of the same template.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from stretto.sched.queries.request import StepRequest

_TOOL = re.compile(r"\s*+(\w++)\s*+[:(\[]")  # possessive: a long text costs no search
_MAX_SOURCES = 1024
_MAX_TIMES = 32
_MIN_OWN = 3
"""Number of times of a session from which on they count instead of those of all sessions."""

Source: TypeAlias = tuple[str, str, str]
"""Template, step and tool of an answer."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected time until a request goes on from an earlier one, and how many segments at the end of that
    one's prompt and answer it does not begin with.
    """

    in_s: float
    num_left_out: int


class ReuseTimes:
    """A predictor of the seconds between the end of an LLM request and the next one that goes on from it: the
    median of the last ones.

    If there are too many sources (steps and tools), the one that was updated longest ago is forgotten.
    """

    def __init__(self) -> None:
        self._times_s: dict[Source, deque[float]] = {}
        self._num_left_out: dict[Source, int] = {}

    def expected(self, source: Source) -> Expected | None:
        """Return when the next request is expected and what it goes on from; None if none has been
        observed.
        """
        times_s = self._times_s.get(source)
        if not times_s:
            return None
        return Expected(sorted(times_s)[len(times_s) // 2], self._num_left_out[source])

    def num_observed(self, source: Source) -> int:
        """Return how many times count for the median of this source."""
        return len(self._times_s.get(source, ()))

    def observe(self, source: Source, time_s: float, num_left_out: int) -> None:
        """Learn that it took `time_s` seconds, and that the last `num_left_out` segments were not used."""
        times_s = self._times_s.pop(source, None) or deque(maxlen=_MAX_TIMES)
        times_s.append(time_s)
        self._times_s[source] = times_s
        self._num_left_out[source] = num_left_out
        if len(self._times_s) > _MAX_SOURCES:
            oldest = next(iter(self._times_s))
            del self._times_s[oldest], self._num_left_out[oldest]


def expected_by(own: ReuseTimes, all_: ReuseTimes, source: Source) -> Expected | None:
    """Return what is expected by the session's own times if there are enough, else by those of all
    sessions.
    """
    return (own if own.num_observed(source) >= _MIN_OWN else all_).expected(source)


def source_of(request: StepRequest, answer: object) -> Source:
    """Return the source of an answer: which step of which app wrote it, and the tool that it calls first.

    A tool is a name before a colon or a bracket, at the beginning of the first item of a list, or of a text.
    """
    first = answer[0] if isinstance(answer, list) and answer else answer
    found = _TOOL.match(first) if isinstance(first, str) else None
    return request.node.template, request.step, found.group(1) if found else ""
