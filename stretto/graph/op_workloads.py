"""What engines are measured with: batches of growing size, like those of the ready-made apps.

Documents are cut into chunks, chunks of the default size become vectors, pairs are scored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stretto.graph.ops import MeasuredBatch
from stretto.model.values import Chunk, Document, Hit, Section

_CHUNK_WORDS = 170  # a chunk of the default size
_SHORT_WORDS = (10, 60)
_TEXT = (
    "the engine reads each document once and cuts it into pieces that a model can hold because a reader "
    "who asks a question wants the passage that answers it and not the whole book "
)


def text_of_words(num_words: int, seed: int) -> str:
    """Return a text of so many English words; texts with different seeds begin differently."""
    words = _TEXT.split()
    start = seed % len(words)
    return " ".join(itertools.islice(itertools.cycle(words), start, start + num_words))


def _chunks(count: int, num_words: int = _CHUNK_WORDS) -> list[Chunk]:
    return [Chunk("profile", i, text_of_words(num_words, i), num_chunks=count) for i in range(count)]


def documents_to_cut() -> Iterator[MeasuredBatch]:
    """Yield documents of several pages, which are cut by the chunker's own sizes."""
    for count in (1, 2, 4, 8):
        files = [Document(f"d{i}", (Section(text_of_words(4000, i)),), str(i)) for i in range(count)]
        yield MeasuredBatch(count, {"files": files}, ("files",))


def texts_to_embed() -> Iterator[MeasuredBatch]:
    """Yield chunks of the default size, and shorter texts."""
    for count in (1, 2, 4, 8, 16, 32, 64):
        yield MeasuredBatch(count, {"texts": _chunks(count)}, ("texts",))
    for num_words, count in itertools.product(_SHORT_WORDS, (1, 4, 32)):
        yield MeasuredBatch(count, {"texts": _chunks(count, num_words)}, ("texts",))


def rows_to_ingest() -> Iterator[MeasuredBatch]:
    """Yield chunks with vectors of 384 numbers."""
    import numpy as np

    vectors = list(np.random.default_rng(0).standard_normal((1024, 384)).astype(np.float32))
    for count in (16, 64, 256, 1024):
        yield MeasuredBatch(
            count, {"chunks": _chunks(count), "vectors": vectors[:count]}, ("chunks", "vectors")
        )


def pairs_to_score() -> Iterator[MeasuredBatch]:
    """Yield a question with passages of the default size, and with shorter ones."""
    sizes = [(_CHUNK_WORDS, count) for count in (4, 16, 64, 256)]
    for num_words, count in (*sizes, *itertools.product(_SHORT_WORDS, (1, 4, 64))):
        hits = [Hit(chunk, 0.5) for chunk in _chunks(count, num_words)]
        yield MeasuredBatch(count, {"question": "which passage answers the question?", "hits": hits})
