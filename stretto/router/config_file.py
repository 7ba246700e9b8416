"""Reads the settings of a router from a TOML file, its table `[router]` with `[[router.worker]]`, and those
of workers from options.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.schema.reading import read_tables


def read_router_config(path: Path) -> RouterConfig:
    """Return the settings that a file has for a router.

    Raises:
        ConfigError: the file cannot be read, has no table `[router]`, or has unknown keys or values.
    """
    if (table := read_tables(path).one("router")) is None:
        raise ConfigError(f"{path}: there is no table [router]")
    return table.build(RouterConfig)


def read_workers(texts: Iterable[str]) -> tuple[WorkerConfig, ...]:
    """Return the settings of the workers that options name: `URL`, or `URL,role=ROLE`.

    Raises:
        ConfigError: one is no URL, or has something else behind it.
    """
    return tuple(map(_read_worker, texts))


def _read_worker(text: str) -> WorkerConfig:
    url, *fields = text.split(",")
    given = dict(one.partition("=")[::2] for one in fields)
    if given.keys() - {"role"} or len(given) < len(fields):
        wrong = ",".join(fields)
        raise ConfigError(f"--worker {url}: {wrong!r:.100} must be role=ROLE; other fields stand in a file")
    return WorkerConfig(url=url, **given)  # type: ignore[arg-type]
