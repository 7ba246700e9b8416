"""Checks that the settings of components are within bounds."""

from __future__ import annotations

from stretto.model.errors import ConfigError


def at_least(minimum: int, **settings: int) -> None:
    """Check that the given settings are at least `minimum`.

    Raises:
        ConfigError: one is less; the message names the first such setting.
    """
    for name, value in settings.items():
        if value < minimum:
            raise ConfigError(f"{name}={value} is less than {minimum}, the smallest value allowed")


def at_most(maximum: int, **settings: int) -> None:
    """Check that the given settings are at most `maximum`.

    Raises:
        ConfigError: one is more; the message names the first such setting.
    """
    for name, value in settings.items():
        if value > maximum:
            raise ConfigError(f"{name}={value} is more than {maximum}, the largest value allowed")


def check_share(**settings: float) -> None:
    """Check that the given settings are from 0 to 1.

    Raises:
        ConfigError: one is not; the message names the first such setting.
    """
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} is no share: it must be from 0 to 1")


def check_chunks(tokens: int, overlap: int) -> None:
    """Check the sizes of chunks: `tokens` of each at the most, of which `overlap` may repeat the one before.

    Raises:
        ConfigError: one is too small, or a chunk would only repeat the one before.
    """
    at_least(1, tokens=tokens)
    at_least(0, overlap=overlap)
    if overlap >= tokens:
        raise ConfigError(f"overlap={overlap} is not less than tokens={tokens}")
