"""The file in which a router keeps what its workers are believed to hold, from its end to its next start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.prefix_snapshot import restore_snapshot, take_snapshot
from stretto.model.errors import ConfigError
from stretto.model.wording import why_unreadable
from stretto.router.workers import Worker

_log = logging.getLogger(__name__)


class HeldBlocksFile:
    """A snapshot of a router's index of held prefixes, in a file.

    Workers are told apart by their addresses. One that was replaced meanwhile holds less than the file says:
    its first answers correct that.

    Raises:
        ConfigError: there is no folder for the file.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"snapshot {path}: there is no folder {path.parent}")
        self._path = path

    def restore(self, index: PrefixIndex, workers: Sequence[Worker], now_s: float) -> None:
        """Put what the file says of the workers that serve into an index; without a file, nothing happens.

        Raises:
            ConfigError: the file cannot be read, or is no snapshot.
        """
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"snapshot {self._path}: cannot be read: {why_unreadable(error)}") from error
        serving = {worker.config.url: worker.id for worker in workers if worker.state == "serving"}
        try:
            restore_snapshot(index, text, serving, now_s)
        except ConfigError as error:
            raise ConfigError(f"snapshot {self._path}: {error.message}") from error

    def save(self, index: PrefixIndex, workers: Sequence[Worker], now_s: float) -> None:
        """Write what the workers hold, in the place of what the file said; a failure is a warning."""
        urls = {worker.id: worker.config.url for worker in workers}
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            beside.write_text(take_snapshot(index, urls, now_s), "utf-8")
            beside.replace(self._path)
        except OSError as error:
            _log.warning("snapshot %s: cannot be written: %s", self._path, error)
