"""Reads the settings of a router from a TOML file: its table `[router]`, with `[[router.worker]]`."""

from __future__ import annotations

from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.schema.reading import read_tables


def read_router_config(path: Path) -> RouterConfig:
    """Return the settings that a file has for a router.

    Raises:
        ConfigError: the file cannot be read, has no table `[router]`, or has unknown keys or values.
    """
    if (table := read_tables(path).one("router")) is None:
        raise ConfigError(f"{path}: there is no table [router]")
    return table.build(RouterConfig)
