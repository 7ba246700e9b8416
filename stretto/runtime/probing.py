"""The probing of a server that was out of reach, by the instance of a batch engine that works there."""

from __future__ import annotations

import time
from typing import Protocol

from stretto.engines.contract import ProbedEngine

FIRST_PROBE_S = 0.1
MAX_PROBE_S = 2.0
_LOOK_S = 0.02


class Commands(Protocol):
    """The interface of a source of commands that can be asked whether one is there."""

    def empty(self) -> bool:
        """Return whether no command is there."""
        ...


class Probing:
    """The probing of one engine's server, ever less often, until it answers."""

    def __init__(self, engine: ProbedEngine) -> None:
        self._engine = engine
        self._delay_s = FIRST_PROBE_S

    def has_answered(self, inbox: Commands) -> bool:
        """Probe until the server answers, which returns True, or a command has come, which returns False."""
        while True:
            end_s = time.monotonic() + self._delay_s
            while (rest_s := end_s - time.monotonic()) > 0:
                if not inbox.empty():
                    return False
                time.sleep(min(_LOOK_S, rest_s))
            self._delay_s = min(MAX_PROBE_S, 2 * self._delay_s)
            try:
                self._engine.probe()
            except Exception:  # also a bug of the adapter: without probes it would be suspect for ever
                continue
            return True
