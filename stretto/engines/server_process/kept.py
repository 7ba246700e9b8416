"""A command that ends with us, whatever ends us, and all its processes with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from stretto.model.errors import EngineUnavailable

GRACE_S = 15.0
_KEEPER_S = 15.0
"""Seconds beyond the grace in which the keeper must have ended the command. One that is stopped does not."""
_KEEPER = Path(__file__).with_name("keeper.py")
_LOG_BYTES = 2000


class KeptProcess:
    """A running command (such as an LLM server) that ends when our process does, even if our process is
    killed.

    A keeper, a small process between us and the command, ends the command with all its processes when we are
    gone.

    Args:
        environment: variables of the command, all of them.
        cores: cores that it is confined to; none leaves it all.
        grace_s: seconds from being told to end to being killed.
        watched: further processes whose end is the command's end.
        keeper_s: seconds beyond the grace in which the keeper must have ended the command.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        cores: Sequence[int] = (),
        grace_s: float = GRACE_S,
        watched: Sequence[int] = (),
        keeper_s: float = _KEEPER_S,
    ) -> None:
        self._keeper_s = keeper_s
        self._grace_s = grace_s
        # A file, not a pipe: a pipe that nobody reads would stop the command at last.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._words: str | None = None
        self._reading = threading.Lock()
        watch, confine = (",".join(map(str, numbers)) for numbers in ((os.getpid(), *watched), cores))
        keeper = [sys.executable, str(_KEEPER), str(grace_s), watch, confine]
        self._process = subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )

    def poll(self) -> int | None:
        """Return the exit code of the command if it has ended, None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """Return the last lines that the command has written to its output."""
        with self._reading:
            return self._read() if self._words is None else self._words

    def end(self) -> None:
        """End the command with all its processes, and wait until they are gone. A second call does nothing.

        A keeper that does not do it in time is killed, whereupon its guard kills the command.
        """
        if self._process.returncode is None:
            try:
                self._process.communicate(b"end", self._grace_s + self._keeper_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._reading:
            if self._words is None:
                self._words = self._read()
                self._log.close()

    def wait(self) -> int:
        """Wait until the command has ended; return its exit code."""
        return self._process.wait()

    def _read(self) -> str:
        end = os.fstat(self._log.fileno()).st_size
        words = os.pread(self._log.fileno(), _LOG_BYTES, max(0, end - _LOG_BYTES))
        return words.decode(errors="replace").strip()


def take_port(port: int | None, host: str = "127.0.0.1") -> int:
    """Return a port to listen on: `port` if nothing listens on it; if it is None, the number of any free
    port.

    Raises:
        EngineUnavailable: another process listens on `port`.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port or 0))
        except OSError as cause:
            raise EngineUnavailable(
                f"port {port} is taken; end what listens there, or leave the port out"
            ) from cause
        return int(one.getsockname()[1])
