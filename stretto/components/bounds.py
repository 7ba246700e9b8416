"""Bounds of settings."""

from __future__ import annotations

from stretto.errors import ConfigError


def at_least(minimum: int, **settings: int) -> None:
    """Raises ConfigError, naming the first setting that is less."""
    for name, value in settings.items():
        if value < minimum:
            raise ConfigError(f"{name}={value} is less than {minimum}")


def at_most(maximum: int, **settings: int) -> None:
    """Raises ConfigError, naming the first setting that is more."""
    for name, value in settings.items():
        if value > maximum:
            raise ConfigError(f"{name}={value} is more than {maximum}")
