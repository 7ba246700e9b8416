"""Prompts of a replay: made-up ones where a trace has only lengths, and conversations that grow."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from stretto.trace.agents.requests import AgentRequest, AgentTrace, ChatPrompt, Message, SizedPrompt

T = TypeVar("T")

_IDS = range(300, 900)
"""Token ids of made-up prompts: above the bytes and special tokens that begin most vocabularies, and inside
small ones too."""
_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school"),
    *("state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week"),
    *("company", "system", "program", "question", "work", "government", "number", "night", "point", "home"),
    *("water", "room", "mother", "area", "money", "story", "fact", "month", "right", "study", "book", "eye"),
    *("job", "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father"),
)


def made_up_ids(name: str, prompt: SizedPrompt) -> list[int]:
    """Return token ids for a prompt of known length. Equal blocks have equal ids in every run.

    Args:
        name: name of the prompt, which decides its ids where it has no blocks.
    """
    return _made_up(name, prompt, _IDS)


def made_up_words(name: str, prompt: SizedPrompt) -> str:
    """Return a text for a prompt of known length: one common word for each token, which is about one token
    in most vocabularies. Equal blocks have equal words in every run.
    """
    return " ".join(_made_up(name, prompt, _WORDS))


def _made_up(name: str, prompt: SizedPrompt, choices: Sequence[T]) -> list[T]:
    names = [f"block {block}" for block in prompt.blocks]
    length = prompt.block_tokens if names else prompt.num_tokens
    made: list[T] = []
    for block in names or [f"request {name}"]:
        made += Random(block).choices(choices, k=length)
    return made[: prompt.num_tokens]


class Conversations:
    """The messages of the conversations of a replay so far, as far as other requests continue them."""

    def __init__(self, trace: AgentTrace) -> None:
        prompts = [request.prompt for request in trace.requests]
        self._continued = {prompt.continues for prompt in prompts if isinstance(prompt, ChatPrompt)}
        self._so_far: dict[str, tuple[Message, ...]] = {}

    def messages(self, request: AgentRequest) -> tuple[Message, ...]:
        """Return all messages of a request: those of the conversation that it continues, then its own. A
        made-up prompt is one message.
        """
        prompt = request.prompt
        if isinstance(prompt, SizedPrompt):
            return ({"role": "user", "content": made_up_words(request.id, prompt)},)
        return (*self._so_far.get(prompt.continues or "", ()), *prompt.messages)

    def add(self, request: AgentRequest, answer: str) -> None:
        """Note the answer to a request."""
        if request.id in self._continued:
            said = {"role": "assistant", "content": answer}
            self._so_far[request.id] = (*self.messages(request), said)
