"""What an emulated LLM server says of its model, and which requests it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.emulate.scripted_replies import ReplyTo, Script
from stretto.emulate.tokens import FOUR_CHARACTERS, Tokens


@dataclass(frozen=True, slots=True)
class EmulatedModel:
    """The model of an emulated LLM server, as its clients see it.

    Attributes:
        name: name in requests and answers.
        root: name of the model's weights.
        max_tokens: longest prompt and answer together.
        tokens: tokenizer of prompts and answers.
        by_priority: whether requests are served by their priority; else a request that has one is refused.
        reply_to: prescribed replies; others are made up.
    """

    name: str
    root: str
    max_tokens: int
    by_priority: bool = False
    tokens: Tokens = field(default=FOUR_CHARACTERS)
    reply_to: ReplyTo = Script()
