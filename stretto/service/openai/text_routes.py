"""Chats, completions and responses: by an LLM engine, or a chat or response by an app."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from stretto.cluster.recognition.messages import AskedProgram
from stretto.http import ClientLeft
from stretto.http.client.headers import Headers
from stretto.model.errors import ConfigError
from stretto.model.values import Document
from stretto.router.programs import RoutedProgram, asked_program
from stretto.runtime.runtime import Runtime
from stretto.service.apps.app_service import AppService
from stretto.service.apps.query_request import CheckedRequest
from stretto.service.apps.query_table import AppQuery
from stretto.service.bodies import untyped_json
from stretto.service.openai.app_chat import AppChat, AskedOfApp, asked_of_app
from stretto.service.openai.errors import naming_as_sent, unsupported
from stretto.service.openai.generation import CallOwner, Generator, finish_of
from stretto.service.openai.programs import ServedPrograms, name_of
from stretto.service.openai.replies import CompletionForm, ReplyForm, TextReply
from stretto.service.openai.served_models import ServedModels
from stretto.service.openai.waits import QueryWaits
from stretto.service.openai.wanted import WantedText, num_prompt_chars, wanted_chat, wanted_completion
from stretto.service.request import ServiceRequest, encode_json
from stretto.wire.answers import AnswerChoice, TokenCounts
from stretto.wire.fields import mapping
from stretto.wire.requests import ChatRequest, CompletionRequest
from stretto.wire.response_replies import ECHOED, ResponseReply
from stretto.wire.response_requests import chat_of

_CHARS_PER_TOKEN = 4
_MAX_CHARS = 500


class TextRoutes:
    """The handlers of chats, completions and responses.

    Args:
        programs: recognises which programs requests belong to.
        documents: documents of chats with apps that bring none.
        waits: an observer of the runtime, for a header of answers; with None, they have none.
    """

    def __init__(
        self,
        runtime: Runtime,
        models: ServedModels,
        programs: ServedPrograms,
        apps: AppService,
        documents: Sequence[Document],
        waits: QueryWaits | None = None,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._programs = programs
        self._apps = apps
        self._documents = documents
        self._generator = Generator(runtime, waits)

    async def chat(self, request: ServiceRequest) -> None:
        """Answer a chat."""
        await self._converse(request, is_response=False)

    async def respond(self, request: ServiceRequest) -> None:
        """Answer a request for a response, as the chat that asks for the same."""
        await self._converse(request, is_response=True)

    async def _converse(self, request: ServiceRequest, *, is_response: bool) -> None:
        headers, tenant = request.headers, request.tenant.name
        read = partial(read_chat, request.path, headers, tenant, self._models.app_names, is_response)
        chat = await request.read(read)
        wanted = chat.wanted

        def form(model: str, tier: str | None = None) -> ReplyForm:
            if is_response:
                return ResponseReply(request.id, model, chat.echoed)
            return CompletionForm("chat", request.id, model, tier, has_usage=wanted.include_usage)

        with naming_as_sent() if is_response else contextlib.nullcontext():
            if isinstance(wanted, WantedText):
                engine = self._models.llm(chat.model)
                answer_form = form(chat.model or engine, wanted.tier)
                await self._answer(request, engine, wanted, answer_form, chat.asked)
                return
            app = self._models.app(chat.model)
            assert app is not None, "its name is that of an app"
            with self._programs.of(request, chat.asked) as program:
                checked = app.checked(wanted, self._documents, name_of(program))
                await self._answer_by_app(request, app, checked, form(chat.model), program)

    async def complete(self, request: ServiceRequest) -> None:
        """Answer a completion."""
        read = partial(read_completion, request.path, request.headers, request.tenant.name)
        model, wanted, asked = await request.read(read)
        engine = self._models.llm(model)
        named, has_usage = model or engine, wanted.include_usage
        form = CompletionForm("completions", request.id, named, wanted.tier, has_usage=has_usage)
        await self._answer(request, engine, wanted, form, asked)

    async def _answer(
        self,
        request: ServiceRequest,
        engine: str,
        wanted: WantedText,
        form: ReplyForm,
        asked: AskedProgram | None,
    ) -> None:
        wanted = wanted.limited(request.tenant.limits.output_tokens)
        reply = TextReply(wanted, form, request.id)
        with (
            self._claimed(request, wanted),
            _naming(wanted.form_field),
            self._programs.of(request, asked, wanted.num_choices) as program,
        ):
            objective = request.admitted.objective or wanted.objective
            caller = CallOwner(request.tenant.name, name_of(program), objective, request.told)
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
        caller: CallOwner,
        reply: TextReply,
        program: RoutedProgram | None,
    ) -> None:
        async with contextlib.aclosing(self._generator.streamed(engine, wanted, caller)) as pieces:
            async for index, piece in pieces:
                for event in reply.events(index, piece):
                    await _send(request, event, program)
        for event in reply.ended():
            await _send(request, event, program)
        await request.end_events(reply.form.last)

    @contextlib.contextmanager
    def _claimed(self, request: ServiceRequest, wanted: WantedText) -> Iterator[None]:
        """Run the calls of a tenant within the block. The most tokens that they may take are spent.

        Raises:
            Refused: the tenant has too much running, or has spent its tokens.
        """
        num_tokens = (
            wanted.num_choices * wanted.max_tokens + num_prompt_chars(wanted.prompts) / _CHARS_PER_TOKEN
        )
        end = request.claim(num_tokens)
        try:
            yield
        finally:
            end()

    async def _answer_by_app(
        self,
        request: ServiceRequest,
        app: AppChat,
        checked: CheckedRequest,
        form: ReplyForm,
        program: RoutedProgram | None,
    ) -> None:
        if (objective := request.admitted.objective) is not None:
            own = msgspec.structs.replace(checked.asked, objective=objective)
            checked = replace(checked, asked=own)
        started = await request.unless_left(self._apps.start(app.app, checked, request.tenant))
        try:
            if checked.asked.stream:
                await request.unless_left(self._stream_app(request, app, started, form, program))
                return
            await request.unless_left(self._apps.wait(started))
        except ClientLeft:
            started.query.cancel()
            raise
        choice = await _app_choice(app, started)
        answer = encode_json(form.whole([choice], _counts(started)))
        if program is not None:
            program.answer.take_whole(answer)
        await request.answer(answer)

    async def _stream_app(
        self,
        request: ServiceRequest,
        app: AppChat,
        started: AppQuery,
        form: ReplyForm,
        program: RoutedProgram | None,
    ) -> None:
        """Send the answer of an app as it is generated, and at its end the sources."""
        opening = form.opened(0)
        async for piece in started.query.stream(app.answer):
            for event in [*opening, *form.chunk(AnswerChoice(text=piece))]:
                await _send(request, event, program)
            opening = []
        await self._apps.wait(started)
        choice = await _app_choice(app, started)
        if choice.sources:
            cited = AnswerChoice(sources=choice.sources, text_offset=len(choice.text))
            opening += form.chunk(cited)
        ending = form.chunk(AnswerChoice(finish=choice.finish))
        for event in [*opening, *ending, *form.ended(_counts(started))]:
            await _send(request, event, program)
        await request.end_events(form.last)


@contextlib.contextmanager
def _naming(field: str | None) -> Iterator[None]:
    """Raise Refused in place of an engine's error about the form of an answer, which comes of `field`."""
    try:
        yield
    except ConfigError as error:
        if field is None:
            raise
        raise unsupported(field, error.message[:_MAX_CHARS]) from error


