"""A small OpenAI-compatible server for tests: real sockets, chunked server-sent events, faults on request.

As a command it takes `--port` among any other arguments and answers every completion with "hello". The
variable STUB says how it misbehaves: "fails", "slow" or "stubborn". Into the folder STUB_FOLDER it writes its
arguments, its variables and its process ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.wire import paths, sse
from stretto.wire.answer_writing import chunk_json, whole_json
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts
from stretto.wire.errors import ApiError, RequestRefused, no_such_path
from stretto.wire.fields import read_body
from stretto.wire.logprobs import TokenLogprob
from stretto.wire.paths import Api
from stretto.wire.requests import ChatRequest, CompletionRequest, GenerateRequest

MODEL = "stub-model"
EVENT_STREAM = {"Content-Type": f"{sse.CONTENT_TYPE}; charset=utf-8"}
_APIS: Mapping[str, Api] = {f"POST /{path}": api for api, path in paths.GENERATE.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    """A prepared answer to a completion: by `deltas`, then `ending`, or by `raw` bytes as they are.

    Each delta is a token, `delta_s` behind the last. All choices have the same text; a request that is not
    streamed is answered with it at once. The ending is "done", "cut" (the connection drops), "stop" (the
    response ends without [DONE]) or "hang" (silence until the client goes away). With status 0 the connection
    drops before any answer. `piece_bytes` of `raw` are written at once.
    """

    deltas: tuple[str, ...] = ()
    ending: str = "done"
    status: int = 200
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    finish: str | None = None
    stop_reason: str | None = None
    num_prompt: int = 7
    num_cached: int | None = None
    delta_s: float = 0.0
    piece_bytes: int = 1 << 20

    @staticmethod
    def refusing(error: ApiError) -> Reply:
        """Return the answer to a request that is not served."""
        return Reply(status=error.status, raw=json.dumps(error.to_json()).encode(), headers=error.headers())


class OpenAIStub:
    """A server that answers every completion with `answer(request body)`. An async context manager.

    A body that is no request is refused as vLLM does, without asking `answer`.

    Args:
        model: what `/v1/models` says of the model, besides its id.
        pages: other answers by "METHOD /path", from the body of the request; 404 where there is none.
        port: where it listens; 0 takes a free port.
    """

    def __init__(
        self,
        answer: Callable[[Mapping[str, Any]], Reply],
        *,
        model: Mapping[str, object] | None = None,
        pages: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
        port: int = 0,
    ) -> None:
        self._answer = answer
        self._port = port
        self._pages = {
            "GET /v1/models": lambda _: json.dumps({"data": [{"id": MODEL, **(model or {})}]}),
            **(pages or {}),
        }
        self.requests: list[Mapping[str, Any]] = []
        self.heads: list[Mapping[str, str]] = []
        self.num_running = 0
        self.num_output_tokens = 0
        self.num_open = 0
        self.most_open = 0
        self.aborted = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> OpenAIStub:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.partition(" HTTP/")[0]
            fields = [line.partition(": ") for line in head.split("\r\n")[1:]]
            self.heads.append({name.lower(): value for name, _, value in fields})
            received = await reader.readexactly(int(self.heads[-1].get("content-length", 0)))
            if path in self._pages:
                page = self._pages[path](json.loads(received or b"{}"))
                await _send(writer, 200, page.encode(), {"Content-Type": "text/plain"})
            elif path in _APIS:
                await self._generate(reader, writer, _APIS[path], received)
            else:
                raise no_such_path(path)
        except RequestRefused as refused:
            body = json.dumps(refused.answer.to_json()).encode()
            await _send(writer, refused.answer.status, body, refused.answer.headers())
        except (ConnectionError, asyncio.IncompleteReadError):
            self.aborted.set()
        finally:
            self.num_open -= 1
            writer.close()

    async def _generate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, api: Api, received: bytes
    ) -> None:
        body = read_body(received)
        request: GenerateRequest
        request = ChatRequest.from_json(body) if api == "chat" else CompletionRequest.from_json(body)
        self.requests.append(body)
        reply = self._answer(body)
        if reply.status == 0:
            return
        if reply.raw is not None or reply.status != 200:
            refusal = ApiError(reply.status, "told to fail", "Error")
            raw = json.dumps(refusal.to_json()).encode() if reply.raw is None else reply.raw
            await _send(writer, reply.status, raw, reply.headers, reply.piece_bytes)
            return
        self.num_running += 1
        try:
            if request.options.stream:
                await self._stream(reader, writer, api, request, reply)
            else:
                await self._whole(writer, api, request, reply)
        finally:
            self.num_running -= 1

    async def _whole(
        self, writer: asyncio.StreamWriter, api: Api, request: GenerateRequest, reply: Reply
    ) -> None:
        await asyncio.sleep(reply.delta_s * len(reply.deltas))
        num_choices = _num_choices(request)
        self.num_output_tokens += num_choices * len(reply.deltas)
        choice = AnswerChoice(
            text="".join(reply.deltas),
            finish=reply.finish or "stop",
            stop_reason=reply.stop_reason,
            logprobs=_logprobs(request, reply.deltas),
        )
        answer = replace(_answer(choice, num_choices), counts=_counts(reply, num_choices))
        await _send(writer, 200, json.dumps(whole_json(api, answer)).encode(), {})

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        api: Api,
        request: GenerateRequest,
        reply: Reply,
    ) -> None:
        (kind,) = EVENT_STREAM.values()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\nConnection: close"
        writer.write(f"{head}\r\n\r\n".encode())
        num_choices = _num_choices(request)
        choices = [AnswerChoice(role="assistant")] if api == "chat" else []
        choices += [AnswerChoice(text=delta, logprobs=_logprobs(request, (delta,))) for delta in reply.deltas]
        if reply.finish is not None:
            choices.append(AnswerChoice(finish=reply.finish, stop_reason=reply.stop_reason))
        for choice in choices:
            answer = _answer(choice, num_choices)
            await _send_event(writer, sse.encode_event(chunk_json(api, answer)))
            self.num_output_tokens += num_choices * bool(choice.text)
            await asyncio.sleep(reply.delta_s)
        if reply.ending == "hang":
            await writer.drain()
            await reader.read()
            self.aborted.set()
        elif reply.ending == "done":
            if request.options.include_usage:
                last = ModelAnswer(model=MODEL, counts=_counts(reply, num_choices))
                await _send_event(writer, sse.encode_event(chunk_json(api, last)))
            await _send_event(writer, sse.DONE)
        if reply.ending != "cut":
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def _num_choices(request: GenerateRequest) -> int:
    return request.options.n * (len(request.prompts) if isinstance(request, CompletionRequest) else 1)


def _answer(choice: AnswerChoice, num_choices: int) -> ModelAnswer:
    choices = tuple(replace(choice, index=index) for index in range(num_choices))
    return ModelAnswer(id="stub-1", model=MODEL, choices=choices)


def _counts(reply: Reply, num_choices: int) -> TokenCounts:
    return TokenCounts(reply.num_prompt, num_choices * len(reply.deltas), reply.num_cached)


def _logprobs(request: GenerateRequest, tokens: tuple[str, ...]) -> tuple[TokenLogprob, ...] | None:
    if request.options.logprobs is None:
        return None
    return tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in tokens)


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    piece_bytes: int = 1 << 20,
) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{''.join(lines)}\r\n"
    writer.write(head.encode())
    for start in range(0, len(body), piece_bytes):
        writer.write(body[start : start + piece_bytes])
        await writer.drain()
        await asyncio.sleep(0)


async def _send_event(writer: asyncio.StreamWriter, event: bytes) -> None:
    """Send one event as one HTTP chunk."""
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
    await writer.drain()
    await asyncio.sleep(0)


async def _main() -> None:
    """Serve as the command line and the environment say."""
    does, folder = os.environ.get("STUB", ""), Path(os.environ["STUB_FOLDER"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "arguments").write_text(json.dumps(sys.argv[1:]))
    (folder / "variables").write_text(json.dumps(dict(os.environ)))
    (folder / "processes").write_text(f"{os.getpid()} {child.pid}")
    if does == "fails":
        print("there is no such model", flush=True)
        sys.exit(3)
    if does == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pages = {} if does == "slow" else {"GET /health": lambda _: ""}
    port = int(sys.argv[sys.argv.index("--port") + 1])
    async with OpenAIStub(lambda _: Reply(("hel", "lo"), finish="stop"), pages=pages, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
