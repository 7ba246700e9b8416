"""Everything that looks at a door: `python -m benchmarks.watching.onlooker PORT [looks]`.

A collector takes its spans. With "looks", threads read the events of its live page, as a browser does, and
its metrics each few seconds, as Prometheus does. It prints the port of the collector, and ends with its
stdin.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

SCRAPE_S = 5.0
_RETRY_S = 0.2


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
def onlooker(port: int, *, looks: bool) -> Iterator[str]:
    """Context manager that lets a process look at the door at a port of this machine, which may start later;
    gives the URL of its collector.

    Args:
        looks: whether it reads the live page and the metrics.
    """
    command = [sys.executable, "-m", "benchmarks.watching.onlooker", str(port), *["looks"][:looks]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _read_page(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/admin/live")
    answer = connection.getresponse()
    while answer.read1():
        pass


def _read_metrics(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    connection.close()
    time.sleep(SCRAPE_S)


def _again_and_again(look: Callable[[int], None], port: int) -> None:
    while True:
        try:
            look(port)
        except (OSError, http.client.HTTPException):
            time.sleep(_RETRY_S)


def main() -> None:
    """Look at the door until stdin ends."""
    port = int(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        for look in (_read_page, _read_metrics) if sys.argv[2:] else ():
            Thread(target=_again_and_again, args=(look, port), daemon=True).start()
        print(collector.server_port, flush=True)
        sys.stdin.read()
        collector.shutdown()


if __name__ == "__main__":
    main()