@dataclass(frozen=True, slots=True)
class ReadChat:
    """What the body of a chat says.

    Attributes:
        wanted: what it asks of an LLM, or of an app.
        asked: what its program is recognised by; None if it has nothing of that.
        echoed: fields of a request for a response that stand in the response.
    """

    model: str
    wanted: WantedText | AskedOfApp
    asked: AskedProgram | None
    echoed: Mapping[str, Any]


def read_chat(
    path: str, headers: Headers, tenant: str, apps: Collection[str], is_response: bool, content: bytes
) -> ReadChat:
    """Read the body of a chat, or of a request for a response that is read as one.

    Args:
        apps: names of models that are apps.

    Raises:
        Refused, RequestRefused: something in it is wrong, or cannot be honoured.
    """
    body = mapping("", untyped_json(content, "the body"))
    sent = chat_of(body) if is_response else body
    with naming_as_sent() if is_response else contextlib.nullcontext():
        chat = ChatRequest.from_json(sent)
        wanted = asked_of_app(chat, sent) if chat.model in apps else wanted_chat(chat, sent)
    echoed = {name: body[name] for name in ECHOED if is_response and name in body}
    return ReadChat(chat.model, wanted, asked_program(path, headers, body, tenant), echoed)


def read_completion(
    path: str, headers: Headers, tenant: str, content: bytes
) -> tuple[str, WantedText, AskedProgram | None]:
    """Read the body of a completion: its model, what it asks for, and by what its program is recognised.

    Raises:
        Refused, RequestRefused: as `read_chat`.
    """
    body = mapping("", untyped_json(content, "the body"))
    completion = CompletionRequest.from_json(body)
    wanted = wanted_completion(completion, body)
    return completion.model, wanted, asked_program(path, headers, body, tenant)


async def _send(request: ServiceRequest, event: dict[str, object], program: RoutedProgram | None) -> None:
    """Send an event of an answer, by which its program is recognised later."""
    sent = await request.send_event(event, str(event.get("type", "")))
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
