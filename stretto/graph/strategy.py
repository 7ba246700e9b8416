"""The choices of a user for one step of an app: passes that may change it, and what happens if it fails."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, fields, replace

from stretto.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Strategy:
    """The choices of a user for one step of an app.

    Attributes:
        passes: names of the passes that may change the step; None allows all.
        timeout_s: seconds, waiting included, after which an attempt counts as failed; None for no limit.
        retries: number of further attempts at an engine after a first one that failed.
        backoff_s: seconds before the first further attempt. Each later one waits twice as long.
        fallback: name of the engine that gets the step when all attempts at its own have failed; or None. An
            `expand` step has pairs "engine:fallback" with commas between, for the steps that it becomes.

    Raises:
        ConfigError: a value cannot be used.

    Source: Teola §3.1 and §3.2, optimisation strategies that belong to the app's developer.
    """

    passes: tuple[str, ...] | None = None
    timeout_s: float | None = None
    retries: int = 0
    backoff_s: float = 0.5
    fallback: str | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not (_is_number(self.timeout_s) and 0 < self.timeout_s < math.inf):
            raise ConfigError(f"timeout_s is {self.timeout_s!r}; it must be positive and finite, or None")
        if type(self.retries) is not int or not 0 <= self.retries <= 100:
            raise ConfigError(f"retries is {self.retries!r}; it must be a whole number from 0 to 100")
        if not (_is_number(self.backoff_s) and 0 <= self.backoff_s < math.inf):
            raise ConfigError(f"backoff_s is {self.backoff_s!r}; it must be finite and not negative")

    @property
    def watches(self) -> bool:
        """Whether attempts of the step have to be followed."""
        return self.timeout_s is not None or self.retries > 0 or self.fallback is not None

    def passed_on(self, engine: str | None) -> Strategy:
        """Return the strategy of a step that an `expand` step with this strategy has become.

        `engine` is the engine of that step; None for one without, such as a further `expand`.
        """
        if engine is None or self.fallback is None:
            return self
        fallbacks = dict(pair.split(":", 1) for pair in self.fallback.split(","))
        return replace(self, fallback=fallbacks.get(engine))

    def changes(self) -> dict[str, object]:
        """Return the values that differ from the defaults, by name."""
        default = asdict(Strategy())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    @staticmethod
    def of(changes: dict[str, object]) -> Strategy:
        """Return the strategy with these values, by name; lists become tuples.

        Raises:
            ConfigError: a name or a value is unknown.
        """
        if unknown := sorted(changes.keys() - {field.name for field in fields(Strategy)}):
            raise ConfigError(f"a strategy has no {unknown[0]!r}")
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}
        return Strategy(**plain)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    """Return whether a value is a number that fits into a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


NO_STRATEGY = Strategy()
