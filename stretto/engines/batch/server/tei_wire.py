"""The wire form of Text Embeddings Inference (TEI): `/info`, `/embed` and `/rerank`.

Source: huggingface/text-embeddings-inference, `router/src/lib.rs` (`Info`) and `router/src/http/types.rs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.model.errors import BadServer
from stretto.wire.embeddings import Vector

INFO = "info"
EMBED = "embed"
RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class TEIInfo:
    """The facts that a TEI server tells of itself.

    Attributes:
        model: name of its model.
        max_texts: largest number of texts of one request; more are refused with status 413.
    """

    model: str
    max_texts: int


def read_info(body: Any) -> TEIInfo | None:
    """Read the body of `/info`; None if it is not that of a TEI server."""
    if not isinstance(body, dict):
        return None
    model, max_texts = body.get("model_id"), body.get("max_client_batch_size")
    if not isinstance(model, str) or type(max_texts) is not int or max_texts < 1:
        return None
    return TEIInfo(model, max_texts)


def embed_request(texts: Sequence[str]) -> dict[str, object]:
    """Return the body of a request for the vectors of texts. What is too long for the model is cut off."""
    return {"inputs": list(texts), "truncate": True}


def read_vectors(body: Any, num_texts: int) -> list[Vector]:
    """Read the vectors of `num_texts` texts, in the order of the request.

    Raises:
        BadServer: the body does not have one vector for each text.
    """
    try:
        vectors = [np.array(row, np.float32) for row in body]
    except (TypeError, ValueError) as error:
        raise BadServer(f"the server sent no list of embeddings: {ascii(body)[:200]}") from error
    if len(vectors) != num_texts:
        raise BadServer(f"the server sent {len(vectors)} vectors for {num_texts} texts")
    return vectors


def tei_rerank_request(query: str, texts: Sequence[str]) -> dict[str, object]:
    """Return the body of a request for the scores of texts. What is too long for the model is cut off.

    The answer is a list of results with `index` and `score`.
    """
    return {"query": query, "texts": list(texts), "truncate": True}
