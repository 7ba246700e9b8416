"""Cuts documents into chunks of whole sentences, short enough for the embedder.

A document's text is its sections' texts in order. A chunk is a piece of that text, character for
character: sentences are packed while they fit, and the next chunk begins with the last few of them again.

Sections. Pages are one continuous text: sentences and chunks run across their ends. A new heading ends
the sentence, and it ends the chunk unless that is still tiny (under a quarter full); so short sections
under several headings share a chunk, and nothing overlaps across a heading. A chunk has the page and
title of the section it starts in.

Tokens. The tokenizers of all-MiniLM-L6-v2 and its kind split at white space before anything else, so the
tokens of a chunk are those of its sentences added up, and each sentence is tokenised once. A tokenizer that
counts the space before a word (RoBERTa's) may find one more for each further sentence of a chunk.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from stretto.core import Chunk, Document, Section
from stretto.documents.sentences import split_sentences
from stretto.engines.batch.applications import Application, answer_batch, setting, unwanted
from stretto.engines.batch.embedding import MINILM, model_file
from stretto.errors import ConfigError, QueryCancelled
from stretto.extras import imports_of
from stretto.tasks import Task

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

DEFAULT_TOKENS = 256
DEFAULT_OVERLAP = 30
MIN_TOKENS = 16
NUM_SPECIAL_TOKENS = 2  # before and after a text, as [CLS] and [SEP]
_NO_LIMIT = 1_000_000  # tokenizers that know none name a huge number
TINY = 4  # a chunk under 1/4 of the budget runs on past a heading
MAX_TOKENS_PER_LETTER = 3  # a Hangul syllable is three
_UNBROKEN = re.compile(r"[^ \t\r\n]+")


@dataclass(frozen=True, slots=True)
class ChunkingConfig:
    """Configuration of `Chunking`, the engine that cuts documents. The sizes of chunks are settings of each
    task.

    Attributes:
        model: embedder whose tokens are counted, as in `EmbeddingConfig`.
    """

    model: str = MINILM


class Chunking:
    """A batch engine that cuts documents into chunks of whole sentences.

    It runs the op (kind of step) `chunk`: input `files` (a Document); settings `tokens` (largest chunk,
    special tokens included) and `overlap` (most tokens repeated from the chunk before). It answers the
    document's chunks in order.
    """

    def __init__(self, config: ChunkingConfig) -> None:
        """Load the tokenizer.

        Raises:
            ConfigError: packages are missing, there is no such model, or it has no usable tokenizer.
        """
        self._max_tokens = max_tokens(config.model)
        self._tokenizer = _load_tokenizer(config.model)
        self._is_unwanted: Callable[[int], bool] = lambda _: False

    def heed(self, is_unwanted: Callable[[int], bool]) -> None:
        """Take the function that says which tasks are not wanted any more. It is asked before each batch of
        texts that are tokenised.
        """
        self._is_unwanted = is_unwanted

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Cut the documents of the tasks into chunks; return the chunks of each.

        Raises:
            ConfigError: `tokens` is out of range, or `overlap` is so large that chunks have no new text.
            BadReply: an input is no document.
        """
        return answer_batch(tasks, {"chunk": self._chunk})

    def release(self, query: str) -> None:
        """Do nothing when a query (run of an app) ends, because nothing is kept for it."""

    def close(self) -> None:
        """Do nothing: this engine holds only memory, which is freed with the object."""

    def _chunk(self, applications: Sequence[Application]) -> list[object]:
        return [self._chunks(application) for application in applications]

    def _chunks(self, application: Application) -> list[Chunk] | QueryCancelled:
        tokenizer: Any = _Stoppable(self._tokenizer, lambda: self._is_unwanted(application.task.id))
        try:
            return chunk_document(
                application.require("files", Document), tokenizer, *self._sizes(application.task)
            )
        except _Stopped:
            return unwanted(application)

    def _sizes(self, task: Task) -> tuple[int, int]:
        """Token budgets of a chunk's text and of its overlap."""
        tokens = setting(task, "tokens", int, DEFAULT_TOKENS)
        overlap = setting(task, "overlap", int, DEFAULT_OVERLAP)
        check_sizes(tokens, overlap, self._max_tokens, step=task.step)
        return tokens - NUM_SPECIAL_TOKENS, overlap


