"""Measures and cuts the text of a document for chunks: its sentences, and parts of those that are too long.

Tokens. The tokenizers of all-MiniLM-L6-v2 and its kind split at white space before anything else, so the
tokens of a chunk are those of its sentences added up. A tokenizer that counts the space before a word
(RoBERTa's) may find one more for each further sentence of a chunk. A word that the tokenizer does not know is
one token for the embedder and many for an LLM, so it counts as its letters; and 16 characters count as one
token at least, white space included.

Memory. Text is tokenised in batches of bounded length, and sentences are packed as they come. A sentence is
tokenised once, and again if it is too long for a chunk.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stretto.documents.sentences import split_sentences
from stretto.model.values import Mark, Section

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_MAX_TOKENS_PER_LETTER = 3  # a Hangul syllable is three
_MAX_LETTERS_PER_TOKEN = 16
_MAX_STRETCH_CHARS = 16_384
_BATCH_CHARS = 65_536
_BLANKS = " \t\r\n"
_UNBROKEN = re.compile(f"[^{_BLANKS}]+")

_Stretch: TypeAlias = tuple[int, int, bool]
"""A span of a document's text, and whether it begins under a new heading."""


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The text of a document: that of its sections in order, and where these begin.

    Attributes:
        marks: sections of another title or page than the one before, with their offsets in the text.
        openings: offsets of the sections with a new heading; 0 is the first.
    """

    text: str
    marks: Sequence[Mark]
    openings: Sequence[int]

    @classmethod
    def of(cls, sections: Sequence[Section]) -> DocumentText:
        """Join the texts of sections. A single one is not copied."""
        parts: list[str] = []
        marks: list[Mark] = []
        openings: list[int] = []
        length = 0
        for section in sections:
            mark = Mark(length, section.title, section.page)
            opens = not marks or mark.title != marks[-1].title
            if parts:
                parts.append("\n\n" if opens else "\n")
                length += len(parts[-1])
            if opens:
                openings.append(length)
            if not marks or mark[1:] != marks[-1][1:]:
                marks.append(mark._replace(start=length))
            parts.append(section.text)
            length += len(section.text)
        return cls("".join(parts), marks, openings)

    def sections(self, start: int, end: int) -> list[Mark]:
        """Return the sections that a span of the text is from, with their offsets in the span."""
        first = bisect_right(self.marks, start, key=lambda mark: mark.start) - 1
        after = bisect_left(self.marks, end, key=lambda mark: mark.start)
        return [mark._replace(start=max(0, mark.start - start)) for mark in self.marks[first:after]]


class TextPiece(NamedTuple):
    """A sentence, or a part of one that is too long for a chunk: a span text[start:end]."""

    start: int
    end: int
    num_tokens: int
    opens_heading: bool = False


def gap_tokens(before: TextPiece, after: TextPiece) -> int:
    """Return how many tokens the white space between two pieces counts as."""
    return (after.start - before.end) // _MAX_LETTERS_PER_TOKEN


def text_pieces(text: DocumentText, tokenizer: Tokenizer, budget_tokens: int) -> Iterator[TextPiece]:
    """Yield the pieces that a document's chunks are packed from, of up to `budget_tokens` each, in order.

    The time is linear in the length, and the memory bounded, whatever the text.
    """
    unknown = _unknown_token(tokenizer)
    for batch in _batches(_stretches(text)):
        texts = [text.text[start:end] for start, end, _ in batch]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        for (start, end, opens_heading), stretch, encoding in zip(batch, texts, encodings, strict=True):
            weights = _weights(encoding, unknown)
            num_tokens = _num_tokens(weights, len(stretch))
            if num_tokens <= budget_tokens:
                yield TextPiece(start, end, num_tokens, opens_heading)
                continue
            for part in _split_long(stretch, encoding, weights, budget_tokens):
                opens = opens_heading and part.start == 0
                yield TextPiece(start + part.start, start + part.end, part.num_tokens, opens)


def _stretches(text: DocumentText) -> Iterator[_Stretch]:
    """Yield the sentences; one that is extremely long comes in several stretches."""
    for begin, after in pairwise([*text.openings, len(text.text)]):
        for position, (start, end) in enumerate(split_sentences(text.text[begin:after])):
            for at, (first, last) in enumerate(_shortened(text.text, begin + start, begin + end)):
                yield first, last, position == 0 and at == 0


def _shortened(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield spans of bounded length that cover a span of a text, but for white space between them."""
    while end - start > _MAX_STRETCH_CHARS:
        limit = start + _MAX_STRETCH_CHARS
        cut = max(text.rfind(blank, start, limit) for blank in _BLANKS)
        cut = cut if cut > 0 else limit
        yield start, start + len(text[start:cut].rstrip(_BLANKS))
        rest = _UNBROKEN.search(text, cut, end)
        assert rest is not None  # a sentence does not end with white space
        start = rest.start()
    yield start, end


