"""Cuts documents into chunks of whole sentences, short enough for the embedder.

A document's text is its sections' texts in order. A chunk is a piece of that text, character for
character: sentences are packed while they fit, and the next chunk begins with the last few of them again.

Sections. Pages are one continuous text: sentences and chunks run across their ends. A new heading ends
the sentence, and it ends the chunk unless that is still tiny (under a quarter full); so short sections
under several headings share a chunk, and nothing overlaps across a heading. A chunk has the page and
title of the section it starts in, and marks where further sections begin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.engines.batch.applications import OpApplication, answer_batch, setting, unwanted
from stretto.engines.batch.local_models import MINILM, model_file
from stretto.engines.batch.pieces import DocumentText, TextPiece, gap_tokens, text_pieces
from stretto.engines.contract import BatchEngine
from stretto.model.errors import ConfigError, QueryCancelled
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEFAULT_TOKENS = 256
DEFAULT_OVERLAP = 30
MIN_TOKENS = 16
NUM_SPECIAL_TOKENS = 2  # before and after a text, as [CLS] and [SEP]
_NO_LIMIT = 1_000_000  # tokenizers that know none name a huge number
TINY = 4  # a chunk under 1/4 of the budget runs on past a heading
_MIN_BYTES = 200
"""Mean number of bytes that a chunk has at least in a document of more than `max_chunks` chunks."""


@dataclass(frozen=True, slots=True)
class ChunkingConfig:
    """Configuration of `Chunking`, the engine that cuts documents. The sizes of chunks are settings of each
    task.

    Attributes:
        model: embedder whose tokens are counted, as in `EmbeddingConfig`.
        max_chunks: number of chunks that a document may have in any case. It may have more only if each has
            200 bytes of it on average, because a chunk takes some thousand bytes of memory.

    Raises:
        ConfigError: `max_chunks` is below 1.
    """

    model: str = MINILM
    max_chunks: int = 10_000

    def __post_init__(self) -> None:
        if self.max_chunks < 1:
            raise ConfigError(f"max_chunks is {self.max_chunks}; it must be at least 1")


class Chunking(BatchEngine):
    """A batch engine that cuts documents into chunks of whole sentences.

    It runs the op `chunk`: input `files` (a Document); settings `tokens` (largest chunk,
    special tokens included) and `overlap` (most tokens repeated from the chunk before). It answers the
    document's chunks in order.
    """

    op_names = ("chunk",)

    def __init__(self, config: ChunkingConfig) -> None:
        """Load the tokenizer.

        Raises:
            ConfigError: packages are missing, there is no such model, or it has no usable tokenizer.
        """
        self._max_tokens = max_tokens(config.model)
        self._max_chunks = config.max_chunks
        self._tokenizer = tokenizer_of(config.model)
        self._is_unwanted: Callable[[int], bool] = lambda _: False

    def heed(self, is_unwanted: Callable[[int], bool]) -> None:
        """Take the function that says which tasks are not wanted any more. It is asked before each
        sentence of a document.
        """
        self._is_unwanted = is_unwanted

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Cut the documents of the tasks into chunks; return the chunks of each.

        Raises:
            ConfigError: `tokens` is out of range, `overlap` is so large that chunks have no new text, or a
                document would have too many chunks.
            BadReply: an input is no document.
        """
        return answer_batch(tasks, {"chunk": self._chunk})

    def _chunk(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._chunks(application) for application in applications]

    def _chunks(self, application: OpApplication) -> list[Chunk] | QueryCancelled:
        document, task = application.require("files", Document), application.task

        def is_unwanted() -> bool:
            return self._is_unwanted(task.id)

        try:
            return chunk_document(
                document,
                self._tokenizer,
                *self._sizes(task),
                max_chunks=self._max_chunks,
                is_unwanted=is_unwanted,
            )
        except _Stopped:
            return unwanted(application)
        except ConfigError as error:
            raise error.at(task.step) from None

    def _sizes(self, task: Task) -> tuple[int, int]:
        """Token budgets of a chunk's text and of its overlap."""
        most = self._max_tokens
        tokens = setting(task, "tokens", int, min(DEFAULT_TOKENS, most))
        overlap = setting(task, "overlap", int, min(DEFAULT_OVERLAP, most // 8))
        check_sizes(tokens, overlap, self._max_tokens, step=task.step)
        return tokens - NUM_SPECIAL_TOKENS, overlap


class _Stopped(Exception):
    """The chunks of a document are not wanted any more."""


def chunk_document(
    document: Document,
    tokenizer: Tokenizer,
    budget_tokens: int,
    overlap_tokens: int,
    *,
    max_chunks: int | None = None,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> list[Chunk]:
    """Cut a document into chunks of whole sentences, of up to `budget_tokens` each without special tokens.

    Each chunk may repeat up to `overlap_tokens` of the one before it. The time is linear in the length.

    Raises:
        ConfigError: there would be more than `max_chunks` chunks, of too few bytes; None sets no limit.
    """
    text = DocumentText.of(document.sections)
    pieces = _while_wanted(text_pieces(text, tokenizer, budget_tokens), is_unwanted)
    packed = _pack(pieces, budget_tokens, overlap_tokens)
    spans = list(packed if max_chunks is None else _bounded(packed, text.text, max_chunks))
    chunks: list[Chunk] = []
    for index, (start, end) in enumerate(spans):
        first, *further = text.sections(start, end)
        chunks.append(
            Chunk(
                source=document.source,
                index=index,
                text=text.text[start:end],
                title=first.title,
                page=first.page,
                document_sha256=document.sha256,
                num_chunks=len(spans),
                marks=tuple(further),
            )
        )
    return chunks


def _bounded(spans: Iterable[tuple[int, int]], text: str, max_chunks: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of a text's chunks. Raises ConfigError if they are too many for its bytes."""
    most = max_chunks
    for number, span in enumerate(spans, start=1):
        if number > most:
            most = max(max_chunks, len(text.encode("utf-8", "replace")) // _MIN_BYTES)
        if number > most:
            raise ConfigError(
                f"chunk: a document would have more than {most} chunks; it may have {max_chunks}, or one for "
                f"each {_MIN_BYTES} bytes: choose more tokens or less overlap"
            )
        yield span


def _while_wanted(pieces: Iterable[TextPiece], is_unwanted: Callable[[], bool]) -> Iterator[TextPiece]:
    """Yield the pieces. Raises `_Stopped` once they are not wanted any more."""
    for piece in pieces:
        if is_unwanted():
            raise _Stopped
        yield piece


def _pack(pieces: Iterable[TextPiece], budget_tokens: int, overlap_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open span of each chunk in the text."""
    chunk: list[TextPiece] = []
    used_tokens = 0
    for piece in pieces:
        more_tokens = piece.num_tokens + (gap_tokens(chunk[-1], piece) if chunk else 0)
        is_full = used_tokens + more_tokens > budget_tokens
        if is_full or (piece.opens_heading and used_tokens * TINY >= budget_tokens):
            yield chunk[0].start, chunk[-1].end
            room_tokens = min(overlap_tokens, budget_tokens - piece.num_tokens)
            chunk, used_tokens = _repeated(chunk, piece, room_tokens)
            more_tokens = piece.num_tokens
        chunk.append(piece)
        used_tokens += more_tokens
    if chunk:
        yield chunk[0].start, chunk[-1].end


def _repeated(chunk: Sequence[TextPiece], after: TextPiece, room_tokens: int) -> tuple[list[TextPiece], int]:
    """Return the last pieces of a chunk that the next one, whose first new piece is `after`, repeats; and how
    many tokens they are.
    """
    first, used_tokens = len(chunk), 0
    while first > 0 and not after.opens_heading:
        before = chunk[first - 1]
        more_tokens = before.num_tokens + gap_tokens(before, after)
        if used_tokens + more_tokens > room_tokens:
            break
        first, after = first - 1, before
        used_tokens += more_tokens
    return list(chunk[first:]), used_tokens


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


def tokenizer_of(model: str) -> Tokenizer:
    """Return the tokenizer of an embedding model, which cuts and pads nothing.

    Raises:
        ConfigError: packages are missing, there is no such model, or it has no usable tokenizer.
    """
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
