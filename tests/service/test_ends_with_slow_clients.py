"""A service that ends does not wait for requests that have not come whole; the others are answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import httpx
import pytest
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker
from support.services import served

from stretto import Input, Template
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
LONG = b"Content-Length: 9000\r\n"
FILE = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="a.txt"\r\n\r\nsome text'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BEGUN = {
    "chat": (b"/v1/chat/completions", LONG, b'{"messages":['),
    "chat in chunks": (b"/v1/chat/completions", CHUNKED, b"5\r\n12345\r\n"),
    "document": (b"/v1/apps/reply/queries", FORM + LONG, FILE % b"document"),
    "file": (b"/v1/files", FORM + LONG, FILE % b"file"),
    "file in chunks": (b"/v1/files", FORM + CHUNKED, b"%x\r\n%b\r\n" % (len(FILE % b"file"), FILE % b"file")),
    "session": (b"/v1/submit", LONG, b'{"prompt":"'),
    "other path of the workers": (b"/v1/embeddings", LONG, b'{"input":"'),
}


class Trickling:
    """A client that sends a byte now and then, for as long as anybody takes it.

    Args:
        thread: runs it.

    Attributes:
        answer: all that it has read.
    """

    def __init__(self, url: str, sent: bytes, byte: bytes, threads: ThreadPoolExecutor) -> None:
        self.answer: Future[bytes]
        self._end = Event()
        self._socket = socket.create_connection((httpx.URL(url).host, httpx.URL(url).port))
        self._socket.settimeout(PATIENCE_S)
        self._socket.sendall(sent)
        self._byte = byte
        threads.submit(self._trickle)
        self.answer = threads.submit(self._read)

    def _trickle(self) -> None:
        with suppress(OSError):
            while not self._end.wait(0.01):
                self._socket.sendall(self._byte)

    def _read(self) -> bytes:
        received = b""
        with suppress(ConnectionError):
            while more := self._socket.recv(4096):
                received += more
        self._end.set()
        self._socket.close()
        return received


@contextmanager
def service(state: Path, worker: GatedWorker) -> Iterator[Service]:
    """Run a service that would wait for `PATIENCE_S` at its end."""
    config = ServiceConfig(port=0, grace_s=PATIENCE_S)
    pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker.url),)), config)
    call = LLMCall(prompt="{text}", text=Input("text", "text"))
    apps = {"reply": deploy_app("reply", Template("reply", call, {"reply": call["text"]}))}
    with served([transforms_engine()], config, apps, pool=pool, state=state) as (running, _):
        yield running


def wait_for_connections(running: Service, num: int) -> None:
    async def look() -> int:
        assert running._server is not None
        return len(running._server.connections)

    for _ in range(2000):
        if running.runtime.run_on_loop(look) >= num:
            return
        Event().wait(0.005)
    raise AssertionError("they do not come")


@pytest.mark.parametrize("kind", BEGUN)
def test_a_service_that_ends_refuses_what_has_not_come_whole(kind: str, tmp_path: Path) -> None:
    path, headers, body = BEGUN[kind]
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path, headers)
    byte = b"1\r\nx\r\n" if CHUNKED in headers else b"x"
    with (
        ThreadPoolExecutor(16) as threads,
        GatedWorker() as worker,
        service(tmp_path, worker) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_S) as http,
    ):
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        asked = threads.submit(http.post, "/v1/chat/completions", json=chat)
        worker.wait_until_asked(1)
        clients = [
            Trickling(running.url, head + body, byte, threads),
            Trickling(running.url, head[:-2] + b"X-More: ", b"x", threads),
            Trickling(running.url, b"", b"\r\n", threads),
        ]
        wait_for_connections(running, 4)
        drained = threads.submit(running.runtime.run_on_loop, running.drain)
        in_body, in_head, before = (client.answer.result(PATIENCE_S / 2) for client in clients)
        for answer in (in_body, in_head):
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"connection: close" in answer.lower()
            assert b"the service is being ended" in answer
        assert before == b""
        assert not asked.done(), "what has come whole is waited for"
        worker.release()
        assert asked.result().status_code == 200
        drained.result(PATIENCE_S / 2)
