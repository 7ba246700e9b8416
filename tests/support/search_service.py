"""A web search service like SearXNG, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse


@dataclass
class Asked:
    """A record of the requests that the server got."""

    queries: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def search_service(answer: Callable[[str, int], tuple[int, bytes]]) -> Iterator[tuple[str, Asked]]:
    """Serve `GET /search` with `answer(query, number of the request)`, a status and a body."""
    asked = Asked()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlparse(self.path)
            query = parse_qs(url.query)
            assert (url.path, query["format"]) == ("/search", ["json"])
            with lock:
                asked.queries.append(query["q"][0])
                asked.keys.append(self.headers.get("Authorization"))
                number = len(asked.queries)
            status, body = answer(query["q"][0], number)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def results(*rows: object) -> bytes:
    """Return the body of an answer with these rows."""
    return json.dumps({"results": rows}).encode()
