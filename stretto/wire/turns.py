"""The turns of a prompt and of its answer, as far as a program is recognised by them: in all of OpenAI's APIs
and in Anthropic's, one form for what a model says.

Heads that may change with every call do not count: system prompts often hold a time. Neither do tools. An
answer comes back in a later prompt in another form than it was sent: without thoughts, with other spaces in
the arguments of calls, in several items. What is left out here is what clients change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from stretto.cluster.recognition.anchors import LEAST_ANSWER
from stretto.cluster.recognition.fingerprints import (
    MODEL,
    MOST_TURNS,
    ChatPrint,
    PromptPrint,
    TextPrint,
    Turn,
)

Call: TypeAlias = tuple[str, str]
"""A call of a tool: its name and its arguments as JSON."""

_MOST_TEXT = 4_000_000
"""Characters of a prompt; nothing is made of a longer one, as hashing it takes milliseconds."""
_HEADS = ("system", "developer")
_MOST_SPACED = 1024
"""Characters of arguments whose spaces are left out."""
_MOST_PART = 256
"""Characters of a value that is no text, such as the data of an image, which are kept as they are."""
_MOST_DEPTH = 4
_STRING = re.compile(rf'"((?:[^"\\]|\\.){{{LEAST_ANSWER},}}+)')
_ESCAPES = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def read_prompt(path: str, fields: Mapping[str, Any], tenant: str) -> PromptPrint | None:
    """Return the fingerprint of a request's prompt; None if it has none, several, or token ids."""
    api = path.rsplit("/", 1)[-1]
    if api == "generate" or (api == "completions" and "messages" not in fields):
        text = fields.get("text" if api == "generate" else "prompt")
        return TextPrint(tenant, text) if isinstance(text, str) and 0 < len(text) <= _MOST_TEXT else None
    messages = fields.get("input" if api == "responses" else "messages")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if api not in ("completions", "responses", "messages") or not isinstance(messages, list):
        return None
    turns = list(islice(_turns(messages), MOST_TURNS + 1))
    is_small = len(turns) <= MOST_TURNS and sum(len(text) for _, text in turns) <= _MOST_TEXT
    return ChatPrint(tenant, turns) if turns and is_small else None


def model_turn(text: str, calls: Iterable[Call]) -> str:
    """Return what stands for an answer in the turns of a later prompt."""
    if text.startswith("<think>"):
        text = text.partition("</think>")[2]
    parts = [text.strip()]
    for name, arguments in calls:
        spaced = "".join(arguments[:_MOST_SPACED].split())
        parts += ("\0", name, "\0", spaced, arguments[_MOST_SPACED:])
    return "".join(parts)


def given_texts(calls: Iterable[Call]) -> list[str]:
    """Return the longer texts in the arguments of calls, which may be cut: a sub-agent's task is one. An
    answer that is JSON counts as a call, for many programs let a model write calls and plans so.
    """
    return [
        _ESCAPES.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)
        for _, arguments in calls
        for text in _STRING.findall(arguments)
    ]


def _turns(messages: Sequence[Any]) -> Iterator[Turn]:
    """Yield the turns of messages, or of the items of OpenAI's newer API. What a model says is one turn, in
    however many messages it stands.
    """
    said = ""
    calls: list[Call] = []
    has_answer = False
    for message in messages:
        if not isinstance(message, dict):
            continue
        kind, role = message.get("type", "message"), message.get("role")
        if kind == "reasoning" or role in _HEADS:
            continue
        if role == MODEL or kind == "function_call":
            text, more = said_by(message)
            has_answer, said, calls = True, said + text, [*calls, *more]
            continue
        if has_answer:
            yield MODEL, model_turn(said, calls)
            said, calls, has_answer = "", [], False
        content = message.get("output") if kind == "function_call_output" else message.get("content")
        yield str(role or kind), _text(content)
    if has_answer:
        yield MODEL, model_turn(said, calls)


def said_by(message: Mapping[str, Any]) -> tuple[str, list[Call]]:
    """Return the text and the calls of a model's message, in OpenAI's older API or Anthropic's, or of one
    item of OpenAI's newer API.
    """
    if message.get("type") == "function_call":
        return "", [_call(message.get("name"), message.get("arguments"))]
    calls: list[Call] = []
    made = message.get("tool_calls")
    for one in made if isinstance(made, list) else ():
        function = one.get("function") if isinstance(one, dict) else None
        if isinstance(function, dict):
            calls.append(_call(function.get("name"), function.get("arguments")))
    content = message.get("content")
    if not isinstance(content, list):
        return _text(content), calls
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            calls.append(_call(part.get("name"), part.get("input")))
        elif kind not in ("thinking", "redacted_thinking", "reasoning"):
            texts.append(_text(part))
    return "".join(texts), calls


def _call(name: Any, arguments: Any) -> Call:
    return str(name or ""), arguments if isinstance(arguments, str) else json.dumps(
        arguments, ensure_ascii=False, separators=(",", ":")
    )


def _text(content: Any, depth: int = 0) -> str:
    """Return the text of a message's content; of a part that is no text, what tells it from others."""
    if isinstance(content, str):
        return content
    if content is None or depth > _MOST_DEPTH:
        return ""
    if isinstance(content, list):
        return "".join([_text(part, depth + 1) for part in content])
    if isinstance(content, dict):
        if isinstance(text := content.get("text"), str):
            return text
        if content.get("type") == "tool_result":
            return _text(content.get("content"), depth + 1)
        return "\0".join(
            _text(part, depth + 1) if isinstance(part, dict | list) else _short(part)
            for part in content.values()
        )
    return _short(content)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    if len(text) <= 2 * _MOST_PART:
        return text
    return f"{text[:_MOST_PART]}{len(text)}{text[-_MOST_PART:]}"
