"""An OpenAI-compatible server whose answers wait until a test lets them go."""

from __future__ import annotations

import json
import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "m"
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the server has received."""

    path: str
    body: Any
    headers: dict[str, str]

    @property
    def prompt(self) -> str:
        """The last text of the prompt."""
        messages = self.body.get("messages")
        return str(messages[-1]["content"] if messages else self.body.get("prompt", self.body.get("input")))


class GatedWorker:
    """A server on a thread of its own. A context manager.

    Attributes:
        asked: requests for answers, in order of arrival.
        num_left: number of those whose clients left before their answers.
        is_open: whether answers go at once.
        status: status of answers.
        cuts: whether an answer that is streamed is cut after its first event.
        errs: whether an answer that is streamed ends with an error after its first event.
        error_code: code of that error.
        model: the only model that it has.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.num_left = 0
        self.is_open = False
        self.status = 200
        self.cuts = False
        self.errs = False
        self.error_code = 500
        self.model = MODEL
        self._changed = threading.Condition()
        self._num_free = 0
        self._is_dead = False
        self._connections: set[socket.socket] = set()
        worker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                worker._connections.add(self.connection)

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._whole({"object": "list", "data": [{"id": worker.model, "object": "model"}]})
                elif self.path == "/health":
                    self._whole({})
                elif self.path == "/metrics":
                    self._whole({}, 404)
                else:
                    self._whole({"path": self.path, "headers": dict(self.headers)})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                asked = Asked(self.path, body, {name.lower(): one for name, one in self.headers.items()})
                if not worker._arrived(asked, self.connection):
                    self.close_connection = True
                elif worker.status != 200:
                    self._whole({"error": {"message": "it fails", "code": worker.status}}, worker.status)
                elif body.get("stream"):
                    self._events(asked)
                else:
                    self._whole(_answer(asked))

            def _whole(self, value: object, status: int = 200) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _events(self, asked: Asked) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                error = {"error": {"message": "it fails", "type": "E", "code": worker.error_code}}
                events = [_events(asked)[0], error] if worker.errs else _events(asked)
                is_cut = worker.cuts
                for event in events[: 1 if is_cut else None]:
                    self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
                if is_cut:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self._chunk(b"data: [DONE]\n\n")
                    self.wfile.write(b"0\r\n\r\n")

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                return  # a client that has left

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def prompts(self) -> list[str]:
        return [one.prompt for one in self.asked]

    def __enter__(self) -> GatedWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the server and all its connections."""
        with self._changed:
            self._is_dead = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)

    def release(self, num: int = 1) -> None:
        """Let the next answers go."""
        with self._changed:
            self._num_free += num
            self._changed.notify_all()

    def wait_until_asked(self, num: int) -> None:
        """Wait until so many requests have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= num, PATIENCE_S), self.prompts

    def wait_until_left(self, num: int) -> None:
        """Wait until the clients of so many requests have left."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_left >= num, PATIENCE_S)

    def _arrived(self, asked: Asked, connection: socket.socket) -> bool:
        """Note a request, and wait until it may be answered; return whether its client is still there."""
        with self._changed:
            self.asked.append(asked)
            self._changed.notify_all()
        while True:
            with self._changed:
                if self._is_dead:
                    return False
                if self.is_open:
                    return True
                if self._num_free:
                    self._num_free -= 1
                    return True
                self._changed.wait(0.01)
            if select.select([connection], [], [], 0)[0]:
                with self._changed:
                    self.num_left += 1
                    self._changed.notify_all()
                return False


def _answer(asked: Asked) -> dict[str, Any]:
    head = {"id": "x", "object": "o", "model": MODEL, "created": 1}
    usage = _usage(asked)
    if asked.path.endswith("embeddings"):
        return {"object": "list", "data": [{"index": 0, "embedding": [1.0]}], "usage": usage}
    text = f"to {asked.prompt[-20:]}"
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "text": text}
    if asked.path.endswith("chat/completions"):
        choice["message"] = {"role": "assistant", "content": text}
    return {**head, "choices": [choice], "usage": usage}


def _events(asked: Asked) -> list[dict[str, Any]]:
    is_chat = asked.path.endswith("chat/completions")
    pieces = ["to ", asked.prompt[-20:], None]
    head = {"id": "x", "object": "o", "model": MODEL, "created": 1}
    events: list[dict[str, Any]] = []
    for piece in pieces:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if piece is None else None}
        if is_chat:
            choice["delta"] = {} if piece is None else {"content": piece}
        else:
            choice["text"] = piece or ""
        events.append({**head, "choices": [choice]})
    return [*events, {**head, "choices": [], "usage": _usage(asked)}]


def _usage(asked: Asked) -> dict[str, int]:
    num_prompt = max(1, len(asked.prompt) // 4)
    return {"prompt_tokens": num_prompt, "completion_tokens": 2, "total_tokens": num_prompt + 2}
