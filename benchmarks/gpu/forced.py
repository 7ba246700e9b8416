"""The in-process engine with random weights, where the lengths of answers are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from zlib import crc32

from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.engines.transformer.engine import TransformerLLM
from stretto.model.tasks import LLMTask
from stretto.model.values import Prompt

_CHARS = 4


class MadeUpTokens(PromptTokenizer):
    """Tokens of four characters, as in virtual time. A generated one is written as four hexadecimal digits,
    so that a prompt with an answer in it goes on from the KV of the answer.
    """

    def __init__(self, path: Path, vocabulary: int) -> None:
        super().__init__(path)
        self._id_of = lru_cache(100_000)(lambda piece: _token_of(piece, vocabulary))

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt."""
        texts = [segment.text for segment in prompt]
        return [self._id_of(text[at : at + _CHARS]) for text in texts for at in range(0, len(text), _CHARS)]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of generated tokens."""
        return "".join(f"{token:04x}" for token in tokens)


def _token_of(piece: str, vocabulary: int) -> int:
    try:
        return int(piece, 16) % vocabulary
    except ValueError:
        return crc32(piece.encode()) % vocabulary


def forced_llm(length: Callable[[LLMTask], int]) -> type[TransformerLLM]:
    """Return the in-process engine with made-up tokens and chosen lengths of its answers."""

    class ForcedLLM(TransformerLLM):
        def _tokenizer_of(self, folder: Path) -> PromptTokenizer:
            return MadeUpTokens(folder, self.runner.config.vocabulary)

        def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
            if task.decode is not None:
                decode = replace(task.decode, max_tokens=length(task), ignore_eos=True)
                task = replace(task, decode=decode)
            super().admit(task, rank)

    return ForcedLLM
