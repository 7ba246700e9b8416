"""A small real LLM server: a checkpoint on the in-process engine, behind OpenAI's completions over HTTP.

    python llm_http_server.py serve CHECKPOINT --host HOST --port PORT [further arguments are ignored]

It takes vLLM's command line, for checks on machines without vLLM, and like it runs the engine in a process of
its own. It streams the completion of one text, and answers /health and /v1/models.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from itertools import count

from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece
from stretto.model.values import Segment
from stretto.runtime.instances.process import ProcessInstance
from stretto.runtime.worker import AdmitTask, InstanceJob, StopTask
from stretto.sched.engine_events import InstanceLost, InstanceReady, LLMReport
from stretto.sched.messages import Event
from stretto.wire import sse
from stretto.wire.answer_writing import chunk_json
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts
from stretto.wire.errors import RequestRefused, no_such_path
from stretto.wire.fields import read_body
from stretto.wire.models import ModelCard, models_json
from stretto.wire.requests import DEFAULT_COMPLETION_TOKENS, CompletionRequest

_CONTEXT_TOKENS = 4096


class LLMHttpServer:
    """Serves one checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._ids = count(1)
        self._running: dict[int, asyncio.Queue[LLMEvent]] = {}
        self._is_ready = asyncio.Event()
        self._is_lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        job = InstanceJob("llm", 0, True, TransformerLLM, TransformerConfig(checkpoint))

        def post(event: Event) -> None:
            loop.call_soon_threadsafe(self._hear, event)

        self._engine = ProcessInstance(job, post)

    async def serve(self, host: str, port: int) -> None:
        """Serve until the engine dies."""
        server = await asyncio.start_server(self._answer, host, port)
        await self._is_lost.wait()
        server.close()

    def _hear(self, event: Event) -> None:
        match event:
            case InstanceReady():
                self._is_ready.set()
            case InstanceLost():
                self._is_lost.set()
            case LLMReport(_, _, said) if said.task in self._running:
                self._running[said.task].put_nowait(said)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = (line.partition(": ") for line in head.split("\r\n")[1:])
            headers = {name.lower(): value for name, _, value in fields}
            received = await reader.readexactly(int(headers.get("content-length", 0)))
            match head.partition(" HTTP/")[0]:
                case "GET /health":
                    _write(writer, 200 if self._is_ready.is_set() else 503, b"")
                case "GET /v1/models":
                    card = ModelCard(self._checkpoint, self._checkpoint, _CONTEXT_TOKENS)
                    _write(writer, 200, json.dumps(models_json([card])).encode())
                case "POST /v1/completions":
                    await self._complete(writer, CompletionRequest.from_json(read_body(received)))
                case path:
                    raise no_such_path(path)
        except RequestRefused as refused:
            _write(writer, refused.answer.status, json.dumps(refused.answer.to_json()).encode())
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _complete(self, writer: asyncio.StreamWriter, request: CompletionRequest) -> None:
        """Stream the answer; the end of the response is the end of the connection."""
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {sse.CONTENT_TYPE}\r\nConnection: close\r\n\r\n".encode()
        )
        num_pieces = 0
        async for text in self._generate(request):
            num_pieces += 1
            await self._send(writer, ModelAnswer(choices=(AnswerChoice(text=text),)))
        await self._send(
            writer, ModelAnswer(choices=(AnswerChoice(finish="length"),), counts=TokenCounts(0, num_pieces))
        )
        writer.write(sse.DONE)
        await writer.drain()

    async def _send(self, writer: asyncio.StreamWriter, answer: ModelAnswer) -> None:
        writer.write(sse.encode_event(chunk_json("completions", answer)))
        await writer.drain()

    async def _generate(self, request: CompletionRequest) -> AsyncIterator[str]:
        """The texts of the answer as they come. Raises ConnectionError if there is none."""
        options = request.options
        decode = Decode(
            max_tokens=options.max_tokens or DEFAULT_COMPLETION_TOKENS,
            temperature=options.temperature or 0.0,
            seed=options.seed or 0,
            stop=options.stop,
            ignore_eos=options.ignore_eos,
        )
        task = LLMTask(next(self._ids), "query", "step", (Segment(str(request.prompts[0]), "text"),), decode)
        events = self._running[task.id] = asyncio.Queue()
        self._engine.send(AdmitTask(task, ()))
        try:
            while True:
                match await events.get():
                    case Piece(_, text):
                        yield text
                    case Done():
                        return
                    case Failed(_, error):
                        raise ConnectionError(str(error))
        finally:
            del self._running[task.id]
            self._engine.send(StopTask(task.id))


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
    writer.write(body)


async def _main(arguments: list[str]) -> None:
    host, port = (arguments[arguments.index(name) + 1] for name in ("--host", "--port"))
    await LLMHttpServer(arguments[1]).serve(host, int(port))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
