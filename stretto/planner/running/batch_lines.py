"""Lines of an OpenAI Batch file as requests of a run.

A line has a `custom_id`, the `method` "POST", a `url` and a `body`. Most lines of a file differ in their
texts alone, so what the other fields of a body mean is looked up once they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from stretto.graph.graph import ROLES
from stretto.graph.one_call import PromptMessage
from stretto.http.refusals import UNSUPPORTED, Refused
from stretto.model.errors import ConfigError, UserError
from stretto.model.values import is_text
from stretto.planner.application import MAX_NUMBER, Application, AppRequest, ModelNode, check_model
from stretto.planner.plan_files import NO_ANSWERS
from stretto.planner.running.request_lines import read_store
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import RunRequest
from stretto.planner.running.sent_lines import ReadLine, sent_line
from stretto.planner.token_counts import tokens_of
from stretto.wire.batch_lines import BATCH_FIELDS, line_name
from stretto.wire.options import Options
from stretto.wire.paths import Api
from stretto.wire.requests import DEFAULT_COMPLETION_TOKENS, ChatRequest, CompletionRequest

_FIELDS = frozenset(BATCH_FIELDS)
DEFAULT_TOKENS: Mapping[Api, int] = {"chat": 1024, "completions": DEFAULT_COMPLETION_TOKENS}
"""Longest answer to a line without `max_tokens`, where no app limits it, by API."""
_URLS: Mapping[str, Api] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_TEXTS = ("messages", "prompt")
_MOST_KNOWN = 4096
_NO_LIMIT = MAX_NUMBER
"""Longest answer of a node whose lines alone limit it."""
_MESSAGE = frozenset(("role", "content"))
_LABELS = frozenset(("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"))
"""Fields of a body that change no answer here: labels, and choices of OpenAI's own service."""
_ROLES = {"developer": "system"}
"""Roles that are called otherwise here."""
_UNSUPPORTED = "body: {!r} is not supported in a run, except at servers that run already (--url)"
_DECODED = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "stop", "min_tokens", "ignore_eos"),
)
"""Options that a decode has under the same names."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """The meaning of the fields of a body, except for its texts."""

    api: Api
    model: str
    nodes: tuple[str, ...]
    decode: Mapping[str, Any]


class BatchLines:
    """The reader of the lines of a Batch file.

    Args:
        node_for: returns the node that the model of a line stands for. May raise ConfigError.
        hands_on: whether servers get the lines as they are, and say themselves what is wrong with a body.
        door: reads lines that ask for more than a call of a node can, which OpenAI's API in this process gets
            as they are; None refuses them.
    """

    def __init__(
        self, node_for: Callable[[str], ModelNode], hands_on: bool = False, door: ReadLine | None = None
    ) -> None:
        self._node_for = node_for
        self._hands_on = hands_on
        self._door = door
        self._known: dict[tuple[str, str], _Settings] = {}

    def read(self, found: Mapping[str, Any]) -> RunRequest:
        """Return the request that the JSON of a line describes. Raises UserError if it cannot be run."""
        if not _FIELDS.issuperset(found):
            unknown = next(name for name in found if name not in _FIELDS)
            raise ConfigError(f"unknown field {unknown!r}; a Batch line has {', '.join(BATCH_FIELDS)}")
        custom_id = line_name(found.get("custom_id"), found.get("method"))
        check_texts([custom_id])
        url, body = found.get("url"), found.get("body")
        if not isinstance(body, dict):
            raise ConfigError(f"body must be a mapping, got {short(body)}")
        if self._hands_on and isinstance(url, str):
            return self._handed_on(custom_id, url, body)
        try:
            return self._for_node(custom_id, url, body)
        except UserError:
            if self._door is None or not isinstance(url, str):
                raise
            return self._for_door(custom_id, url, body, self._door)

    def _for_node(self, custom_id: str, url: object, body: dict[str, Any]) -> RunRequest:
        """Return the call of a node that a line asks for. Raises UserError if it asks for more."""
        if not isinstance(url, str) or url not in _URLS:
            raise ConfigError(f"url must be one of {', '.join(_URLS)}, got {short(url)}")
        others = body.copy()
        for name in _TEXTS:
            others.pop(name, None)
        key = url, repr(others)
        settings = self._known.get(key)
        messages = None if settings is None else _plain_messages(body, settings.api)
        if settings is None or messages is None:
            messages, settings = self._whole(_URLS[url], body)
            if len(self._known) < _MOST_KNOWN:
                settings = self._known.setdefault(key, settings)
        texts = [message.text for message in messages]
        check_texts(texts)
        num_tokens = sum(map(tokens_of, texts))
        planned = AppRequest(
            custom_id, num_tokens, (), settings.nodes, NO_ANSWERS, settings.decode["max_tokens"]
        )
        return RunRequest(planned, messages, (), settings.decode, settings.api, settings.model)

    def _handed_on(self, custom_id: str, url: str, body: Mapping[str, Any]) -> RunRequest:
        model, node = self._model_of(body)
        sent = sent_line(url, body, node, None if node.max_tokens == _NO_LIMIT else node.max_tokens)
        planned = AppRequest(custom_id, 0, (), (node.name,), NO_ANSWERS)
        return RunRequest(planned, (), model=model, sent=sent)

    def _for_door(self, custom_id: str, url: str, body: Mapping[str, Any], door: ReadLine) -> RunRequest:
        """Return the request of a line that OpenAI's API in this process gets. A single answer is greedy,
        unless the line says otherwise, as those of other lines are.
        """
        model, node = self._model_of(body)
        api = _URLS.get(url, "chat")
        limit = DEFAULT_TOKENS[api] if node.max_tokens == _NO_LIMIT else node.max_tokens
        usual = {"temperature": 0} if body.get("n") in (None, 1) else {}
        sent = sent_line(url, {**usual, **body}, node, limit)
        try:
            prompt, max_tokens = door(sent)
        except UserError as error:
            is_mistake = not isinstance(error, Refused) or error.code != UNSUPPORTED
            other = "" if is_mistake else "; a server that runs already (--url) may take it"
            raise ConfigError(f"body: {error.message}{other}") from error
        texts = [message.text for message in prompt]
        check_texts(texts)
        planned = AppRequest(custom_id, sum(map(tokens_of, texts)), (), (node.name,), NO_ANSWERS, max_tokens)
        return RunRequest(planned, tuple(prompt), (), {"max_tokens": max_tokens}, api, model, sent)

    def _model_of(self, body: Mapping[str, Any]) -> tuple[str, ModelNode]:
        """Return the model that a body names, and its node."""
        model = body.get("model")
        if not isinstance(model, str):
            raise ConfigError(f"body: model must be a text, got {short(model)}")
        return model, self._node_for(model)

    def _whole(self, api: Api, body: Mapping[str, Any]) -> tuple[tuple[PromptMessage, ...], _Settings]:
        """Return the messages of a body, and what its other fields mean."""
        model, messages, options = _chat(body) if api == "chat" else _completion(body)
        node = self._node_for(model)
        return messages, _Settings(api, model, (node.name,), _decode(options, node, api))


def is_batch_line(found: Any) -> bool:
    """Return whether the JSON of a line has a field that only lines of Batch files have."""
    return isinstance(found, dict) and ("body" in found or "method" in found or "url" in found)


def read_batch_application(
    path: Path,
    hands_on: bool = False,
    door: ReadLine | None = None,
    check_known: Callable[[str], object] = str,
) -> tuple[Application, RequestStore]:
    """Read a Batch file as an application by itself: each model that a line names is a node.

    The longest answer of a node is the longest that one of its lines allows. A line that is wrong is refused
    alone.

    Args:
        hands_on, door: see `BatchLines`.
        check_known: checks a model, once, that lines name. Raises ConfigError if nothing answers for it.

    Raises:
        ConfigError: it cannot be read, has no requests that can be run, or a line is no JSON object.
    """
    nodes: dict[str, ModelNode] = {}
    unknown: dict[str, str] = {}

    def node_for(model: str) -> ModelNode:
        if not model:
            raise ConfigError("body: it has no model")
        if not model.isprintable():
            raise ConfigError(f"body: model must have printable characters, got {model!r}")
        check_model(model)
        if model not in nodes and model not in unknown:
            try:
                check_known(model)
                nodes[model] = ModelNode(model, model, _NO_LIMIT)
            except ConfigError as error:
                unknown[model] = f"body: {error.message}"
        if model in unknown:
            raise ConfigError(unknown[model])
        return nodes[model]

    batch = BatchLines(node_for, hands_on, door)

    def read(found: Any) -> RunRequest:
        if not isinstance(found, dict):
            raise ConfigError(f"a line of a Batch file is a mapping, got {short(found)}")
        if not is_batch_line(found):
            raise ConfigError("it has no url and body, as a Batch line has; other requests need an APP")
        return batch.read(found)

    requests = read_store(path, read, lambda found: isinstance(found, dict))
    if hands_on:
        used = {kind.model for kind, _ in requests.kinds()}
        return Application(path.stem, [nodes[name] for name in nodes if name in used]), requests
    longest: dict[str, int] = {}
    for kind, _ in requests.kinds():
        assert kind.max_tokens is not None
        longest[kind.model] = max(longest.get(kind.model, 1), kind.max_tokens)
    limited = [replace(nodes[name], max_tokens=tokens) for name, tokens in longest.items()]
    return Application(path.stem, limited), requests


def _plain_messages(body: Mapping[str, Any], api: Api) -> tuple[PromptMessage, ...] | None:
    """Return the messages of a body that has a usual form, or None. The others are read with all checks."""
    if api == "completions":
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt or "messages" in body:
            return None
        return (PromptMessage(None, prompt),)
    messages = body.get("messages")
    if type(messages) is not list or not messages or "prompt" in body:
        return None
    found: list[PromptMessage] = []
    for message in messages:
        if type(message) is not dict or message.keys() != _MESSAGE:
            return None
        role, content = message["role"], message["content"]
        if type(content) is not str or type(role) is not str or role not in ROLES:
            return None
        found.append(PromptMessage(role, content))
    return tuple(found)


def _chat(body: Mapping[str, Any]) -> tuple[str, tuple[PromptMessage, ...], Options]:
    sent = ChatRequest.from_json(body)
    _check_left(sent.extra, tools=bool(sent.tools))
    messages: list[PromptMessage] = []
    for message in sent.messages:
        role = _ROLES.get(message.role, message.role)
        if role not in ROLES:
            raise ConfigError(f"a message's role must be one of {', '.join(ROLES)}, got {message.role!r}")
        if message.content is None or message.extra:
            raise ConfigError("a message must have a content and a role only")
        if not isinstance(message.content, str) and any(part["type"] != "text" for part in message.content):
            raise ConfigError("a message must be a text; other parts cannot be run")
        messages.append(PromptMessage(role, message.text))
    return sent.model, tuple(messages), sent.options


def _completion(body: Mapping[str, Any]) -> tuple[str, tuple[PromptMessage, ...], Options]:
    sent = CompletionRequest.from_json(body)
    _check_left(sent.extra, echo=sent.echo)
    if len(sent.prompts) != 1 or not isinstance(sent.prompts[0], str):
        raise ConfigError("prompt must be one text; write one line for each prompt")
    return sent.model, (PromptMessage(None, sent.prompts[0]),), sent.options


def _check_left(extra: Mapping[str, Any], **flags: bool) -> None:
    unknown = [name for name in extra if name not in _LABELS]
    if unknown := [*unknown, *(name for name, is_on in flags.items() if is_on)]:
        raise ConfigError(_UNSUPPORTED.format(unknown[0]))


def _decode(options: Options, node: ModelNode, api: Api) -> dict[str, Any]:
    """Return the settings of a decode that a Batch line has; refuse options that a decode has not."""
    known = {name: getattr(options, name) for name in _DECODED}
    plain = Options(**known, form=options.form)
    if options != plain:
        name = next(field for field in Options.__slots__ if getattr(options, field) != getattr(plain, field))
        raise ConfigError(_UNSUPPORTED.format(name))
    if options.max_tokens is not None and options.max_tokens > MAX_NUMBER:
        raise ConfigError(f"body: max_tokens must be at most {MAX_NUMBER}, got {options.max_tokens}")
    default = Options()
    found = {name: value for name, value in known.items() if value != getattr(default, name)}
    if found.get("top_k") == -1:
        del found["top_k"]
    usual = DEFAULT_TOKENS[api] if node.max_tokens == _NO_LIMIT else node.max_tokens
    if options.form is not None:
        found |= options.form.decode_settings()
    return {**found, "max_tokens": min(found.get("max_tokens", usual), node.max_tokens)}


def check_texts(texts: Iterable[str]) -> None:
    """Check that texts can be written as UTF-8. Raises ConfigError if one cannot."""
    for text in texts:
        if not is_text(text):
            raise ConfigError(f"a text has half of a surrogate pair: {short(text)}")