def _batches(stretches: Iterable[_Stretch]) -> Iterator[list[_Stretch]]:
    """Yield stretches in lists of bounded length in characters."""
    batch: list[_Stretch] = []
    num_chars = 0
    for stretch in stretches:
        batch.append(stretch)
        num_chars += stretch[1] - stretch[0]
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that stands for unknown words; None if the tokenizer has none."""
    name = getattr(tokenizer.model, "unk_token", "<unk>")  # models of the kind Unigram do not name it
    return None if name is None else tokenizer.token_to_id(name)


def _weights(encoding: Encoding, unknown: int | None) -> list[int]:
    """Return how many tokens each token counts as."""
    ids = encoding.ids
    if unknown is None or unknown not in ids:
        return [1] * len(ids)
    spans = zip(ids, encoding.offsets, strict=True)
    return [end - start if token == unknown else 1 for token, (start, end) in spans]


def _num_tokens(weights: Sequence[int], num_chars: int) -> int:
    """Return how many tokens a text counts as; none is free to overlap."""
    return max(1, sum(weights), -(-num_chars // _MAX_LETTERS_PER_TOKEN))


def _split_long(
    stretch: str, encoding: Encoding, weights: Sequence[int], budget_tokens: int
) -> list[TextPiece]:
    """Split a text of more than `budget_tokens` into parts that are as long as possible."""
    parts: list[TextPiece] = []
    for atom in _atoms(stretch, encoding, weights, budget_tokens):
        if parts:
            last = parts[-1]
            together = last.num_tokens + gap_tokens(last, atom) + atom.num_tokens
            if together <= budget_tokens:
                parts[-1] = TextPiece(last.start, atom.end, together)
                continue
        parts.append(atom)
    return parts


def _atoms(
    stretch: str, encoding: Encoding, weights: Sequence[int], budget_tokens: int
) -> Iterator[TextPiece]:
    """Yield the smallest parts of a long text: the texts between white space that fit into the budget.

    A longer one (text without spaces, a long link) is cut into the tokenizer's words. A word that is still
    too long is cut into runs of so few letters that they fit, whatever their tokens are.
    """
    words, starts = encoding.word_ids, [start for start, _ in encoding.offsets]
    after = 0
    for match in _UNBROKEN.finditer(stretch):
        first = after
        while after < len(starts) and starts[after] < match.end():
            after += 1
        num_tokens = _num_tokens(weights[first:after], len(match[0]))
        if num_tokens <= budget_tokens:
            yield TextPiece(*match.span(), num_tokens)
            continue
        firsts = [first, *(at for at in range(first + 1, after) if words[at] != words[at - 1])]
        borders = [match.start(), *(starts[at] for at in firsts[1:]), match.end()]
        for (start, end), (one, next_) in zip(pairwise(borders), pairwise([*firsts, after]), strict=True):
            num_tokens = _num_tokens(weights[one:next_], end - start)
            if num_tokens <= budget_tokens:
                yield TextPiece(start, end, num_tokens)
            else:
                step = budget_tokens // _MAX_TOKENS_PER_LETTER
                yield from (
                    TextPiece(at, min(at + step, end), budget_tokens) for at in range(start, end, step)
                )
