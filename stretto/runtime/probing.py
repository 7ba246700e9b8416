"""The probing of a server that was out of reach, by the instance of a batch engine that works there."""

from __future__ import annotations

import time
from typing import Protocol

from stretto.cluster.probe_times import ProbeTimes
from stretto.engines.contract import ProbedEngine

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