class _Stopped(Exception):
    """The chunks of a document are not wanted any more."""


class _Stoppable:
    """A tokenizer that raises `_Stopped` once `is_unwanted` is true."""

    def __init__(self, tokenizer: Tokenizer, is_unwanted: Callable[[], bool]) -> None:
        self._tokenizer = tokenizer
        self._is_unwanted = is_unwanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Encoding]:
        if self._is_unwanted():
            raise _Stopped
        return self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)


def chunk_document(
    document: Document, tokenizer: Tokenizer, budget_tokens: int, overlap_tokens: int
) -> list[Chunk]:
    """Cut a document into chunks of whole sentences, of up to `budget_tokens` each without special tokens.

    Each chunk may repeat up to `overlap_tokens` of the one before it. The time is linear in the length.
    """
    text, pieces = _pieces(document.sections, tokenizer, budget_tokens)
    runs = [pieces[first:end] for first, end in _pack(pieces, budget_tokens, overlap_tokens)]
    return [
        Chunk(
            source=document.source,
            index=index,
            text=text[run[0].start : run[-1].end],
            title=run[0].section.title,
            page=run[0].section.page,
            document_sha256=document.sha256,
            num_chunks=len(runs),
        )
        for index, run in enumerate(runs)
    ]


class _Span(NamedTuple):
    """A span text[start:end] and its number of tokens."""

    start: int
    end: int
    num_tokens: int


class _Piece(NamedTuple):
    """A sentence, or a part of one that is too long for a chunk."""

    start: int
    end: int
    num_tokens: int
    section: Section
    opens_heading: bool


def _pieces(
    sections: Sequence[Section], tokenizer: Tokenizer, budget_tokens: int
) -> tuple[str, list[_Piece]]:
    """The document's text, and the pieces that chunks are packed from."""
    text, starts, openings = _join(sections)
    sentences = [
        (begin + start, begin + end, position == 0)
        for begin, after in pairwise([*openings, len(text)])
        for position, (start, end) in enumerate(split_sentences(text[begin:after]))
    ]
    encodings = tokenizer.encode_batch(
        [text[start:end] for start, end, _ in sentences], add_special_tokens=False
    )
    pieces: list[_Piece] = []
    for (start, end, opens_heading), encoding in zip(sentences, encodings, strict=True):
        spans = [_Span(0, end - start, max(1, len(encoding)))]  # none is free to overlap
        if len(encoding) > budget_tokens:
            spans = _split_long(text[start:end], encoding, budget_tokens)
        for span in spans:
            section = sections[bisect_right(starts, start + span.start) - 1]
            opens = opens_heading and span.start == 0
            pieces.append(_Piece(start + span.start, start + span.end, span.num_tokens, section, opens))
    return text, pieces


def _join(sections: Sequence[Section]) -> tuple[str, list[int], list[int]]:
    """The document's text, the start of each section in it, and the starts of sections with a new heading."""
    parts: list[str] = []
    starts: list[int] = []
    openings: list[int] = []
    length = 0
    for index, section in enumerate(sections):
        opens = index == 0 or section.title != sections[index - 1].title
        separator = "" if index == 0 else "\n\n" if opens else "\n"
        parts += separator, section.text
        length += len(separator)
        starts.append(length)
        if opens:
            openings.append(length)
        length += len(section.text)
    return "".join(parts), starts, openings


