"""A small HTTP server for tests, which answers JSON by path as embedding and reranking servers do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class PoolingStub:
    """The answers of a server, and what it was asked.

    Args:
        pages: function from the body of a request to the JSON of the answer, by "METHOD /path".
        refuse_first: number of POSTs that are refused with status 503 before any is answered.
    """

    def __init__(
        self, pages: Mapping[str, Callable[[Mapping[str, Any]], object]], *, refuse_first: int = 0
    ) -> None:
        self._pages = pages
        self._num_refusals = refuse_first
        self._asked: list[str] = []
        self._lock = threading.Lock()
        self.posted: list[Mapping[str, Any]] = []

    def num_asked(self, page: str) -> int:
        """Number of requests for "METHOD /path"."""
        return self._asked.count(page)

    def answer(self, page: str, body: bytes) -> tuple[int, object]:
        """Return the status and the JSON of an answer."""
        with self._lock:
            self._asked.append(page)
            if page not in self._pages:
                return 404, {"detail": "Not Found"}
            sent = json.loads(body or b"{}")
            if page.startswith("POST"):
                if self._num_refusals:
                    self._num_refusals -= 1
                    return 503, {"error": "overloaded"}
                self.posted.append(sent)
        return 200, self._pages[page](sent)


@contextmanager
def answering(stub: PoolingStub, port: int = 0) -> Iterator[str]:
    """Run the server on a thread; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, value = stub.answer(f"{self.command} {self.path}", body)
            written = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
