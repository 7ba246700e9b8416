"""A prompt in the form in which it is sent to a server: token ids if its tokenizer is known, else text or
messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.engines.chat_markup import BETWEEN_SYSTEM_AND_USER, RAW, plain_markup
from stretto.engines.openai_server.discovery import ServerFacts
from stretto.engines.openai_server.tool_use import tool_messages
from stretto.model.errors import UserError
from stretto.model.tasks import LLMTask
from stretto.model.tools import ToolOffer
from stretto.model.values import Prompt
from stretto.wire.requests import ChatMessage, WirePrompt

CHARS_PER_TOKEN = 4
"""Number of characters that count as a token where the tokenizer is unknown."""


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt in the form in which it is sent to an LLM server: as text, as token ids, or as messages.

    Attributes:
        content: text or token ids to send.
        elements: token ids or characters, with which a prefix cache can be searched.
        tenant: owner of the task. Caches are never shared between tenants.
        messages: the messages of which the text consists, for the chat API; none for token ids.
        offer: tools that are sent beside the messages; None for none.
    """

    content: WirePrompt
    elements: Sequence[int]
    tenant: str
    messages: tuple[ChatMessage, ...] = ()
    offer: ToolOffer | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the prompt; 0 where it is a text."""
        return len(self.content) if isinstance(self.content, tuple) else 0

    @property
    def tokens_per_element(self) -> float:
        """Number of tokens that one of the prompt's `elements` stands for: 1 for a token id, an estimate for
        a character.
        """
        return 1 / CHARS_PER_TOKEN if isinstance(self.content, str) else 1.0


def encode(facts: ServerFacts, task: LLMTask, offer: ToolOffer | None = None) -> SentPrompt:
    """Return a task's prompt in the form in which it is sent to a server: token ids if the server's tokenizer
    is known, else text.

    The text has the prompt's plain form, because the markup of an unknown model is unknown too. With an
    `offer` of tools, messages of calls and their results stand in the place of their words.

    Raises:
        UserError: a segment of the prompt is not a text.
    """
    if facts.tokenizer is None:
        try:
            messages = messages_of(task.prompt) if offer is None else tool_messages(task.prompt, offer)
            if not facts.takes_system:
                messages = _without_system(messages)
            is_plain = offer is None and not is_raw(task.prompt)
            text = _plain_text(messages, is_whole=task.decode is not None) if is_plain else _joined(messages)
            elements = _characters(text)
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError(f"a segment of the prompt is not a text: {error}") from error
        return SentPrompt(text, elements, task.tenant, messages, offer)
    tokens = facts.tokenizer.encode(task.prompt)
    if task.decode is not None:
        tokens += facts.tokenizer.end_of(task.prompt)
    return SentPrompt(tuple(tokens), tokens, task.tenant)


def is_raw(prompt: Prompt) -> bool:
    """Return whether the model is to go on with a prompt as it is."""
    return bool(prompt) and prompt[0].role == RAW


def _joined(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(message.text or "" for message in messages)


def _plain_text(messages: Sequence[ChatMessage], *, is_whole: bool) -> str:
    markup = plain_markup([message.role for message in messages])
    parts = [before + message.text for before, message in zip(markup.before, messages, strict=True)]
    return "".join(parts) + (markup.end if is_whole else "")


def _without_system(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Return messages in which the text of the system's begins the user's after it."""
    if not messages or messages[0].role != "system":
        return messages
    head, rest = messages[0].text, messages[1:]
    if rest and rest[0].role == "user":
        head, rest = BETWEEN_SYSTEM_AND_USER.join((head, rest[0].text)), rest[1:]
    return (ChatMessage("user", head), *rest)


def _characters(text: str) -> Sequence[int]:
    """Return the code points of a text as an array, which is hashed faster than a list."""
    return array("q", np.frombuffer(text.encode("utf-32-le"), "<u4").astype("<i8").tobytes())


def messages_of(prompt: Prompt) -> tuple[ChatMessage, ...]:
    """Return the messages of a prompt. What has no role before it is a message of the user.

    Raises:
        TypeError: a segment of the prompt is not a text.
    """
    found: list[tuple[str, list[str]]] = []
    for segment in prompt:
        if segment.role is not None or not found:
            role = segment.role or "user"
            found.append(("user" if role == RAW else role, []))
        found[-1][1].append(segment.text)
    return tuple(ChatMessage(role, "".join(texts)) for role, texts in found) or (ChatMessage("user", ""),)
