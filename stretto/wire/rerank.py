"""The wire form of vLLM's `/rerank`: a query and documents in, a score for each document out.

Source: vLLM 0.32, `entrypoints/pooling/score/protocol.py`, which follows Jina's and Cohere's APIs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.model.errors import BadServer

PATH = "rerank"


def rerank_request(model: str, query: str, documents: Sequence[str], *, truncates: bool) -> dict[str, object]:
    """Return the body of a request for the scores of documents.

    Args:
        truncates: whether to ask for long texts to be cut, which servers other than vLLM may not understand.
    """
    body: dict[str, object] = {"model": model, "query": query, "documents": list(documents)}
    return {**body, "truncate_prompt_tokens": -1} if truncates else body


def read_scores(results: Any, num_documents: int, score: str = "relevance_score") -> list[float]:
    """Read the scores of `num_documents` documents, in the order of the request, from a list of results.

    Each result has the `index` of its document; the results come in any order.

    Args:
        score: name of the score in a result.

    Raises:
        BadServer: there is not one finite score for each document.
    """
    try:
        scores = {result["index"]: float(result[score]) for result in results}
        if len(results) != num_documents:
            raise ValueError(f"{len(results)} scores for {num_documents} documents")
        found = [scores[index] for index in range(num_documents)]
        if not all(abs(value) < float("inf") for value in found):
            raise ValueError("a score is not finite")
    except (LookupError, TypeError, ValueError) as error:
        raise BadServer(f"the server sent no list of scores ({error!r}): {ascii(results)[:200]}") from error
    return found


def ranking_json(
    scores: Sequence[float], documents: Sequence[str] | None, top: int, num_tokens: int, **head: str
) -> dict[str, object]:
    """Return the body of an answer with the `top` best documents, the best first, or with their places alone.

    Args:
        scores: score of each document, in the order of the request.
        documents: texts of the documents; None leaves them out.
        head: `id` and `model`.
    """
    scored = sorted(((score, -place) for place, score in enumerate(scores)), reverse=True)
    results: list[dict[str, object]] = [
        {
            "index": -place,
            **({} if documents is None else {"document": {"text": documents[-place]}}),
            "relevance_score": score,
        }
        for score, place in scored[:top]
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {**head, "usage": usage, "results": results}
