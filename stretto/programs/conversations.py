"""Conversations: forms of prompts in which the text is a user's and the outputs are an assistant's."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.graph.graph import Constant
from stretto.model.errors import TemplateError
from stretto.programs.prompt_text import Part, PromptSlot


@dataclass(frozen=True, slots=True)
class Conversation:
    """A form of a conversation, which a prompt is put into: text before an output is a message of the user,
    the output is the assistant's answer.

    Attributes:
        system: text of the system, before all messages; "" for none.
        user, assistant: marks before a message. None leaves the marks to the model's own chat template.
        end: mark after an answer.
    """

    system: str = ""
    user: str | None = None
    assistant: str | None = None
    end: str = ""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.assistant is None) or (self.user is None and self.end):
            raise TemplateError("a conversation has marks for both user and assistant, or none at all")

    def apply(self, parts: tuple[Part, ...], function: str) -> tuple[Part, ...]:
        """Return the parts of a prompt as this conversation.

        Raises:
            TemplateError: the prompt has messages of its own.
        """
        if any(isinstance(part, Constant) and part.role for part in parts):
            raise TemplateError(f"{function}: the prompt has messages of its own; it takes no conversation")
        found: list[Part] = []
        if self.system:
            found.append(Constant(self.system, "system" if self.user is None else None))
        speaker = ""
        for place, part in enumerate(parts):
            following = parts[place + 1] if place + 1 < len(parts) else None
            if isinstance(part, PromptSlot) and part.kind == "output":
                if speaker != "assistant":
                    found.append(self._begin("assistant", self.assistant))
                speaker = "assistant"
                found.append(part)
                continue
            if isinstance(part, Constant):
                text = part.text.rstrip() if _is_output(following) else part.text
                if speaker != "user":
                    text = text.lstrip()
                if not text:
                    continue
                part = Constant(text)
            if speaker == "assistant" and self.end:
                found.append(Constant(self.end))
            if speaker != "user":
                found.append(self._begin("user", self.user))
            speaker = "user"
            found.append(part)
        return _merged(found)

    @staticmethod
    def _begin(role: str, mark: str | None) -> Constant:
        return Constant("", role) if mark is None else Constant(mark)


VICUNA = Conversation(
    system=(
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions. "
    ),
    user="USER: ",
    assistant=" ASSISTANT: ",
    end="</s>",
)
"""The conversation of Vicuna's models, as text."""
CHAT = Conversation()
"""A conversation in the form of the model's own chat template."""


def _is_output(part: Part | None) -> bool:
    return isinstance(part, PromptSlot) and part.kind == "output"


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """Join neighbouring constants of one message."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Constant) and part.role is None and isinstance(last, Constant):
            found[-1] = Constant(last.text + part.text, last.role)
        else:
            found.append(part)
    return tuple(found)
