"""Measures what attacks cost a service and a router.

    python -m checks.attacks [--door KIND] [ATTACK ...]

Each attack goes to a door in a process of its own, while another client asks for the list of models again
and again. The table has the status of the answer, the longest slice of the door's event loop and the time of
all its other threads (both in processor time, so that other work on the machine does not count), the longest
wait of the other client (by the clock), and by how much memory grew: that of the door and of the processes
that it has started together.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from checks.attacks.bodies import ATTACKS, CHAT, Attack
from checks.attacks.door import KINDS

_SMALL = b'{"messages":[{"role":"user","content":"hello"}]}'
_PATIENCE_S = 120.0
_BEFORE_S = 0.05
"""Seconds for which the other client asks before the attack."""


class Row(NamedTuple):
    """What came of an attack; `what` is what the longest slice was."""

    body_mb: float
    status: int
    slice_ms: float
    threads_ms: float
    wait_ms: float
    memory_mb: int
    what: str


@dataclass
class Door:
    """A door in a process of its own.

    Attributes:
        kind: one of `KINDS`.
        port: port that it listens at.
    """

    kind: str
    process: subprocess.Popen[str]
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.port = int(self._line())

    def measured(self) -> dict[str, Any]:
        """Return what the door has measured since it was asked last."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def _running(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class SmallRequests:
    """Small requests, one after the other, by another client.

    Attributes:
        longest_s: longest time in which one was answered.
        num: number of requests that were answered.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_s = 0.0
        self.num = 0

    def __enter__(self) -> SmallRequests:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        while not self._has_ended.is_set():
            began_s = time.monotonic()
            connection.request("GET", "/v1/models")
            connection.getresponse().read()
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.num += 1
            self._has_ended.wait(0.002)


def ask(port: int, path: str, body: bytes, content_type: str = "application/json") -> int:
    """Send a request; return the status of the answer, 0 if the connection was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    with suppress(OSError, http.client.HTTPException):
        with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused before its end
            connection.request("POST", path, body, {"content-type": content_type})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    return 0


def run_attack(door: Door, attack: Attack) -> Row:
    """Send the body of an attack; return what came of it."""
    body = attack.make()
    door.measured()
    before = door.measured()
    with SmallRequests(door.port) as small:
        time.sleep(_BEFORE_S)
        status = ask(door.port, attack.path, body, attack.content_type)
    found = door.measured()
    return Row(
        len(body) / 1e6,
        status,
        1000 * found["slice_s"],
        1000 * found["threads_s"],
        1000 * small.longest_s,
        found["peak_mb"] - before["peak_mb"],
        found["what"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run attacks and print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="checks.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("attack", nargs="*", help="names of attacks; all without")
    parser.add_argument("--door", action="append", choices=KINDS, help="doors to attack; all without")
    given = parser.parse_args(arguments)
    for name in given.attack or ATTACKS:
        attack = ATTACKS[name]
        for kind in given.door or KINDS:
            if attack.is_own and kind != "serve":
                continue
            with _running("benchmarks.router.origin", "1") as origin:
                assert origin.stdout is not None
                url = f"http://127.0.0.1:{int(origin.stdout.readline())}"
                with _running("checks.attacks.door", kind, url) as process:
                    door = Door(kind, process)
                    ask(door.port, CHAT, _SMALL)
                    row = run_attack(door, attack)
            print(
                f"{name:32} {kind:15} {row.body_mb:5.1f} MB {row.status:4} slice {row.slice_ms:4.0f} ms  "
                f"threads {row.threads_ms:5.0f} ms  wait {row.wait_ms:5.0f} ms  memory {row.memory_mb:4} MB  "
                f"{row.what[:60]}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
