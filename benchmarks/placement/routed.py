"""A router by others as a placement policy: it gets the requests of a replay, and stand-in workers note which
of them got which.

The requests go to a real router over HTTP, one after the other. A worker answers when the replay says that
the request has ended, so that the router sees the loads that a policy would see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeAlias

from benchmarks.router.contestants import Contestant, running
from benchmarks.router.origin import MODELS, WHOLE
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Binds, Choice, Ended, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest

_PATIENCE_S = 60.0
_SETTLING_S = 2.0
"""Seconds after which a router that answers has found all workers."""
_MOST_AT_ONCE = 1024
"""Number of requests that may run at all workers together."""
_Arrivals: TypeAlias = "SimpleQueue[tuple[InstanceId, Event] | Exception]"
"""What has come of the request sent last: the worker that got it, and what lets it answer; or an error."""


@contextmanager
def routed(router: Contestant, num_workers: int, texts: Iterable[bytes]) -> Iterator[Routed]:
    """Run a router before so many workers; yield the policy that asks it where to send each prompt."""
    arrivals: _Arrivals = SimpleQueue()
    with ExitStack() as stack:
        ports = [stack.enter_context(_worker(number, arrivals)) for number in range(num_workers)]
        (started,) = stack.enter_context(running([router], ports))
        time.sleep(_SETTLING_S)
        policy = Routed(started.port, arrivals, texts)
        stack.callback(policy.close)
        yield policy


class Routed(Placement):
    """A placement policy that asks a router: the instance is the worker to which it passes the request.

    Args:
        port: port of the router.
        arrivals: what the workers note.
        texts: prompts of the requests, in their order.
    """

    binds: Binds = "final"

    def __init__(self, port: int, arrivals: _Arrivals, texts: Iterable[bytes]) -> None:
        self._port = port
        self._arrivals = arrivals
        self._texts = iter(texts)
        self._senders = ThreadPoolExecutor(_MOST_AT_ONCE)
        self._running: dict[int, tuple[Event, Future[None]]] = {}

    def load(self, instance: InstanceView) -> Load:
        """Return the same for all instances: the router has its own idea of their loads."""
        return (0.0,)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Send the next prompt to the router; return the worker that gets it.

        Raises:
            RuntimeError: the router refuses the request, or passes it on to no worker.
        """
        answered = self._senders.submit(self._ask, next(self._texts))
        try:
            arrived = self._arrivals.get(timeout=_PATIENCE_S)
        except Empty:
            raise RuntimeError(f"the router has not passed a request on within {_PATIENCE_S:g} s") from None
        if isinstance(arrived, Exception):
            raise RuntimeError(f"the router has refused a request: {arrived}") from arrived
        instance, may_answer = arrived
        self._running[id(request)] = may_answer, answered
        return Choice(instance, reason="the router's choice")

    def observe(self, event: PlacementEvent) -> None:
        """Let a worker answer a request that has ended, and wait for the answer."""
        if isinstance(event, Ended):
            may_answer, answered = self._running.pop(id(event.request))
            may_answer.set()
            answered.result(_PATIENCE_S)

    def close(self) -> None:
        """Let the workers answer what still runs there."""
        for may_answer, _ in self._running.values():
            may_answer.set()
        self._senders.shutdown(wait=False)

    def _ask(self, text: bytes) -> None:
        body = {"model": "m", "prompt": text.decode("utf-8", "replace"), "max_tokens": 16, "temperature": 0}
        connection = HTTPConnection("127.0.0.1", self._port, timeout=None)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            reply = answer.read()
            if answer.status != 200:
                raise HTTPException(f"status {answer.status}, {reply[:200]!r}")
        except (OSError, HTTPException) as error:
            self._arrivals.put(error)
            raise
        finally:
            connection.close()


@contextmanager
def _worker(number: InstanceId, arrivals: _Arrivals) -> Iterator[int]:
    """Run a worker in a thread; yield its port."""
    with _Worker(number, arrivals) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


class _Worker(ThreadingHTTPServer):
    """A worker that notes each request, and answers it when it may."""

    daemon_threads = True
    request_queue_size = _MOST_AT_ONCE

    def __init__(self, number: InstanceId, arrivals: _Arrivals) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.number = number
        self.arrivals = arrivals


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer that the worker is well and has a model."""
        self._answer(MODELS)

    def do_POST(self) -> None:
        """Note a request, and answer it when it has ended."""
        assert isinstance(self.server, _Worker)
        self.rfile.read(int(self.headers["content-length"]))
        may_answer = Event()
        self.server.arrivals.put((self.server.number, may_answer))
        may_answer.wait()
        self._answer(WHOLE)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
