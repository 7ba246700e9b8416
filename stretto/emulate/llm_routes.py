"""What an emulated LLM server answers at each path, as vLLM does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from stretto.emulate.app import HandlerTable
from stretto.emulate.gate import Gate
from stretto.emulate.generate import LOST, AnswerWriter, EmulatedGeneration
from stretto.emulate.kv_transfers import is_prefill, is_prefilled, transfer_of
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.emulate.openai_writer import OpenAIWriter, ResponsesWriter
from stretto.emulate.prepared import AnswerTokens, PreparedRequest, as_long_as_allowed, prepare, prompts_of
from stretto.emulate.served_model import EmulatedModel
from stretto.http.request import HttpRequest
from stretto.model.errors import CapacityError
from stretto.wire import metrics, paths
from stretto.wire.errors import RequestRefused, malformed, unacceptable
from stretto.wire.fields import Fields, flag, read_body, text, token_ids
from stretto.wire.models import ModelCard, models_json, tokenize_json
from stretto.wire.requests import ChatRequest, CompletionRequest, GenerateRequest
from stretto.wire.response_requests import chat_of

VERSION = "0.32.0"
"""Version of vLLM whose answers are given."""

_EVENTS_TYPE = b"text/event-stream; charset=utf-8"


class LLMRoutes:
    """The handlers of an emulated LLM server by path, those of vLLM.

    Args:
        metrics_text: function that returns the text of `/metrics`.
        answer_tokens: decides how long answers are whose requests leave that to the model.
        kv_token_s: emulated seconds that the KV of a token takes from one server to another.
    """

    def __init__(
        self,
        replica: EmulatedLLM,
        served: EmulatedModel,
        gate: Gate,
        metrics_text: Callable[[], str],
        answer_tokens: AnswerTokens = as_long_as_allowed,
        kv_token_s: float = 0.0,
    ) -> None:
        self.replica = replica
        self.served = served
        self._gate = gate
        self._metrics_text = metrics_text
        self._answer_tokens = answer_tokens
        self._kv_token_s = kv_token_s
        self._engine_id = uuid4().hex
        self._num_requests = 0
        self.table: HandlerTable = {
            ("POST", paths.GENERATE["completions"]): self._complete,
            ("POST", paths.GENERATE["chat"]): self._chat,
            ("POST", paths.RESPONSES): self._respond,
            ("GET", paths.MODELS): self._models,
            ("GET", paths.HEALTH): self.healthy,
            ("GET", "ping"): self.healthy,
            ("GET", "version"): self._version,
            ("GET", paths.METRICS): self._metrics,
            ("POST", paths.TOKENIZE): self._tokenize,
            ("POST", "detokenize"): self._detokenize,
            ("POST", "reset_prefix_cache"): self.reset_cache,
        }

    def prepare(self, request: GenerateRequest) -> tuple[PreparedRequest, int]:
        """Check a request; return it with its answers, and its number. Raises RequestRefused."""
        prepared = prepare(request, self.served, self._answer_tokens)
        self._num_requests += 1
        return prepared, self._num_requests

    async def run(self, request: HttpRequest, prepared: PreparedRequest, writer: AnswerWriter) -> None:
        """Run a request and send what its writer writes, until it ends or the client leaves."""
        await self._gate.work()
        await self.replica.wait_arrival()
        by_priority = self.served.by_priority
        generation = EmulatedGeneration(prepared, self.replica, writer, by_priority=by_priority)
        try:
            generation.start()
        except CapacityError as error:
            generation.abort()
            raise unacceptable("prompt", error.message) from error
        try:
            is_streamed = prepared.options.stream
            await request.unless_left(self._send(request, generation, is_streamed=is_streamed))
        finally:
            generation.abort()

    async def _send(self, request: HttpRequest, generation: EmulatedGeneration, *, is_streamed: bool) -> None:
        outbox, gate = generation.outbox, self._gate
        if not is_streamed:
            content, _ = await outbox.take()
            await gate.leave()
            if generation.is_lost:
                raise RequestRefused(LOST)
            await request.answer(content)
            return
        request.begin_events(content_type=_EVENTS_TYPE)
        outbox.direct = lambda part: gate.is_open and request.write(part)
        is_last = False
        while not is_last:
            content, is_last = await outbox.take()
            await gate.leave()
            await request.send(content)
            outbox.sent()
        request.end()

    async def _complete(self, request: HttpRequest) -> None:
        await self._generate(request, CompletionRequest.from_json(read_body(await request.body())))

    async def _chat(self, request: HttpRequest) -> None:
        await self._generate(request, ChatRequest.from_json(read_body(await request.body())))

    async def _respond(self, request: HttpRequest) -> None:
        body = read_body(await request.body())
        prepared, number = self.prepare(ChatRequest.from_json(chat_of(body)))
        await self.run(request, prepared, ResponsesWriter(prepared, self.served.name, number, body))

    async def _generate(self, request: HttpRequest, asked: GenerateRequest) -> None:
        prepared, number = self.prepare(asked)
        params = asked.extra.get("kv_transfer_params")
        if is_prefilled(params):
            for choice in prepared.choices:
                await self.replica.receive_kv(
                    list(choice.prompt), prepared.options.cache_salt, self._kv_token_s
                )
        transfer = transfer_of(prepared, self._engine_id, number) if is_prefill(params) else None
        await self.run(request, prepared, OpenAIWriter(prepared, self.served.name, number, transfer))

    async def _models(self, request: HttpRequest) -> None:
        served = self.served
        await request.answer_json(models_json([ModelCard(served.name, served.root, served.max_tokens)]))

    async def healthy(self, request: HttpRequest) -> None:
        """Answer that the server is well."""
        await request.answer(b"")

    async def _version(self, request: HttpRequest) -> None:
        await request.answer_json({"version": VERSION})

    async def _metrics(self, request: HttpRequest) -> None:
        await request.answer(self._metrics_text().encode(), content_type=metrics.CONTENT_TYPE.encode())

    async def _tokenize(self, request: HttpRequest) -> None:
        body = read_body(await request.body())
        await request.answer_json(tokenize_json(_ids(self.served, body), self.served.max_tokens))

    async def _detokenize(self, request: HttpRequest) -> None:
        ids = Fields(read_body(await request.body())).take("tokens", token_ids, ())
        await request.answer_json({"prompt": self.served.tokens.decode(ids)})

    async def reset_cache(self, request: HttpRequest) -> None:
        """Evict all prefixes that no running request holds."""
        self.replica.clear_cache()
        await request.answer(b"")


def _ids(served: EmulatedModel, body: Mapping[str, Any]) -> Sequence[int]:
    """Return the tokens of a request to cut a text, or messages, into tokens."""
    if "messages" in body:
        (ids,) = prompts_of(ChatRequest.from_json(body), served.tokens)
        return ids
    sent = Fields(body)
    prompt = sent.take("prompt", text, None)
    if prompt is None:
        raise malformed("prompt", "missing")
    return served.tokens.encode(prompt, is_prompt=sent.take("add_special_tokens", flag, True))