def _pack(pieces: Sequence[_Piece], budget_tokens: int, overlap_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of `pieces`, one per chunk."""
    first, used_tokens = 0, 0
    for index, piece in enumerate(pieces):
        is_full = used_tokens + piece.num_tokens > budget_tokens
        if is_full or (piece.opens_heading and used_tokens * TINY >= budget_tokens):
            yield first, index
            room_tokens = min(overlap_tokens, budget_tokens - piece.num_tokens)
            first, used_tokens = _step_back(pieces, index, room_tokens)
        used_tokens += piece.num_tokens
    if pieces:
        yield first, len(pieces)


def _step_back(pieces: Sequence[_Piece], index: int, room_tokens: int) -> tuple[int, int]:
    """Start of the chunk whose first new piece is `index`, and the tokens that it repeats."""
    first, overlap_tokens = index, 0
    while not pieces[first].opens_heading:
        overlap_tokens += pieces[first - 1].num_tokens
        if overlap_tokens > room_tokens:
            return first, overlap_tokens - pieces[first - 1].num_tokens
        first -= 1
    return first, overlap_tokens


def _split_long(sentence: str, encoding: Encoding, budget_tokens: int) -> list[_Span]:
    """Split a sentence of more than `budget_tokens` into parts that are as long as possible."""
    spans: list[_Span] = []
    for start, end, num_tokens in _atoms(sentence, encoding, budget_tokens):
        if spans and spans[-1].num_tokens + num_tokens <= budget_tokens:
            spans[-1] = _Span(spans[-1].start, end, spans[-1].num_tokens + num_tokens)
        else:
            spans.append(_Span(start, end, num_tokens))
    return spans


def _atoms(sentence: str, encoding: Encoding, budget_tokens: int) -> Iterator[_Span]:
    """Yield the smallest parts of a long sentence: the texts between white space that fit into the budget.

    A longer one (text without spaces, a long link) is cut into the tokenizer's words. A word that is still
    too long is cut into runs of so few letters that they fit, whatever their tokens are.
    """
    tokens = list(zip(encoding.word_ids, encoding.offsets, strict=True))
    after = 0
    for match in _UNBROKEN.finditer(sentence):
        first = after
        while after < len(tokens) and tokens[after][1][0] < match.end():
            after += 1
        if after - first <= budget_tokens:
            yield _Span(*match.span(), after - first)
            continue
        words = [list(word) for _, word in groupby(tokens[first:after], key=lambda token: token[0])]
        borders = [match.start(), *(word[0][1][0] for word in words[1:]), match.end()]
        for (start, end), word in zip(pairwise(borders), words, strict=True):
            if len(word) <= budget_tokens:
                yield _Span(start, end, len(word))
            else:
                step = budget_tokens // MAX_TOKENS_PER_LETTER
                yield from (_Span(at, min(at + step, end), budget_tokens) for at in range(start, end, step))


def max_tokens(model: str) -> int:
    """Return the largest number of tokens that an embedding model reads, special tokens included.

    Only its configuration is loaded.

    Raises:
        ConfigError: there is no such model, or its configuration does not say.
    """
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
        ("config.json", "max_position_embeddings"),
    ):
        path = model_file(model, name)
        try:
            found = json.loads(path.read_text("utf-8")).get(key) if path is not None else None
        except (OSError, ValueError, AttributeError) as cause:
            raise ConfigError(f"cannot load the model {model!r}: {path}: {cause}") from cause
        if isinstance(found, int) and found < _NO_LIMIT:
            return found
    raise ConfigError(f"the model {model!r} cannot be found, or does not say how many tokens it reads")


def check_sizes(tokens: int, overlap: int, most_tokens: int, *, step: str | None = None) -> None:
    """Check that a chunk size and overlap fit an embedding model that reads `most_tokens` tokens.

    `step` is the app's step that the error names.

    Raises:
        ConfigError: a size is out of range; the message names it.
    """
    if not MIN_TOKENS <= tokens <= most_tokens:
        raise ConfigError(
            f"chunk: tokens is {tokens}, must be {MIN_TOKENS} to {most_tokens} (the embedder reads no more)",
            step=step,
        )
    if not 0 <= overlap < tokens - NUM_SPECIAL_TOKENS:
        raise ConfigError(
            f"chunk: overlap is {overlap}, must leave room for new text in chunks of {tokens} tokens",
            step=step,
        )


def _load_tokenizer(model: str) -> Tokenizer:
    with imports_of("local", "chunking"):
        from tokenizers import Tokenizer
    path = model_file(model, "tokenizer.json")
    if path is None:
        raise ConfigError(f"the model {model!r} has no tokenizer.json, which is needed to measure chunks")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # tokenizers raises nothing more special
        raise ConfigError(f"cannot load the model {model!r}: {path}: {cause}") from cause
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
