"""Apps that answer chats: the last message of the user is the question, files in messages are documents.

Settings of models have no meaning for an app, so they are refused by name. Messages before the last one of
the user are not part of the question.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.apps.template import Template
from stretto.model.values import Chunk, Document, Hit
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.apps.inputs import UnparsedDocument, document_name
from stretto.service.apps.query_request import CheckedRequest, QueryRequest
from stretto.service.openai.errors import invalid, unsupported
from stretto.service.openai.wanted import checked_stream
from stretto.wire.answers import CitedSource
from stretto.wire.options import Options
from stretto.wire.requests import ChatMessage, ChatRequest

_SOURCES = ("list[hit]", "list[chunk]")
_DOCUMENTS = "list[document]"
_HONOURED = ("stream", "include_usage")
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")


@dataclass(frozen=True, slots=True)
class AskedOfApp:
    """What a chat asks of an app.

    Attributes:
        question: text of the last message of the user.
        place: place of that in the body.
        uploads: files in messages of the user.
    """

    question: str
    place: str
    uploads: tuple[UnparsedDocument, ...]
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class AppChat:
    """An app that answers chats.

    Attributes:
        question: name of the app's input for the question.
        documents: name of the input for documents; None if the app takes none.
        answer: name of the output that is the answer.
        sources: name of the output that lists sources; None if the app has none.
    """

    app: DeployedApp
    question: str
    documents: str | None
    answer: str
    sources: str | None

    @property
    def name(self) -> str:
        """Name of the app."""
        return self.app.name

    def checked(self, asked: AskedOfApp, usual: Sequence[Document], program: str) -> CheckedRequest:
        """Return a chat as a request for a run of the app; `usual` are the documents of a chat that brings
        none.

        Raises:
            Refused: something in it has no meaning for the app.
        """
        inputs: dict[str, object] = {self.question: asked.question}
        uploads = list(asked.uploads)
        if self.documents is None:
            if uploads:
                raise unsupported(uploads[0].place, f"the app {self.name!r} reads no documents")
        elif not uploads and not usual:
            raise invalid(
                asked.place,
                f"the app {self.name!r} answers from documents: give one as a part of type 'file'",
            )
        else:
            inputs[self.documents] = uploads or list(usual)
        return CheckedRequest(QueryRequest(stream=asked.stream, program=program), inputs, {})

    def cited(self, outputs: Mapping[str, object]) -> tuple[CitedSource, ...]:
        """Return the sources of an answer, each once."""
        found = outputs.get(self.sources or "")
        chunks = (
            [one.chunk if isinstance(one, Hit) else one for one in found] if isinstance(found, list) else []
        )
        cited = (CitedSource(chunk.source, chunk.place) for chunk in chunks if isinstance(chunk, Chunk))
        return tuple(dict.fromkeys(cited))


def app_chat(app: DeployedApp) -> AppChat | None:
    """Return an app as one that answers chats; None if it takes more than a question and documents, or
    answers no text.
    """
    template: Template = app.template
    texts = [name for name, type_ in template.inputs if type_ == "text"]
    documents = [name for name, type_ in template.inputs if type_ == _DOCUMENTS]
    if len(texts) != 1 or len(documents) > 1 or len(template.inputs) > len(texts) + len(documents):
        return None
    if not app.texts:
        return None
    answer = "answer" if "answer" in app.texts else app.texts[0]
    sources = next((name for name, type_ in app.outputs.items() if type_ in _SOURCES), None)
    return AppChat(app, texts[0], documents[0] if documents else None, answer, sources)


def asked_of_app(request: ChatRequest, body: Mapping[str, Any]) -> AskedOfApp:
    """Return what a chat asks of an app; `body` is the JSON that it was read from.

    Raises:
        Refused: something in it is wrong, or has no meaning for an app.
    """
    _check_options(request, body)
    number, last = _last_question(request.messages)
    uploads, options = tuple(_uploads(request.messages)), request.options
    place = f"messages.{number}.content"
    return AskedOfApp(last.text, place, uploads, options.stream, options.include_usage)


def _check_options(request: ChatRequest, body: Mapping[str, Any]) -> None:
    default, options = Options(), request.options
    checked_stream(options, body)
    for name in Options.__slots__:
        if name not in _HONOURED and getattr(options, name) != getattr(default, name):
            param = "response_format" if name == "form" else name
            raise unsupported(param, f"{param} has no meaning for an app; leave it out")
    extra = {name: value for name, value in request.extra.items() if value is not None}
    others = ["tools"] if request.tools else [name for name in extra if name not in _LABELS]
    if others:
        raise unsupported(others[0], f"{others[0]} has no meaning for an app; leave it out")


def _last_question(messages: Sequence[ChatMessage]) -> tuple[int, ChatMessage]:
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            return place, messages[place]
    raise invalid("messages", "there is no message of the user, which is the question")


def _uploads(messages: Sequence[ChatMessage]) -> Iterator[UnparsedDocument]:
    """Iterate over the files in the messages of the user."""
    for at, message in enumerate(messages):
        if message.role != "user" or message.content is None or isinstance(message.content, str):
            continue
        for number, part in enumerate(message.content):
            place = f"messages.{at}.content.{number}"
            if part["type"] == "file":
                yield _upload(part.get("file"), place)
            elif part["type"] != "text":
                raise unsupported(place, f"parts of type {part['type']!r:.80} cannot be read by an app")


def _upload(file: Any, place: str) -> UnparsedDocument:
    if not isinstance(file, dict) or not isinstance(file.get("file_data"), str):
        raise unsupported(
            f"{place}.file", "a file has a filename and file_data in base64; ids are unknown here"
        )
    name = document_name(file.get("filename"), f"{place}.file.filename")
    data = file["file_data"]
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return UnparsedDocument(name, base64.b64decode(data, validate=True), None, place)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{place}.file.file_data", f"cannot be decoded: {error}") from error
