"""Checks of numbers in settings: an error says which setting has which value, and what would be right."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stretto.model.errors import ConfigError


def check_counts(
    where: str, settings: object, names: Iterable[str], least: int = 1, *, or_none: bool = False
) -> None:
    """Check that settings are whole numbers, of at least `least`, or None if `or_none`.

    Raises:
        ConfigError: one is not. The message begins with `where`.
    """
    for name in names:
        value = getattr(settings, name)
        if not (or_none and value is None) and (type(value) is not int or value < least):
            raise ConfigError(f"{where}: {name} is {value!r}; it must be a whole number of at least {least}")


def check_number(where: str, name: str, value: object) -> None:
    """Check that a setting is a number. Raises ConfigError."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a number")


def check_positive(where: str, settings: object, names: Iterable[str], *, or_none: bool = False) -> None:
    """Check that settings are positive and finite numbers, or None if `or_none`.

    Raises:
        ConfigError: one is not. The message begins with `where`.
    """
    for name in names:
        value = getattr(settings, name)
        if or_none and value is None:
            continue
        check_number(where, name, value)
        if not 0 < value < math.inf:
            right = "positive and finite, or None" if or_none else "positive and finite"
            raise ConfigError(f"{where}: {name} is {value!r}; it must be {right}")


def check_not_negative(where: str, settings: object, names: Iterable[str]) -> None:
    """Check that settings are numbers of at least 0, which may be infinite.

    Raises:
        ConfigError: one is not. The message begins with `where`.
    """
    for name in names:
        check_number(where, name, value := getattr(settings, name))
        if not value >= 0:
            raise ConfigError(f"{where}: {name} is {value!r}; it must not be negative")
