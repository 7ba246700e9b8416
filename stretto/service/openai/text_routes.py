"""Chats and completions: by an LLM engine, or a chat by an app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from stretto.cluster.recognition.messages import AskedProgram
from stretto.http import ClientLeft
from stretto.http.client.headers import Headers
from stretto.model.errors import ConfigError
from stretto.model.values import Document
from stretto.router.programs import RoutedProgram, asked_program
from stretto.runtime.runtime import Runtime
from stretto.service.apps.app_service import AppService
from stretto.service.apps.query_table import AppQuery
from stretto.service.bodies import read_json
from stretto.service.openai.app_chat import AppChat, AskedOfApp, asked_of_app
from stretto.service.openai.errors import unsupported
from stretto.service.openai.generation import Caller, Generator, finish_of
from stretto.service.openai.programs import ServedPrograms, name_of
from stretto.service.openai.replies import Reply, TextReply
from stretto.service.openai.served_models import ServedModels
from stretto.service.openai.wanted import WantedText, num_prompt_chars, wanted_chat, wanted_completion
from stretto.service.request import ServiceRequest, encode_json
from stretto.service.tenants import Tenant
from stretto.wire.answers import AnswerChoice, TokenCounts
from stretto.wire.fields import mapping
from stretto.wire.requests import ChatRequest, CompletionRequest

_CHARS_PER_TOKEN = 4
_MAX_CHARS = 500


class TextRoutes:
    """The handlers of chats and completions.

    Args:
        programs: recognises which programs requests belong to.
        documents: documents of chats with apps that bring none.
    """

    def __init__(
        self,
        runtime: Runtime,
        models: ServedModels,
        programs: ServedPrograms,
        apps: AppService,
        documents: Sequence[Document],
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._programs = programs
        self._apps = apps
        self._documents = documents
        self._generator = Generator(runtime)

    async def chat(self, request: ServiceRequest) -> None:
        """Answer a chat."""
        read = partial(read_chat, request.path, request.headers, request.tenant.name, self._models.app_names)
        model, wanted, asked = await request.read(read)
        if isinstance(wanted, WantedText):
            engine = self._models.llm(model)
            await self._answer(request, engine, wanted, model or engine, asked)
            return
        app = self._models.app(model)
        assert app is not None, "its name is that of an app"
        with self._programs.of(request, asked) as program:
            await self._answer_by_app(request, app, model, wanted, program)

    async def complete(self, request: ServiceRequest) -> None:
        """Answer a completion."""
        read = partial(read_completion, request.path, request.headers, request.tenant.name)
        model, wanted, asked = await request.read(read)
        engine = self._models.llm(model)
        await self._answer(request, engine, wanted, model or engine, asked)

    async def _answer(
        self,
        request: ServiceRequest,
        engine: str,
        wanted: WantedText,
        model: str,
        asked: AskedProgram | None,
    ) -> None:
        wanted = wanted.limited(request.tenant.limits.output_tokens)
        reply = TextReply(wanted, request.id, model)
        with (
            self._claimed(request.tenant, wanted),
            _naming(wanted.form_field),
            self._programs.of(request, asked, wanted.num_choices) as program,
        ):
            caller = Caller(request.tenant.name, name_of(program), wanted.objective)
            if wanted.stream:
                await request.unless_left(self._stream(request, engine, wanted, caller, reply, program))
                return
            answers = await request.unless_left(self._generator.whole(engine, wanted, caller))
            answer = encode_json(reply.whole(answers))
            if program is not None:
                program.answer.take_whole(answer)
        await request.answer(answer)

    async def _stream(
        self,
        request: ServiceRequest,
        engine: str,
        wanted: WantedText,
        caller: Caller,
        reply: TextReply,
        program: RoutedProgram | None,
    ) -> None:
        async with contextlib.aclosing(self._generator.streamed(engine, wanted, caller)) as pieces:
            async for index, piece in pieces:
                for event in reply.events(index, piece):
                    await _send(request, event, program)
        for event in reply.usage():
            await request.send_event(event)
        await request.end_events()

    @contextlib.contextmanager
    def _claimed(self, tenant: Tenant, wanted: WantedText) -> Iterator[None]:
        """Run the calls of a tenant within the block. The most tokens that they may take are spent.

        Raises:
            Refused: the tenant has too much running, or has spent its tokens.
        """
        num_tokens = (
            wanted.num_choices * wanted.max_tokens + num_prompt_chars(wanted.prompts) / _CHARS_PER_TOKEN
        )
        tenant.take_request(num_tokens, asyncio.get_running_loop().time())
        try:
            yield
        finally:
            tenant.end_request()

    async def _answer_by_app(
        self,
        request: ServiceRequest,
        app: AppChat,
        model: str,
        asked: AskedOfApp,
        program: RoutedProgram | None,
    ) -> None:
        checked = app.checked(asked, self._documents, name_of(program))
        started = await request.unless_left(self._apps.start(app.app, checked, request.tenant))
        reply = Reply("chat", request.id, model)
        try:
            if asked.stream:
                await request.unless_left(
                    self._stream_app(request, app, started, reply, program, asked.include_usage)
                )
                return
            await request.unless_left(self._apps.wait(started))
        except ClientLeft:
            started.query.cancel()
            raise
        choice = await _app_choice(app, started)
        answer = encode_json(reply.whole([choice], _counts(started)))
        if program is not None:
            program.answer.take_whole(answer)
        await request.answer(answer)

    async def _stream_app(
        self,
        request: ServiceRequest,
        app: AppChat,
        started: AppQuery,
        reply: Reply,
        program: RoutedProgram | None,
        has_usage: bool,
    ) -> None:
        """Send the answer of an app as it is generated, and at its end the sources."""
        has_begun = False
        async for piece in started.query.stream(app.answer):
            if not has_begun:
                has_begun = True
                for event in reply.opened(0):
                    await request.send_event(event)
            await _send(request, reply.chunk(AnswerChoice(text=piece)), program)
        await self._apps.wait(started)
        for event in () if has_begun else reply.opened(0):
            await request.send_event(event)
        choice = await _app_choice(app, started)
        if choice.sources:
            cited = AnswerChoice(sources=choice.sources, text_offset=len(choice.text))
            await request.send_event(reply.chunk(cited))
        await request.send_event(reply.chunk(AnswerChoice(finish=choice.finish)))
        if has_usage:
            await request.send_event(reply.usage(_counts(started)))
        await request.end_events()


@contextlib.contextmanager
def _naming(field: str | None) -> Iterator[None]:
    """Raise Refused in place of an engine's error about the form of an answer, which comes of `field`."""
    try:
        yield
    except ConfigError as error:
        if field is None:
            raise
        raise unsupported(field, error.message[:_MAX_CHARS]) from error


