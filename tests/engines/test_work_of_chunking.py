"""What is done to cut a document is counted: it grows with the length of the text, whatever the text is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from tokenizers import Encoding, Tokenizer

from stretto.documents.parse import parse_bytes
from stretto.engines.batch.chunking import DEFAULT_OVERLAP, DEFAULT_TOKENS, chunk_document, tokenizer_of
from stretto.engines.batch.local_models import MINILM


class CountingTokenizer:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_chars = 0

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]:
        self.num_chars += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def work(text: str) -> tuple[int, int]:
    """Return how many characters the tokenizer reads of a text, and how many tokens the embedder would."""
    counting = CountingTokenizer(tokenizer_of(MINILM))
    document = parse_bytes("a.txt", text.encode())
    budget = DEFAULT_TOKENS - 2
    chunks = chunk_document(document, cast(Tokenizer, counting), budget, DEFAULT_OVERLAP)
    return counting.num_chars, len(chunks) * DEFAULT_TOKENS


@pytest.mark.parametrize("mark", ["<", "-", "="])
def test_a_line_of_one_character_costs_no_more_than_a_sentence(mark: str) -> None:
    num_chars, num_tokens = work(f"{mark * 100_000}\n")
    assert num_chars < 100
    assert num_tokens == DEFAULT_TOKENS


@pytest.mark.parametrize("unit", ["<>", "< ", "a<b ", "<. ", "| ", "| <", "<\n", "。"])
def test_the_work_grows_with_the_text(unit: str) -> None:
    """Ten times the text is ten times the work."""
    few_chars, few_tokens = work(f"{unit * 2_000}end")
    many_chars, many_tokens = work(f"{unit * 20_000}end")
    assert many_chars <= 11 * few_chars
    assert many_tokens <= 11 * few_tokens
