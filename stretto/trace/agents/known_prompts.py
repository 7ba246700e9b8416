"""The prompts of a trace as sequences of blocks, to study what they share."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence

from stretto.trace.agents.prompts import Conversations
from stretto.trace.agents.requests import AgentRequest, AgentTrace, ChatPrompt, SizedPrompt
from stretto.trace.agents.sharing import KnownPrompt

_TEXT_BLOCK_TOKENS = 4
_CHARS_PER_TOKEN = 4
UNKNOWN_OUTPUT_TOKENS = 1
"""Length of the answers whose length a trace does not tell."""


def known_prompts(trace: AgentTrace) -> Iterator[KnownPrompt]:
    """Yield the prompt of each request of a trace.

    A token of a text is four characters. The answers that a conversation goes on from are made up, of the
    length that the trace tells.
    """
    conversations = Conversations(trace)
    for request in trace.requests:
        yield _known(request, conversations)
        conversations.add(request, made_up_answer(request))


def _known(request: AgentRequest, conversations: Conversations) -> KnownPrompt:
    prompt, output = request.prompt, request.output_tokens or UNKNOWN_OUTPUT_TOKENS
    if isinstance(prompt, SizedPrompt):
        blocks: Sequence[Hashable] = prompt.blocks or ((request.id,),)
        size = prompt.block_tokens if prompt.blocks else max(1, prompt.num_tokens)
        return KnownPrompt(blocks, prompt.num_tokens, size, output)
    text = _text(prompt, request, conversations)
    size = _TEXT_BLOCK_TOKENS * _CHARS_PER_TOKEN
    parts = tuple(text[start : start + size] for start in range(0, len(text), size))
    return KnownPrompt(parts, -(-len(text) // _CHARS_PER_TOKEN), _TEXT_BLOCK_TOKENS, output)


def _text(prompt: ChatPrompt, request: AgentRequest, conversations: Conversations) -> str:
    messages = conversations.messages(request)
    return "".join(json.dumps(part, sort_keys=True) for part in (*prompt.tools, *messages))


def made_up_answer(request: AgentRequest) -> str:
    """Return an answer of the recorded length, for a trace that does not have its text."""
    answer = f"answer to {request.id} "
    length = _CHARS_PER_TOKEN * (request.output_tokens or UNKNOWN_OUTPUT_TOKENS)
    return (answer * (1 + length // len(answer)))[:length]
