"""Deterministic vectors and scores of texts: texts with common words are alike."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 1024
"""Length of vectors, that of bge-large-en-v1.5."""
_WORD = re.compile(r"\w+")


def direction_of(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.int32]:
    """Return the direction of a text's vector as whole numbers: the sum of a random one for each word."""
    words = _WORD.findall(text.casefold()) or [text]
    total: NDArray[np.int32] = np.add.reduce([_of_word(word, dimensions) for word in words], dtype=np.int32)
    return total if total.any() else _of_word(text, dimensions).astype(np.int32)


def vector_of(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.float32]:
    """Return the vector of a text, of length 1."""
    counts = direction_of(text, dimensions).astype(np.float32)
    return counts / np.float32(np.linalg.norm(counts))


def vector_json(text: str, dimensions: int = DIMENSIONS) -> str:
    """Return the vector of a text as JSON. Its few different numbers are written once each."""
    counts = direction_of(text, dimensions)
    length = math.sqrt(float((counts.astype(np.int64) ** 2).sum()))
    least = int(counts.min())
    written = [f"{count / length:.8f}" for count in range(least, int(counts.max()) + 1)]
    return f"[{','.join([written[place] for place in (counts - least).tolist()])}]"


def relevance(query: str, document: str) -> float:
    """Return a score in (0, 1) of how well a document answers a query: more common words, a higher one."""
    cosine = float(_of_query(query) @ vector_of(document, 256))
    return 1 / (1 + math.exp(-8 * (cosine - 0.5)))


@lru_cache(maxsize=64)
def _of_query(query: str) -> NDArray[np.float32]:
    return vector_of(query, 256)


@lru_cache(maxsize=4096)
def _of_word(word: str, dimensions: int) -> NDArray[np.int8]:
    num_bytes = -(-dimensions // 8)
    bits = np.unpackbits(
        np.frombuffer(shake_128(word.encode("utf-8", "replace")).digest(num_bytes), np.uint8)
    )
    return (bits[:dimensions].astype(np.int8) * 2 - 1).astype(np.int8)
