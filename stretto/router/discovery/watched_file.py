"""Workers of a file that is looked at each second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from stretto.model.errors import ConfigError, StrettoError
from stretto.router.config import RouterConfig
from stretto.router.discovery.source import Want
from stretto.router.worker_config import WorkerConfig
from stretto.schema.reading import FileMark, file_mark, read_tables

_LOOK_S = 1.0
_log = logging.getLogger(__name__)


class WatchedFile:
    """A file with tables `[[router.worker]]`, and no others.

    Args:
        look_s: seconds between two looks at it.

    Raises:
        ConfigError: it cannot be read, or is wrong.
    """

    def __init__(self, file: Path, look_s: float = _LOOK_S) -> None:
        self.name = f"file {file}"
        self._file = file
        self._look_s = look_s
        self._seen: FileMark | None = file_mark(file)
        self._workers = read_workers_file(file)

    async def follow(self, want: Want) -> None:
        """Tell the workers of the file, at each look. A file that changes is read when it has been the same
        at two looks: one that is being written may be empty for a moment, which would drain all workers.
        """
        last = self._seen
        while True:
            want(self._workers)
            await asyncio.sleep(self._look_s)
            before, last = last, await asyncio.to_thread(file_mark, self._file)
            if last != before or last == self._seen:
                continue
            self._seen = last
            try:
                self._workers = await asyncio.to_thread(read_workers_file, self._file)
            except StrettoError as error:
                _log.warning("the workers stay as they were: %s", error)


def read_workers_file(file: Path) -> Sequence[WorkerConfig]:
    """Return the workers of a file.

    Raises:
        ConfigError: it cannot be read, or has something else.
    """
    tables = read_tables(file)
    if (row := tables.one("router")) is None:
        return ()
    row.check_keys(("worker",))
    workers = row.build(RouterConfig).worker
    for worker in workers:
        if worker.is_several:
            raise ConfigError(f"{file}: worker {worker.url}: dns and kubernetes belong into the settings")
    return workers
