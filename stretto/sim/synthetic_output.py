"""Synthetic outputs of a simulated LLM and tokens of its prompts, the same in every run.

A token is four characters of text (`costs.tokens`), and its id is made of these characters. So equal text
has equal tokens, from the first character on, and prefixes are shared exactly where prompts begin alike.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from random import Random
from types import MappingProxyType
from typing import TypeAlias
from zlib import crc32

from stretto.costs.mean_output import num_tokens
from stretto.costs.output_lengths import LengthsBySource
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Prompt

_FILLER = "x" * 4096
PIECE_TOKENS = 512
"""Tokens of the pieces of long texts whose ids are kept."""
_PIECE_CHARS = 4 * PIECE_TOKENS
_NUM_ITEMS = 3
_LEAST_FILLING = 64


@dataclass(frozen=True, slots=True)
class SyntheticOutput:
    """A made-up output of a simulated LLM: its value, its number of tokens, and after how many tokens each
    list item is complete.
    """

    value: str | list[str]
    num_tokens: int
    item_ends: tuple[int, ...] = ()


OutputSource: TypeAlias = Callable[[LLMTask, Decode], SyntheticOutput]
"""A function that decides an output. A StrettoError fails the task; any other takes the instance down."""

OutputLength: TypeAlias = Callable[[LLMTask, Decode], int]
"""A function that gives an output's length in tokens; it is cut at `max_tokens`."""


def made_up_token_ids(text: str) -> list[int]:
    """Return made-up token ids of a text, `num_tokens(text)` of them; equal text has equal ids."""
    if not text.isascii():
        count = num_tokens(text)
        return [crc32(text[4 * i : 4 * i + 4].encode("utf-8", "replace")) for i in range(count)]
    end = len(text) // 4 * 4
    if end <= _PIECE_CHARS:
        return _ids_of_piece(text[:end]) + _ascii_ids(text[end:].ljust(4, "\0"))
    return _ids_of_long(text).copy()


@lru_cache(maxsize=64)
def _ids_of_long(text: str) -> list[int]:
    """Return the ids of a long ASCII text, which is asked for several times when it is placed, admitted and
    kept. The caller must not change the list.
    """
    end = len(text) // 4 * 4
    ids = []
    for start in range(0, end, _PIECE_CHARS):
        ids += _kept_ids(text[start : min(end, start + _PIECE_CHARS)])
    return ids + _ascii_ids(text[end:].ljust(4, "\0"))


@lru_cache(maxsize=4096)
def _kept_ids(piece: str) -> list[int]:
    """Return the token ids of a piece of a long text. Prompts that begin alike get the very same numbers,
    which take no further memory and are compared fast. The caller must not change the list.
    """
    return _ids_of_piece(piece)


def _ids_of_piece(text: str) -> list[int]:
    """Return the ids of an ASCII text of whole tokens. The id of long filling, one character repeated up to
    the last token, is computed once.
    """
    last = max(0, len(text) - 4)
    filling = text[max(0, last - 1) : last]
    begin = text.find(filling * _LEAST_FILLING, 0, last)
    if begin < 0 or text[begin:last] != filling * (last - begin):
        return _ascii_ids(text)
    first = -(-begin // 4) * 4
    return (
        _ascii_ids(text[:first]) + _ascii_ids(filling * 4) * ((last - first) // 4) + _ascii_ids(text[last:])
    )


def _ascii_ids(text: str) -> list[int]:
    return array("I", text.encode("ascii")).tolist()


def prompt_ids(prompt: Prompt) -> list[int]:
    """Return the made-up token ids of all segments of a prompt, each tokenised by itself."""
    if len(prompt) == 1:
        return made_up_token_ids(prompt[0].text)
    return [token for segment in prompt for token in made_up_token_ids(segment.text)]


def filler(name: str, tokens: int) -> str:
    """Return a meaningless text of `tokens` tokens (at least 1) that begins differently for every name."""
    head = blake2b(name.encode(), digest_size=8).hexdigest()
    length = 4 * max(tokens, 1) - 1
    if length > len(_FILLER):
        return head + "x" * (length - len(head))
    return (head + _FILLER)[:length]


def chars(name: str, length: int, word: str = "") -> str:
    """Return a meaningless text of `length` characters (at least 1) that differs for every name.

    It begins with `word` and a space, if `word` is given; then come digits made from `name`, then filling. A
    space at the cut is dropped.
    """
    head = f"{word} " if word else ""
    text = head + filler(name, length // 4 + 5)
    return text[: max(length, 1)].strip() or "x"


def filler_output(length: OutputLength) -> OutputSource:
    """Return a function that answers the tasks of a simulated LLM with meaningless texts of given lengths.

    The answer of a task that wants a list has up to three items of equal length.
    """

    def speak(task: LLMTask, decode: Decode) -> SyntheticOutput:
        tokens = max(1, min(length(task, decode), decode.max_tokens))
        name = f"{task.query}/{task.step}"
        if decode.items is None:
            return SyntheticOutput(filler(name, tokens), tokens)
        count = max(1, min(_NUM_ITEMS, decode.max_items or _NUM_ITEMS, tokens))
        ends = tuple(tokens * (number + 1) // count for number in range(count))
        starts = (0, *ends)
        items = [filler(f"{name}/{n}", end - starts[n]) for n, end in enumerate(ends)]
        return SyntheticOutput(items, tokens, ends)

    return speak


def lengths_by_query(lengths: Mapping[str, int]) -> OutputLength:
    """Return a function that gives the output length of each simulated task: the length that `lengths` has
    for the name of the task's query, as recorded in a trace.
    """
    return lambda task, decode: lengths[task.query]


def drawn_lengths(
    known: LengthsBySource, model: str, seed: int, templates: Mapping[str, str] = MappingProxyType({})
) -> OutputLength:
    """Return a function that draws the output length of each simulated task at random from lengths that were
    counted for a model.

    A length only depends on the seed, the query, the step and the item, whatever else runs
    and however often the task is tried.

    Args:
        known: counted lengths by model and template.
        templates: template name of each step, as in `known`; other steps take the model's own lengths.

    Raises:
        ConfigError: `known` has no lengths of the model.
    """
    known.of(model)

    def length(task: LLMTask, decode: Decode) -> int:
        draw = Random(f"{seed}/{model}/{task.query}/{task.step}/{task.item}")
        return known.of(model, templates.get(task.step, "")).draw(draw, limit=decode.max_tokens)

    return length


def output_ids(said: SyntheticOutput) -> list[int]:
    """Return the made-up token ids of a simulated output. The same text in a later prompt has the same
    ids.
    """
    text = said.value if isinstance(said.value, str) else json.dumps(said.value)
    ids = made_up_token_ids(text)
    return ids[: said.num_tokens] + [0] * (said.num_tokens - len(ids))
