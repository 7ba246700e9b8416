"""The requests of a run, with their texts: the lines that `stretto plan` reads, or an OpenAI Batch file.

A line of a Batch file has a `custom_id`, the `method` "POST", a `url` and a `body`. The body's `model` names
the node that the request is for, or a model that one node alone has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from stretto.engines.openai_wire.options import Options
from stretto.engines.openai_wire.paths import Api
from stretto.engines.openai_wire.requests import ChatRequest, CompletionRequest
from stretto.errors import ConfigError
from stretto.graph.graph import ROLES
from stretto.planner.application import Application, Node, Request
from stretto.planner.plan_files import NO_ANSWERS, parse_request, read_lines, tokens_of
from stretto.record import record

_BATCH_FIELDS = ("custom_id", "method", "url", "body")
_URLS: Mapping[str, Api] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_DECODED = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "stop", "min_tokens", "ignore_eos"),
)
"""Options that a decode has under the same names."""


@record
class Message:
    """One message of a prompt. The role None is that of the user, or of the model's plain text."""

    role: str | None
    text: str


@record
class RunRequest:
    """One request to run.

    Attributes:
        planned: the request as planners see it, in tokens.
        messages: the prompt.
        chunks: texts of the chunks of its document, for chains.
        decode: settings that it has of its own, by the names of `Decode`.
        api: API of the Batch file that it comes from; None for other lines.
        model: model that its line names.
    """

    planned: Request
    messages: tuple[Message, ...]
    chunks: tuple[str, ...] = ()
    decode: Mapping[str, Any] | None = None
    api: Api | None = None
    model: str = ""

    @property
    def id(self) -> str:
        """The request's `custom_id`."""
        return self.planned.id

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n".join(message.text for message in self.messages)


def read_run_requests(path: Path, app: Application) -> list[RunRequest]:
    """Read the requests of a run from a file of JSON lines.

    Raises:
        ConfigError: it cannot be read, has no requests, or a line is wrong; the message has its number.
    """
    known: dict[str, Mapping[str, Any]] = {}

    def read(found: Any) -> RunRequest:
        request = _checked(_request(found, app), app)
        if request.decode is None:
            return request
        return replace(request, decode=known.setdefault(repr(request.decode), request.decode))

    return read_lines(path, read, lambda request: request.id)


def _checked(request: RunRequest, app: Application) -> RunRequest:
    """Return a request that every node which it is for can run. Raises ConfigError."""
    names = {node.name for node in app.nodes}
    if unknown := [name for name in request.planned.nodes if name not in names]:
        raise ConfigError(f"there is no node {unknown[0]!r}; there are {', '.join(names)}")
    for node in app.nodes:
        if request.planned.nodes and node.name not in request.planned.nodes:
            continue
        if node.chain and not request.chunks:
            raise ConfigError(f"it has no chunks, which node {node.name!r} needs")
        if not node.chain and not request.messages and not node.prompt:
            raise ConfigError(f"it has no prompt, which node {node.name!r} needs")
    return request


def _request(found: Any, app: Application) -> RunRequest:
    if isinstance(found, dict) and not found.keys().isdisjoint(("method", "url", "body")):
        return _of_batch(found, app)
    planned = parse_request(found)
    if "prompt_tokens" in found:
        raise ConfigError("it has prompt_tokens; a run needs the text, as `prompt`")
    chunks = found.get("chunks", [])
    if not all(isinstance(chunk, str) for chunk in chunks):
        raise ConfigError("chunks must be texts; numbers of tokens can be planned, but not run")
    _check_unicode([found.get("prompt", ""), *chunks, planned.id])
    prompt = found.get("prompt", "")
    return RunRequest(planned, (Message(None, prompt),) if prompt else (), tuple(chunks))


def _of_batch(found: Mapping[str, Any], app: Application) -> RunRequest:
    if unknown := [name for name in found if name not in _BATCH_FIELDS]:
        raise ConfigError(f"unknown field {unknown[0]!r}; a Batch line has {', '.join(_BATCH_FIELDS)}")
    custom_id, url, body = (found.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        raise ConfigError(f"custom_id must be a text, got {short(custom_id)}")
    if found.get("method") != "POST":
        raise ConfigError(f"method must be 'POST', got {short(found.get('method'))}")
    if not isinstance(url, str) or url not in _URLS:
        raise ConfigError(f"url must be one of {', '.join(_URLS)}, got {short(url)}")
    if not isinstance(body, dict):
        raise ConfigError(f"body must be a mapping, got {short(body)}")
    api = _URLS[url]
    model, messages, options = _chat(body) if api == "chat" else _completion(body)
    _check_unicode([custom_id, *(message.text for message in messages)])
    node = _node_for(model, app)
    num_tokens = sum(tokens_of(message.text) for message in messages)
    planned = Request(custom_id, num_tokens, (), (node.name,), NO_ANSWERS)
    return RunRequest(planned, messages, (), _decode(options, node), api, model)


def _chat(body: Mapping[str, Any]) -> tuple[str, tuple[Message, ...], Options]:
    sent = ChatRequest.from_json(body)
    _check_left(sent.extra, tools=bool(sent.tools))
    messages: list[Message] = []
    for message in sent.messages:
        if message.role not in ROLES:
            raise ConfigError(f"a message's role must be one of {', '.join(ROLES)}, got {message.role!r}")
        if message.content is None or message.extra:
            raise ConfigError("a message must have a content and a role only")
        if not isinstance(message.content, str) and any(part["type"] != "text" for part in message.content):
            raise ConfigError("a message must be a text; other parts cannot be run")
        messages.append(Message(message.role, message.text))
    return sent.model, tuple(messages), sent.options


def _completion(body: Mapping[str, Any]) -> tuple[str, tuple[Message, ...], Options]:
    sent = CompletionRequest.from_json(body)
    _check_left(sent.extra, echo=sent.echo)
    if len(sent.prompts) != 1 or not isinstance(sent.prompts[0], str):
        raise ConfigError("prompt must be one text; write one line for each prompt")
    return sent.model, (Message(None, sent.prompts[0]),), sent.options


def _check_left(extra: Mapping[str, Any], **flags: bool) -> None:
    if unknown := [*extra, *(name for name, is_on in flags.items() if is_on)]:
        raise ConfigError(f"body: {unknown[0]!r} is not supported in a run")


def _decode(options: Options, node: Node) -> dict[str, Any]:
    """Return the settings of a decode that a Batch line has; refuse options that a decode has not."""
    known = {name: getattr(options, name) for name in _DECODED}
    plain = Options(**known)
    if options != plain:
        name = next(field for field in Options.__slots__ if getattr(options, field) != getattr(plain, field))
        raise ConfigError(f"body: {name!r} is not supported in a run")
    default = Options()
    found = {name: value for name, value in known.items() if value != getattr(default, name)}
    if found.get("top_k") == -1:
        del found["top_k"]
    return {**found, "max_tokens": min(found.get("max_tokens", node.max_tokens), node.max_tokens)}


def _node_for(model: str, app: Application) -> Node:
    named = [node for node in app.nodes if node.name == model]
    having = named or [node for node in app.nodes if node.model == model]
    if len(having) != 1:
        names = ", ".join(node.name for node in app.nodes)
        raise ConfigError(
            f"body: model is {model!r}; it must name a node ({names}), or the model of one node alone"
        )
    if having[0].chain:
        raise ConfigError(f"body: node {having[0].name!r} is a chain, whose requests need chunks")
    return having[0]


def _check_unicode(texts: Iterable[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"a text has half of a surrogate pair: {short(text)}") from error
