"""What an emulated LLM server answers at each path, as vLLM does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.emulate.app import Handler
from stretto.emulate.gate import Gate
from stretto.emulate.generate import LOST, AnswerWriter, EmulatedGeneration
from stretto.emulate.http import EmulatedExchange
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.emulate.openai_writer import OpenAIWriter
from stretto.emulate.prepared import AnswerTokens, PreparedRequest, as_long_as_allowed, prepare, prompts_of
from stretto.emulate.served_model import EmulatedModel
from stretto.model.errors import CapacityError
from stretto.wire import metrics, paths
from stretto.wire.errors import RequestRefused, malformed, unacceptable
from stretto.wire.fields import Fields, flag, read_body, text, token_ids
from stretto.wire.models import ModelCard, models_json, tokenize_json
from stretto.wire.requests import ChatRequest, CompletionRequest, GenerateRequest

VERSION = "0.32.0"
"""Version of vLLM whose answers are given."""


class LLMRoutes:
    """The handlers of an emulated LLM server by path, those of vLLM.

    Args:
        metrics_text: function that returns the text of `/metrics`.
        answer_tokens: decides how long answers are whose requests leave that to the model.
    """

    def __init__(
        self,
        replica: EmulatedLLM,
        served: EmulatedModel,
        gate: Gate,
        metrics_text: Callable[[], str],
        answer_tokens: AnswerTokens = as_long_as_allowed,
    ) -> None:
        self.replica = replica
        self.served = served
        self._gate = gate
        self._metrics_text = metrics_text
        self._answer_tokens = answer_tokens
        self._num_requests = 0
        self.table: dict[tuple[str, str], Handler] = {
            ("POST", paths.GENERATE["completions"]): self._complete,
            ("POST", paths.GENERATE["chat"]): self._chat,
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

    async def run(self, exchange: EmulatedExchange, prepared: PreparedRequest, writer: AnswerWriter) -> None:
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
            with exchange.until_left():
                await self._send(exchange, generation, is_streamed=prepared.options.stream)
        finally:
            generation.abort()

    async def _send(
        self, exchange: EmulatedExchange, generation: EmulatedGeneration, *, is_streamed: bool
    ) -> None:
        outbox, gate = generation.outbox, self._gate
        if not is_streamed:
            content, _ = await outbox.take()
            await gate.leave()
            if generation.is_lost:
                raise RequestRefused(LOST)
            await exchange.answer(200, content)
            return
        await exchange.begin_stream()
        outbox.direct = lambda part: gate.is_open and exchange.write_part(part)
        is_last = False
        while not is_last:
            content, is_last = await outbox.take()
            await gate.leave()
            await exchange.send_part(content, is_last=is_last)
            outbox.sent()

    async def _complete(self, exchange: EmulatedExchange) -> None:
        await self._generate(exchange, CompletionRequest.from_json(read_body(await exchange.body())))

    async def _chat(self, exchange: EmulatedExchange) -> None:
        await self._generate(exchange, ChatRequest.from_json(read_body(await exchange.body())))

    async def _generate(self, exchange: EmulatedExchange, request: GenerateRequest) -> None:
        prepared, number = self.prepare(request)
        await self.run(exchange, prepared, OpenAIWriter(prepared, self.served.name, number))

    async def _models(self, exchange: EmulatedExchange) -> None:
        served = self.served
        await exchange.answer_json(models_json([ModelCard(served.name, served.root, served.max_tokens)]))

    async def healthy(self, exchange: EmulatedExchange) -> None:
        """Answer that the server is well."""
        await exchange.answer(200, b"")

    async def _version(self, exchange: EmulatedExchange) -> None:
        await exchange.answer_json({"version": VERSION})

    async def _metrics(self, exchange: EmulatedExchange) -> None:
        await exchange.answer(200, self._metrics_text().encode(), metrics.CONTENT_TYPE)

    async def _tokenize(self, exchange: EmulatedExchange) -> None:
        body = read_body(await exchange.body())
        await exchange.answer_json(tokenize_json(self._ids(body), self.served.max_tokens))

    def _ids(self, body: Mapping[str, Any]) -> Sequence[int]:
        if "messages" in body:
            (ids,) = prompts_of(ChatRequest.from_json(body), self.served.tokens)
            return ids
        sent = Fields(body)
        prompt = sent.take("prompt", text, None)
        if prompt is None:
            raise malformed("prompt", "missing")
        is_prompt = sent.take("add_special_tokens", flag, True)
        return self.served.tokens.encode(prompt, is_prompt=is_prompt)

    async def _detokenize(self, exchange: EmulatedExchange) -> None:
        ids = Fields(read_body(await exchange.body())).take("tokens", token_ids, ())
        await exchange.answer_json({"prompt": self.served.tokens.decode(ids)})

    async def reset_cache(self, exchange: EmulatedExchange) -> None:
        """Evict all prefixes that no running request holds."""
        self.replica.clear_cache()
        await exchange.answer(200, b"")
