"""When a server that may be down is asked whether it answers again: ever less often, and not while it rests.

A server may answer health checks and nothing else. So the delay grows from one suspicion to the next, until
the server has done work. The instance of a batch engine that works at a server probes it by `Probing`.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from stretto.engines.contract import ProbedEngine
from stretto.model.errors import BadServer, EngineBusy, EngineTimeout, EngineUnavailable, StrettoError

FIRST_PROBE_S = 0.1
MAX_PROBE_S = 2.0
MAX_REST_S = 30.0
"""Longest rest by one `Retry-After`: half of what an engine waits by default for its only server
(`recover_s`), so that this is asked again before requests fail. A server that wanted more refuses another
request, which costs no attempt."""


def is_suspicious(error: StrettoError, *, others_serve: bool) -> bool:
    """Return whether a failure makes a server suspect: it may be down, or answers nobody well while others
    serve.
    """
    return isinstance(error, EngineUnavailable | EngineTimeout) or (
        others_serve and isinstance(error, BadServer)
    )


def asked_rest_s(error: StrettoError) -> float:
    """Return the seconds for which a server is left alone that has failed: as long as it has asked for, at
    most `MAX_REST_S`.
    """
    return max(0.0, min(MAX_REST_S, error.retry_after_s)) if isinstance(error, EngineBusy) else 0.0


class ProbeTimes:
    """The times of the health checks of one server.

    Attributes:
        rests_until_s: time before which the server has asked to be left alone. It may ask again while a check
            is due already.
    """

    def __init__(self) -> None:
        self.rests_until_s = -math.inf
        self._delay_s = FIRST_PROBE_S

    def rest(self, until_s: float) -> None:
        """Leave the server alone until a time, as it has asked for."""
        self.rests_until_s = max(self.rests_until_s, until_s)

    def next_s(self, now_s: float, spread: float = 1.0) -> float:
        """Return the time of the next check, as far as the server need not rest, and double the delay before
        the one after it.

        `spread` is a factor of the delay, by which checks of many clients come apart.
        """
        due_s = now_s + spread * self._delay_s
        self._delay_s = min(MAX_PROBE_S, 2 * self._delay_s)
        return due_s

    def worked(self) -> None:
        """Begin again with the first delay, because the server has done work."""
        self._delay_s = FIRST_PROBE_S


_LOOK_S = 0.02


class Commands(Protocol):
    """The interface of a source of commands that can be asked whether one is there."""

    def empty(self) -> bool:
        """Return whether no command is there."""
        ...


class Probing:
    """The probing of one engine's server, ever less often, until it answers."""

    def __init__(self, engine: ProbedEngine, times: ProbeTimes) -> None:
        self._engine = engine
        self._times = times

    def has_answered(self, inbox: Commands) -> bool:
        """Probe until the server answers, which returns True, or a command has come, which returns False."""
        while True:
            end_s = max(self._times.next_s(time.monotonic()), self._times.rests_until_s)
            while (rest_s := end_s - time.monotonic()) > 0:
                if not inbox.empty():
                    return False
                time.sleep(min(_LOOK_S, rest_s))
            try:
                self._engine.probe()
            except Exception:  # also a bug of the adapter: without probes it would be suspect for ever
                continue
            return True
