"""The file that keeps what runs have learned of programs, from the end of one to the start of the next.

The work that programs ask for later (`costs/learned_work.py`) is learned by each engine, and kept by engine
and model, as measured profiles are. Seconds of work follow from the engine's profile. So what was learned
with another profile is left aside, and replaced by the next run.

The file is JSON: `{"format": 1, "engines": {KEY: {"prices_s": [UNIT, TOKEN], "sources": STATE}}}`. It is
replaced as a whole, so that a run that is killed leaves the file of before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.costs.learned_work import LearnedWork
from stretto.costs.work_left import positive
from stretto.engines.executables import engine_and_model
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError, UserError
from stretto.sched.orders.order import prices_s

_FORMAT = 1
_MAX_ENGINES = 64
"""Number of engines and models that are kept; those written longest ago are left out."""
_NEAR = 0.2
"""Share by which the prices of work may differ from those with which it was learned."""


class LearnedFile:
    """A file with what was learned of programs, by engine and model. There need not be one yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, deployments: Iterable[Deployment]) -> dict[str, LearnedWork]:
        """Return what was learned by these engines with their present profiles, by name of the engine.

        Raises:
            ConfigError: the file cannot be read, is damaged, or is of another format.
        """
        kept, found = self._kept(), {}
        for one in deployments:
            state = kept.get(_key(one))
            if state is not None and _is_near(state["prices_s"], one):
                found[one.name] = self._learned(state)
        return found

    def read_all(self) -> dict[str, LearnedWork]:
        """Return all that was learned, by engine and model. Raises ConfigError, as `read` does."""
        return {key: self._learned(state) for key, state in self._kept().items()}

    def write(self, deployments: Iterable[Deployment], states: Mapping[str, list[dict[str, Any]]]) -> None:
        """Keep what these engines have learned, as `LearnedWork.state` gives it, by name of the engine. What
        the file says of other engines stays.

        Raises:
            ConfigError: there is a file that is none of these.
            UserError: the file cannot be written.
        """
        engines = self._kept()
        for one in deployments:
            if states.get(one.name):
                engines.pop(_key(one), None)
                prices = list(prices_s(one.engine, one.profile))
                engines[_key(one)] = {"prices_s": prices, "sources": states[one.name]}
        for key in list(engines)[:-_MAX_ENGINES]:
            del engines[key]
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"format": _FORMAT, "engines": engines}), "utf-8")
            beside.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.path.read_text("utf-8"))
            if kept["format"] != _FORMAT:
                raise ConfigError(f"{self.path} is of format {kept['format']!r}, not {_FORMAT}; remove it")
            engines = {key: _checked(state) for key, state in kept["engines"].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(repr(error)) from error
        return engines

    def _learned(self, state: Mapping[str, Any]) -> LearnedWork:
        try:
            return LearnedWork.of_state(state["sources"])
        except ConfigError as error:
            raise self._damaged(error.message) from error

    def _damaged(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path} is not a file of what was learned ({reason}); remove it")


def _key(deployment: Deployment) -> str:
    """Return the key of an engine and its model; of its name alone if it has no replica yet."""
    return engine_and_model(deployment) if deployment.replicas else deployment.name


def _checked(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of one engine. Raises ValueError, KeyError or TypeError if it is something else."""
    unit_s, output_s = map(positive, state["prices_s"])
    return {"prices_s": [unit_s, output_s], "sources": state["sources"]}


def _is_near(prices: Sequence[float], deployment: Deployment) -> bool:
    """Return whether an engine's prices of work were about what they are now."""
    present = prices_s(deployment.engine, deployment.profile)
    return all(math.isclose(*pair, rel_tol=_NEAR) for pair in zip(prices, present, strict=True))
