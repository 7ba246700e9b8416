"""The wire form of OpenAI's `/v1/embeddings`: texts in, a vector for each out.

Source: OpenAI's API reference, "Create embeddings"; vLLM 0.32, `entrypoints/pooling/embed/protocol.py`, whose
`truncate_prompt_tokens` of -1 cuts texts to what the model can read.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.model.errors import BadServer

Vector: TypeAlias = NDArray[np.float32]

PATH = "v1/embeddings"


def embeddings_request(model: str, texts: Sequence[str], *, truncates: bool) -> dict[str, object]:
    """Return the body of a request for the vectors of texts, which are to come in base64.

    Args:
        truncates: whether to ask for long texts to be cut, which servers other than vLLM may not understand.
    """
    body: dict[str, object] = {"model": model, "input": list(texts), "encoding_format": "base64"}
    return {**body, "truncate_prompt_tokens": -1} if truncates else body


def read_embeddings(body: Any, num_texts: int) -> list[Vector]:
    """Read the vectors of `num_texts` texts, in the order of the request; base64 and numbers are understood.

    Raises:
        BadServer: the body does not have one vector of float32 for each text.
    """
    try:
        vectors = {row["index"]: _vector(row["embedding"]) for row in body["data"]}
        if len(body["data"]) != num_texts:
            raise ValueError(f"{len(body['data'])} vectors for {num_texts} texts")
        return [vectors[index] for index in range(num_texts)]
    except (LookupError, TypeError, ValueError) as error:
        raise BadServer(f"the server sent no list of embeddings ({error!r}): {ascii(body)[:200]}") from error


def _vector(value: Any) -> Vector:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
    return np.array(value, np.float32)


def embeddings_json(
    model: str, vectors: Sequence[Vector], num_tokens: int, *, in_base64: bool
) -> dict[str, object]:
    """Return the body of an answer with the vectors of texts, in their order.

    Args:
        num_tokens: number of tokens of all texts together.
        in_base64: whether vectors are base64 of little-endian float32, and not lists of numbers.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, in_base64)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _written(vector: Vector, in_base64: bool) -> str | list[float]:
    if in_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    found: list[float] = vector.astype(float).tolist()
    return found
