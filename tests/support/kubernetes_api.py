"""A stand-in for the API of Kubernetes, of which it has the EndpointSlices of one namespace: list, and watch
with bookmarks, 410 Gone, and an end after some time.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATIENCE_S = 60.0
PATH = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"


def slice_of(name: str, port: int | None, *hosts: str, unready: Sequence[str] = ()) -> dict[str, Any]:
    """Return an EndpointSlice with ready endpoints, and some that are not."""
    endpoints: list[dict[str, Any]] = [{"addresses": [host], "conditions": {"ready": True}} for host in hosts]
    endpoints += [{"addresses": [host], "conditions": {"ready": False}} for host in unready]
    ports = [] if port is None else [{"name": "metrics", "port": 1}, {"name": "http", "port": port}]
    return {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}


class FakeApi:
    """The API. A context manager.

    Attributes:
        port: its port, which stays when it goes away and comes back.
        asked: queries of requests, in order.
        status: status of answers, where it is not 200.
        oldest: oldest version from which changes are known; older ones are gone.
        watch_s: seconds after which a watch ends.
        says_gone_at_once: whether 410 is the status of an answer, or an event of it.
    """

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[dict[str, str]] = []
        self.status = 200
        self.oldest = 0
        self.watch_s = PATIENCE_S
        self.says_gone_at_once = True
        self._version = 100
        self._slices: dict[str, dict[str, Any]] = {}
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()

    def kubeconfig(self, folder: Path) -> str:
        """Write a file that says where the API is; return its name."""
        file = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "of-a-robot"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "prod"}}],
        }
        file.write_text(json.dumps(config))
        return str(file)

    def put(self, *slices: dict[str, Any], quietly: bool = False) -> None:
        """Add or change slices; `quietly`, so that no watch tells."""
        for one in slices:
            name = one["metadata"]["name"]
            kind = "MODIFIED" if name in self._slices else "ADDED"
            with self._changed:
                self._slices[name] = one
                self._note(kind, one, quietly=quietly)

    def delete(self, name: str, *, quietly: bool = False) -> None:
        """Delete a slice."""
        with self._changed:
            self._note("DELETED", self._slices.pop(name), quietly=quietly)

    def bookmark(self) -> None:
        """Tell watches a version without a change."""
        with self._changed:
            self._note("BOOKMARK", {"metadata": {}}, quietly=False)

    def say(self, event: dict[str, Any]) -> None:
        """Tell watches something else."""
        with self._changed:
            self._version += 1
            self._events.append((self._version, event))
            self._changed.notify_all()

    def _note(self, kind: str, slice_: dict[str, Any], *, quietly: bool) -> None:
        self._version += 1
        slice_["metadata"]["resourceVersion"] = str(self._version)
        if not quietly:
            self._events.append((self._version, {"type": kind, "object": json.loads(json.dumps(slice_))}))
        self._changed.notify_all()

    def forget(self) -> None:
        """Know no changes from before now."""
        with self._changed:
            self._version += 1
            self.oldest = self._version
            self._events.clear()

    def open(self) -> None:
        """Begin to answer."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                api._connections.add(self.connection)

            def finish(self) -> None:
                api._connections.discard(self.connection)
                with suppress(OSError):
                    super().finish()

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                with suppress(OSError):
                    api._answer(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Go away, with all connections."""
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()
            for connection in list(self._connections):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            with self._changed:
                self._changed.notify_all()

    def __enter__(self) -> FakeApi:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, to: Any) -> None:
        url = urlsplit(to.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.asked.append(query)
        is_known = to.headers["authorization"] == "Bearer of-a-robot" and url.path == PATH
        status = self.status if is_known else 404
        if "watch" not in query or status != 200:
            with self._changed:
                body = {
                    "metadata": {"resourceVersion": str(self._version)},
                    "items": [*self._slices.values()],
                }
            self._whole(to, status, body)
            return
        version = int(query["resourceVersion"])
        gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
        if version < self.oldest and self.says_gone_at_once:
            self._whole(to, 410, gone)
            return
        to.send_response(200)
        to.send_header("transfer-encoding", "chunked")
        to.end_headers()
        if version < self.oldest:
            self._line(to, {"type": "ERROR", "object": gone})
        else:
            self._tell(to, version)
        to.wfile.write(b"0\r\n\r\n")

    def _tell(self, to: Any, version: int) -> None:
        """Tell changes since a version, until the watch ends or the API goes away."""
        server = self._server
        while True:
            with self._changed:
                due = [(at, event) for at, event in self._events if at > version]
                if not due and (self._server is not server or not self._changed.wait(self.watch_s)):
                    return
            for at, event in due:
                self._line(to, event)
                version = at

    @staticmethod
    def _whole(to: Any, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        to.send_response(status)
        to.send_header("content-length", str(len(text)))
        to.end_headers()
        to.wfile.write(text)

    @staticmethod
    def _line(to: Any, event: object) -> None:
        line = json.dumps(event).encode() + b"\n"
        half = len(line) // 2
        for part in (line[:half], line[half:]):  # an event may come in parts
            to.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        to.wfile.flush()
