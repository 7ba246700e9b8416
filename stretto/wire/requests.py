"""The two requests for a text: a prompt to continue, and messages to answer.

`to_json` and `from_json` are inverse to each other. Fields without a meaning here are kept in `extra`, so
that a request that is read and written again loses nothing. `from_json` checks every value; a request that a
client builds is left to the server's checks.

Source: vLLM 0.32, `openai/completion/protocol.py`, `openai/chat_completion/protocol.py`. Differs: prompts as
embeddings are not read; messages are checked for their role and the form of their content alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stretto.wire.errors import malformed, unacceptable
from stretto.wire.fields import Fields, flag, integer, items, mapping, text, token_ids
from stretto.wire.options import MAX_LOGPROBS, Options, read_options

WirePrompt: TypeAlias = str | tuple[int, ...]

DEFAULT_COMPLETION_TOKENS = 16
"""Largest number of output tokens of a completion whose request has no `max_tokens`."""
MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A client's request to the completions API: continue one or more prompts.

    Attributes:
        model: a name the server knows; "" is its own.
        prompts: texts or token ids. Choices are numbered prompt by prompt.
        echo: whether the prompt is part of the answer.
        extra: further fields, as they are sent.
    """

    prompts: tuple[WirePrompt, ...]
    model: str = ""
    options: Options = field(default_factory=Options)
    echo: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the JSON body of the completion request."""
        prompts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in self.prompts]
        return {
            **({"model": self.model} if self.model else {}),
            "prompt": prompts[0] if len(prompts) == 1 else prompts,
            **self.options.to_json(),
            **({} if self.options.logprobs is None else {"logprobs": self.options.logprobs}),
            **({"echo": True} if self.echo else {}),
            **self.extra,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> CompletionRequest:
        """Read and check the JSON body of a completion request. Raises RequestRefused if it is invalid."""
        sent = Fields(body)
        echo = sent.take("echo", flag, False)
        prompts = sent.take("prompt", _prompts, ())
        if not prompts:
            raise unacceptable("prompt", "prompt must be provided and non-empty.")
        options = read_options(
            sent,
            max_tokens=sent.take("max_tokens", integer(0 if echo else 1), None),
            logprobs=sent.take("logprobs", integer(-1, MAX_LOGPROBS), None),
        )
        model = sent.take("model", text, "")
        return CompletionRequest(model=model, prompts=prompts, options=options, echo=echo, extra=sent.left())


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat, from the user, the model or the system.

    Attributes:
        content: a text, parts as JSON (`{"type": "text", "text": ...}`, images and others), or nothing.
        extra: further fields: tool calls, a name.
    """

    role: str
    content: str | tuple[Mapping[str, Any], ...] | None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text parts of the message's content, joined."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part["text"] for part in self.content if part["type"] == "text")

    def to_json(self) -> dict[str, object]:
        """Return the JSON of the chat message."""
        content = list(self.content) if isinstance(self.content, tuple) else self.content
        return {"role": self.role, "content": content, **self.extra}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A client's request to the chat API: answer the messages of a chat.

    Attributes:
        model: a name the server knows; "" is its own.
        tools: functions that the model may call, as JSON.
        extra: further fields, as they are sent.
    """

    messages: tuple[ChatMessage, ...]
    model: str = ""
    options: Options = field(default_factory=Options)
    tools: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the JSON body of the chat request."""
        logprobs = self.options.logprobs
        return {
            **({"model": self.model} if self.model else {}),
            "messages": [message.to_json() for message in self.messages],
            **self.options.to_json(),
            **({} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}),
            **({"tools": list(self.tools)} if self.tools else {}),
            **self.extra,
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> ChatRequest:
        """Read and check the JSON body of a chat request. Raises RequestRefused if it is invalid."""
        sent = Fields(body)
        messages = sent.take("messages", items(_message), ())
        if not messages:
            raise unacceptable("messages", "messages must have at least one message.")
        tools = sent.take("tools", items(mapping), None)
        if tools == ():
            raise unacceptable("tools", "`tools` must not be an empty array. Leave it out instead.")
        older = sent.take("max_tokens", integer(1), None)
        options = read_options(
            sent, max_tokens=sent.take("max_completion_tokens", integer(1), older), logprobs=_logprobs(sent)
        )
        model = sent.take("model", text, "")
        return ChatRequest(
            model=model, messages=messages, options=options, tools=tools or (), extra=sent.left()
        )


GenerateRequest: TypeAlias = CompletionRequest | ChatRequest


def _prompts(name: str, value: Any) -> tuple[WirePrompt, ...]:
    """Read one prompt, or a list of several."""
    if isinstance(value, str):
        return (text(name, value),) if value else ()
    if not isinstance(value, list):
        raise malformed(name, "neither a text, nor token ids, nor a list of such")
    if value and not isinstance(value[0], str | list):
        return (token_ids(name, value),)
    return items(_prompt, max_items=MAX_PROMPTS)(name, value)


def _prompt(name: str, value: Any) -> WirePrompt:
    prompt = text(name, value) if isinstance(value, str) else token_ids(name, value)
    if not prompt:
        raise unacceptable("prompt", "The prompt cannot be empty.")
    return prompt


def _message(name: str, value: Any) -> ChatMessage:
    sent = Fields(mapping(name, value))
    role = sent.take("role", lambda _, role: text(f"{name}.role", role), "")
    if not role:
        raise malformed(f"{name}.role", "missing")
    content = sent.take("content", lambda _, content: _content(f"{name}.content", content), None)
    return ChatMessage(role, content, sent.left())


def _content(name: str, value: Any) -> str | tuple[Mapping[str, Any], ...]:
    return text(name, value) if isinstance(value, str) else items(_part)(name, value)


def _part(name: str, value: Any) -> Mapping[str, Any]:
    part = mapping(name, value)
    if text(f"{name}.type", part.get("type")) == "text":
        text(f"{name}.text", part.get("text"))
    return part


def _logprobs(sent: Fields) -> int | None:
    """Return how many of the likeliest tokens a chat asks for; None if it asks for no probabilities."""
    is_asked = sent.take("logprobs", flag, False)
    top = sent.take("top_logprobs", integer(-1, MAX_LOGPROBS), 0)
    if top and not is_asked:
        raise unacceptable("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
    return top if is_asked else None
