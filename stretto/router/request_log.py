"""The record of all requests: which workers each was sent to and why, and what came of it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from stretto.model.errors import ConfigError
from stretto.model.private_file import private
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace

_FLUSH_BYTES = 65536
_log = logging.getLogger(__name__)


class RequestLog(Observer):
    """An observer with a file to which the trace of each request is appended, as one line of JSON.

    When it can no longer be written, for example because the disk is full, a warning says so and no more is
    written: the requests go on.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = open(path, "a", _FLUSH_BYTES, "utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        self._path = path
        self._is_broken = False

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Append a trace; it may stay in memory until `flush`."""
        line = {"time": round(time.time(), 3), **trace.to_json()}
        self._try(lambda: self._file.write(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n"))

    def flush(self) -> None:
        """Write what is in memory to the file."""
        self._try(self._file.flush)

    def close(self) -> None:
        """Close the file."""
        self._try(self._file.close)

    def _try(self, write: Callable[[], object]) -> None:
        if self._is_broken:
            return
        try:
            write()
        except OSError as error:
            self._is_broken = True
            with suppress(OSError):
                self._file.close()
            _log.warning("%s: cannot be written, and records no more requests: %s", self._path, error)
