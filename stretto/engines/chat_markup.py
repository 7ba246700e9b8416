"""The markup of a chat: the text that a model's own template puts around messages.

It is found by rendering the template with messages of marked content and cutting the result at the marks. So
it is known before any content is, and is a constant of the prompt like any other: equal beginnings of prompts
stay equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stretto.model.errors import ConfigError, UserError
from stretto.model.values import Prompt

Render: TypeAlias = Callable[[Sequence[Mapping[str, str]], bool], str]
"""A model's chat template: returns the text of messages (`role` and `content`), and if the flag is set, what
comes before the answer. It raises any error for messages that it refuses."""

RAW = "raw"
"""Role of a prompt that the model goes on with as it is, without a template."""
PLAIN_STOP = ("\nQuestion:", "\n\n\n")
"""Strings at which a model without a chat template would begin a further question."""
BETWEEN_SYSTEM_AND_USER = "\n\n"
"""Text between a system message and the user's message, where the system's text becomes the beginning of the
user's message."""

_MARK = "STRETTO-MESSAGE-{}-CONTENT"
_MARKED = re.compile(_MARK.format(r"(\d+)"))
_MOST_KNOWN = 512
"""Number of sequences of roles whose markup is kept. Clients choose them."""
_BETWEEN_LINES, _BEFORE_ANSWER = "\n", "\nAnswer:"


@dataclass(frozen=True, slots=True)
class Markup:
    """The markup of a chat whose messages have certain roles.

    Attributes:
        before: text before the content of each message.
        end: text after the last message, up to where the model's answer begins. "" if the last message is the
            assistant's, because the model then goes on writing that message.
    """

    before: tuple[str, ...]
    end: str


def roles_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the roles of a prompt's messages. A prompt whose first segment has no role begins with a message
    of the user.
    """
    roles = tuple(segment.role for segment in prompt if segment.role is not None)
    return ("user", *roles) if not prompt or prompt[0].role is None else roles


def plain_markup(roles: Sequence[str]) -> Markup:
    """Return the markup for a model without a chat template: what a base model can go on with.

    A single message stands as it is. Each of several begins a line, and the assistant's begin with "Answer:".
    """
    before = [_BEFORE_ANSWER if role == "assistant" else _BETWEEN_LINES for role in roles[1:]]
    return Markup(("", *before), _BEFORE_ANSWER if len(roles) > 1 and roles[-1] != "assistant" else "")


class ChatMarkup:
    """The markup that a model's chat template gives to messages of any roles.

    A model without a template gets `plain_markup`. A template that refuses or hides a system message gets its
    content as the beginning of the user's message.

    Args:
        name: name of the model, for messages of errors.
        render: the template; None for a model without one.
    """

    def __init__(self, name: str, render: Render | None) -> None:
        self._name = name
        self._render = render
        self._known: dict[tuple[str, ...], Markup] = {}

    def of(self, roles: tuple[str, ...]) -> Markup:
        """Return the markup of messages with these roles.

        Raises:
            UserError: the template refuses messages of these roles in this order.
            ConfigError: the template does not show the content of each message exactly once, in order.
        """
        if (found := self._known.get(roles)) is None:
            found = self._find(roles)
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[roles] = found
        return found

    def end_of_turn(self) -> str:
        """Return the text that the template puts after a message of the assistant; "" without a template, or
        if it shows no such message.
        """
        if self._render is None:
            return ""
        mark = _MARK.format(1)
        messages = [{"role": "user", "content": _MARK.format(0)}, {"role": "assistant", "content": mark}]
        try:
            return self._render(messages, False).rpartition(mark)[2]
        except Exception:  # templates are programs, which raise what they like
            return ""

    def _find(self, roles: tuple[str, ...]) -> Markup:
        if roles == (RAW,):
            return Markup(("",), "")
        if self._render is None:
            return plain_markup(roles)
        try:
            return self._rendered(self._render, roles)
        except Exception as error:  # templates are programs, which raise what they like
            if roles[:2] == ("system", "user"):
                markup = self.of(roles[1:])
                return Markup((markup.before[0], BETWEEN_SYSTEM_AND_USER, *markup.before[1:]), markup.end)
            if roles == ("system",):  # the beginning of such a prompt
                return Markup(self.of(("user",)).before, "")
            if isinstance(error, ConfigError):
                raise
            raise UserError(
                f"{self._name}: the chat template refuses messages of {', '.join(roles)}: {error}"
            ) from error

    def _rendered(self, render: Render, roles: tuple[str, ...]) -> Markup:
        is_users_turn = roles[-1] != "user"  # then a message of the user follows, in a template's view
        all_roles = (*roles, "user") if is_users_turn else roles
        marks = [_MARK.format(place) for place in range(len(all_roles))]
        messages = [{"role": role, "content": m} for role, m in zip(all_roles, marks, strict=True)]
        texts = _MARKED.split(render(messages, not is_users_turn))
        if texts[1::2] != [str(place) for place in range(len(all_roles))]:
            raise ConfigError(f"{self._name}: the chat template does not show each message exactly once")
        *before, rest = texts[::2]
        return Markup(tuple(before[: len(roles)]), "" if is_users_turn else rest)
