"""Everything that looks at a door: `python -m benchmarks.watching.onlooker PORT [looks [KEY]]`.

A collector takes its spans. With "looks", threads read the events of its live page, as a browser does, and
its metrics each few seconds, as Prometheus does, with the admin's key if there is one. It prints the port of
the collector, and ends with its stdin.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeAlias

SCRAPE_S = 5.0
_RETRY_S = 0.2
_Look: TypeAlias = Callable[[int, Mapping[str, str]], None]


class _Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take spans."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def onlooker(port: int, *, looks: bool, key: str = "") -> Iterator[str]:
    """Context manager that lets a process look at the door at a port of this machine, which may start later;
    gives the URL of its collector.

    Args:
        looks: whether it reads the live page and the metrics.
        key: the admin's key; "" for none.
    """
    command = [sys.executable, "-m", "benchmarks.watching.onlooker", str(port), *["looks", key][: 2 * looks]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _read_page(port: int, headers: Mapping[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/admin/live", headers=headers)
    answer = connection.getresponse()
    while answer.read1():
        pass


def _read_metrics(port: int, headers: Mapping[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers=headers)
    connection.getresponse().read()
    connection.close()
    time.sleep(SCRAPE_S)


def _again_and_again(look: _Look, port: int, headers: Mapping[str, str]) -> None:
    while True:
        try:
            look(port, headers)
        except (OSError, http.client.HTTPException):
            time.sleep(_RETRY_S)


def main() -> None:
    """Look at the door until stdin ends."""
    port = int(sys.argv[1])
    key = "".join(sys.argv[3:])
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        for look in (_read_page, _read_metrics) if sys.argv[2:] else ():
            Thread(target=_again_and_again, args=(look, port, headers), daemon=True).start()
        print(collector.server_port, flush=True)
        sys.stdin.read()
        collector.shutdown()


if __name__ == "__main__":
    main()
