"""Replies of an emulated LLM that a file prescribes, calls of tools among them.

The file is a JSON list:

    [{"when": "", "content": "I do not know."},
     {"when": "in Oslo", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
     {"when": "-3 degrees", "content": "It is cold."}]

The last entry whose `when` stands in the conversation, results of tools included, is the reply. So replies
follow from the conversation alone, and one entry follows another as the conversation grows. A client that
offers no tools, or forbids calls, gets calls as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.wording import why_unreadable
from stretto.wire.requests import ChatRequest, GenerateRequest
from stretto.wire.tool_calls import CallPart

_KEYS = {"when", "content", "tool_calls"}


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A prescribed reply, and the text in a conversation that it follows."""

    when: str
    content: str = ""
    calls: tuple[CallPart, ...] = ()

    @property
    def text(self) -> str:
        """The reply as text, with its calls as JSON."""
        listed = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in self.calls]
        return self.content + (json.dumps(listed) if listed else "")


ReplyTo: TypeAlias = Callable[[str], ScriptedReply | None]
"""A function from the text of a conversation to the reply that is prescribed for it, or None."""


@dataclass(frozen=True, slots=True)
class Script:
    """Prescribed replies, of which the last one counts whose `when` stands in the conversation."""

    replies: tuple[ScriptedReply, ...] = ()

    def __call__(self, conversation: str) -> ScriptedReply | None:
        """Return the reply that is prescribed for a conversation; None if there is none."""
        return next((reply for reply in reversed(self.replies) if reply.when in conversation), None)


def read_replies(path: Path) -> Script:
    """Read a file of replies.

    Raises:
        ConfigError: it cannot be read or has another form.
    """
    try:
        return Script(tuple(_reply(row) for row in json.loads(path.read_text("utf-8"))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"--replies {path}: no list of replies: {why_unreadable(error)}") from error


def _reply(row: Mapping[str, Any]) -> ScriptedReply:
    if unknown := row.keys() - _KEYS:
        raise ValueError(f"a reply has no key {min(unknown)!r}; it has when, content and tool_calls")
    when, content = row.get("when", ""), row.get("content", "")
    if not isinstance(when, str) or not isinstance(content, str):
        raise ValueError("when and content must be texts")
    calls = [
        CallPart(number, f"call_{number}", str(call["name"]), json.dumps(call.get("arguments", {})))
        for number, call in enumerate(row.get("tool_calls", ()))
    ]
    return ScriptedReply(when, content, tuple(calls))


def takes_calls(request: GenerateRequest) -> bool:
    """Return whether the client of a request takes calls of tools."""
    return (
        isinstance(request, ChatRequest)
        and bool(request.tools)
        and request.extra.get("tool_choice") != "none"
    )
