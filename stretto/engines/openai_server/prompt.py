"""A prompt in the form in which it is sent to a server: token ids if its tokenizer is known, else text."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.engines.openai_server.discovery import ServerFacts
from stretto.errors import UserError
from stretto.tasks import LLMTask

CHARS_PER_TOKEN = 4
"""Number of characters that count as a token where the tokenizer is unknown."""


@dataclass(frozen=True, slots=True)
class SentPrompt:
    """A prompt as it is sent to a server.

    Attributes:
        content: text or token ids to send.
        elements: token ids or characters, with which a prefix cache can be searched.
        tenant: owner of the task. Caches are never shared between tenants.
    """

    content: str | tuple[int, ...]
    elements: list[int]
    tenant: str

    @property
    def tokens_per_element(self) -> float:
        """Number of tokens that one of `elements` stands for: 1 if a token id, an estimate if a character."""
        return 1 / CHARS_PER_TOKEN if isinstance(self.content, str) else 1.0


def encode(facts: ServerFacts, task: LLMTask) -> SentPrompt:
    """Return a task's prompt as it is sent to a server: token ids if its tokenizer is known, else text.

    Raises:
        UserError: a segment of the prompt is not a text.
    """
    if facts.tokenizer is None:
        try:
            text = "".join(segment.text for segment in task.prompt)
            text.encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError(f"a segment of the prompt is not a text: {error}") from error
        return SentPrompt(text, list(map(ord, text)), task.tenant)
    tokens = facts.tokenizer.encode(task.prompt)
    if task.decode is not None:
        tokens += facts.tokenizer.suffix
    return SentPrompt(tuple(tokens), tokens, task.tenant)
