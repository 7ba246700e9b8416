"""The wire form of a server's models, and of requests to cut a text into tokens.

Source: vLLM 0.32, `serve/engine/protocol.py` (`ModelCard`), `serve/tokenize/protocol.py`; llama.cpp's
`/tokenize` takes the text as `content`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto.errors import BadReply


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as an OpenAI-compatible server lists it under `/v1/models`.

    Attributes:
        root: directory or name of its weights, on the server.
        max_model_tokens: longest prompt and answer together; None where the server does not say.
    """

    id: str
    root: str | None = None
    max_model_tokens: int | None = None
    created_s: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the JSON of this model's entry in the list of models."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created_s,
            "owned_by": "stretto",
            "root": self.root,
            "parent": None,
            "max_model_len": self.max_model_tokens,
        }


def models_json(cards: Sequence[ModelCard]) -> dict[str, object]:
    """Return the JSON body of a server's list of models, `/v1/models`."""
    return {"object": "list", "data": [card.to_json() for card in cards]}


def read_models(body: Any) -> tuple[ModelCard, ...]:
    """Read the models that a server lists in the body of `/v1/models`.

    An unusable root or length is taken as absent; a model without a usable name is an error.

    Raises:
        BadReply: the body is not a list of models.
    """
    try:
        return tuple(_read_card(entry) for entry in body["data"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadReply(f"the server lists no models: {ascii(body)[:200]}") from error


def _read_card(entry: Any) -> ModelCard:
    name, root, limit = entry["id"], entry.get("root"), entry.get("max_model_len")
    if not name.encode():
        raise ValueError("a model without a name")
    return ModelCard(
        name,
        root if isinstance(root, str) else None,
        limit if type(limit) is int and limit > 0 else None,
    )


def tokenize_request(model: str, text: str) -> dict[str, object]:
    """Return the body of a request to a server's `/tokenize` for the token ids of `text`, without special
    tokens such as BOS.

    Both vLLM and llama.cpp understand it.
    """
    return {"model": model, "prompt": text, "content": text, "add_special_tokens": False}


def tokenize_json(tokens: Sequence[int], max_model_tokens: int) -> dict[str, object]:
    """Return the JSON body of a server's answer to a `/tokenize` request: the tokens, and the longest prompt
    and answer.
    """
    return {"count": len(tokens), "max_model_len": max_model_tokens, "tokens": list(tokens)}


def read_tokens(body: Any) -> list[int] | None:
    """Read the token ids from the body of a server's answer to a `/tokenize` request; None if it has none."""
    tokens = body.get("tokens") if isinstance(body, dict) else None
    return tokens if isinstance(tokens, list) and tokens else None
