"""No text of a document becomes a special token, whatever kind of tokenizer a model has."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import UserError
from stretto.model.values import Segment

SPECIAL = ("<s>", "</s>", "[SEP]", "<|im_end|>")
WORDS = (
    "a",
    "b",
    "<",
    ">",
    "/",
    "s",
    "[",
    "]",
    "|",
    "im",
    "end",
    "_",
    "SEP",
    "S",
    "E",
    "P",
    "i",
    "m",
    "e",
    "n",
    "d",
)


def _unigram() -> Tokenizer:
    pieces = [
        ("<unk>", -20.0),
        *((token, -1.0) for token in SPECIAL),
        *((word, -3.0) for word in (*WORDS, "▁")),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _word_level() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({t: i for i, t in enumerate(("<unk>", *SPECIAL, *WORDS))}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _word_piece() -> Tokenizer:
    words = ("<unk>", *SPECIAL, *WORDS, *(f"##{word}" for word in WORDS))
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _byte_level_bpe() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate((*SPECIAL, *alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "Unigram": _unigram,
    "WordLevel": _word_level,
    "WordPiece": _word_piece,
    "BPE": _byte_level_bpe,
}


@cache
def saved(kind: str) -> tuple[PromptTokenizer, frozenset[int]]:
    """A tokenizer of this kind, and the ids of its special tokens."""
    folder = Path(mkdtemp())
    fast = PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        bos_token="<s>",
        eos_token="</s>",
        sep_token="[SEP]",
        additional_special_tokens=["<|im_end|>"],
        **({} if kind == "BPE" else {"unk_token": "<unk>"}),
    )
    fast.save_pretrained(folder)
    ids = frozenset(fast.convert_tokens_to_ids(token) for token in SPECIAL)
    return PromptTokenizer(folder), ids


TEXTS = st.lists(st.sampled_from((*SPECIAL, *WORDS, " ", "é", "<", "<s", "/s>", "▁"))).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_no_text_becomes_a_special_token(kind: str, text: str) -> None:
    tokenizer, special = saved(kind)
    ids = tokenizer.encode((Segment("a"), Segment(text, "context")))
    assert special.isdisjoint(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", SPECIAL)
def test_a_special_token_stays_one_in_a_constant_and_is_text_in_a_variable(kind: str, token: str) -> None:
    tokenizer, special = saved(kind)
    (constant,) = tokenizer.encode((Segment(token),))
    assert constant in special
    assert len(tokenizer.encode((Segment(token, "context"),))) > 1


def test_a_character_that_is_a_special_token_is_refused(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "§": 1, "a": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="§", unk_token="<unk>").save_pretrained(
        tmp_path
    )
    with pytest.raises(UserError, match="segment context of the prompt cannot be tokenised"):
        PromptTokenizer(tmp_path).encode((Segment("a § a", "context"),))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_a_caller_changes_are_new_for_the_next(kind: str) -> None:
    """The ids of constants are kept, and never handed out themselves."""
    tokenizer, _ = saved(kind)
    prompt = (Segment("a b"), Segment("s", "variable"), Segment("a b"))
    first = tokenizer.encode(prompt)
    kept = list(first)
    first.append(-1)
    tokenizer.end_of(prompt).append(-1)
    assert tokenizer.encode(prompt) == kept
    assert -1 not in tokenizer.end_of(prompt)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_long_constants_are_not_kept(kind: str) -> None:
    tokenizer, _ = saved(kind)
    tokenizer.encode((Segment("a b"),))
    tracemalloc.start()
    try:
        for number in range(10):
            tokenizer.encode((Segment("a b " * 10_000 + str(number)),))
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