def read_chat(
    path: str, headers: Headers, tenant: str, apps: Collection[str], content: bytes
) -> tuple[str, WantedText | AskedOfApp, AskedProgram | None]:
    """Read the body of a chat; return its model, what it asks for, and by what its program is recognised.

    Args:
        apps: names of models that are apps.

    Raises:
        Refused, RequestRefused: something in it is wrong, or cannot be honoured.
    """
    body = mapping("", read_json(content, "the body"))
    chat = ChatRequest.from_json(body)
    wanted = asked_of_app(chat, body) if chat.model in apps else wanted_chat(chat, body)
    return chat.model, wanted, asked_program(path, headers, body, tenant)


def read_completion(
    path: str, headers: Headers, tenant: str, content: bytes
) -> tuple[str, WantedText, AskedProgram | None]:
    """Read the body of a completion. Returns and raises as `read_chat`."""
    body = mapping("", read_json(content, "the body"))
    completion = CompletionRequest.from_json(body)
    wanted = wanted_completion(completion, body)
    return completion.model, wanted, asked_program(path, headers, body, tenant)


async def _send(request: ServiceRequest, event: dict[str, object], program: RoutedProgram | None) -> None:
    """Send an event of an answer, by which its program is recognised later."""
    sent = await request.send_event(event)
    if program is not None:
        program.answer.feed(sent)


async def _app_choice(app: AppChat, started: AppQuery) -> AnswerChoice:
    """Return the answer of an app that has ended, with its sources."""
    outputs = await started.query
    answer = outputs[app.answer]
    own = [ending for ending in started.query.endings if app.answer in ending.outputs]
    finish = finish_of(own, started.query.usage, None)
    text = answer if isinstance(answer, str) else ""
    return AnswerChoice(text=text, finish=finish, sources=app.cited(outputs))


def _counts(started: AppQuery) -> TokenCounts:
    usage = started.query.usage
    return TokenCounts(usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens)
