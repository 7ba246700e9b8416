"""The wire form of a server's models, the choice of one, and requests to cut a text into tokens.

Source: vLLM 0.32, `serve/engine/protocol.py` (`ModelCard`), `serve/tokenize/protocol.py`; llama.cpp's
`/tokenize` takes the text as `content`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stretto.model.errors import BadServer, ConfigError

_OTHER_KINDS = re.compile(
    r"embed|rerank|cross-encoder|colbert|\b(bge|gte|e5|minilm)\b|whisper|\btts\b|text-to-speech|transcribe|"
    r"moderation|guard\b|dall-e|\bimage\b|diffusion|\bflux\b|\bsora\b|\bclip\b|realtime",
    re.IGNORECASE,
)
"""Parts of names of models that complete no text."""
_FOR_CHATS = re.compile(r"(^|[-_:/.])(instruct|chat|it|assistant)($|[-_:.])", re.IGNORECASE)
"""Parts of names of models that were trained to answer in chats, put into their template."""
_COMPARING = re.compile(r"embed|rerank|cross-encoder|colbert|\b(bge|gte|e5|minilm)\b", re.IGNORECASE)
"""Parts of names of models that embed or rerank."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as an OpenAI-compatible server lists it under `/v1/models`.

    Attributes:
        root: directory or name of its weights, on the server.
        max_model_tokens: longest prompt and answer together; None where the server does not say.
        parent: name of the model that this one is an adapter (LoRA) of; None for a model of its own.
    """

    id: str
    root: str | None = None
    max_model_tokens: int | None = None
    created_s: int = 0
    parent: str | None = None

    @property
    def is_for_chats(self) -> bool:
        """Whether the name of the model, or of its weights, says that it was trained for chats."""
        return any(_FOR_CHATS.search(name) for name in (self.id, self.root or ""))

    def to_json(self) -> dict[str, object]:
        """Return the JSON of this model's entry in the list of models."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created_s,
            "owned_by": "stretto",
            "root": self.root,
            "parent": self.parent,
            "max_model_len": self.max_model_tokens,
        }


def models_json(cards: Sequence[ModelCard]) -> dict[str, object]:
    """Return the JSON body of a server's list of models, `/v1/models`."""
    return {"object": "list", "data": [card.to_json() for card in cards]}


def read_models(body: Any) -> tuple[ModelCard, ...]:
    """Read the models that a server lists in the body of `/v1/models`.

    The list may stand in an object, as OpenAI has it, or alone; null is an empty list. An unusable root or
    length is taken as absent; a model without a usable name is an error.

    Raises:
        BadServer: the body is not a list of models.
    """
    try:
        entries = body if isinstance(body, list) else body["data"]
        return tuple(_read_card(entry) for entry in entries or ())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadServer(f"the server lists no models: {ascii(body)[:200]}") from error


def _read_card(entry: Any) -> ModelCard:
    name, limit = entry["id"], entry.get("max_model_len")
    if not name.encode():
        raise ValueError("a model without a name")
    root, parent = (value if isinstance(value, str) else None for value in map(entry.get, ("root", "parent")))
    limit = limit if type(limit) is int and limit > 0 else None
    return ModelCard(name, root, limit, parent=parent)


def choose_model(
    cards: Sequence[ModelCard], wanted: str | None, *, does: Literal["complete", "compare"] = "complete"
) -> ModelCard:
    """Return the model that requests to a server are for: `wanted`, or the only one that can be meant.

    Servers may know names that they do not list. Without a name, adapters are left out; models whose names
    say that they do something else are left out where others remain; and several names of the same weights
    count as one.

    Args:
        does: what the model is for: to complete texts, or to compare them (embed, rerank).

    Raises:
        BadServer: no model is wanted, and the server lists none.
        ConfigError: no model is wanted, and the server lists several.
    """
    if wanted is not None:
        return next((card for card in cards if card.id == wanted), ModelCard(wanted))
    if not cards:
        raise BadServer("the server lists no model, and none is named")
    if len(cards) == 1:
        return cards[0]
    own = [card for card in cards if card.parent is None]
    fitting = [card for card in own if _can(card.id, does)] or own or list(cards)
    if len(fitting) == 1 or (fitting[0].root is not None and len({card.root for card in fitting}) == 1):
        return fitting[0]
    raise ConfigError(
        f"the server lists {len(cards)} models; name the one to use: {', '.join(card.id for card in cards)}"
    )


def _can(name: str, does: str) -> bool:
    if does == "compare":
        return _COMPARING.search(name) is not None
    return _OTHER_KINDS.search(name) is None


def tokenize_request(model: str, text: str) -> dict[str, object]:
    """Return the body of a request to a server's `/tokenize` for the token ids of `text`, without special
    tokens such as BOS.

    Both vLLM and llama.cpp understand it.
    """
    return {"model": model, "prompt": text, "content": text, "add_special_tokens": False}


def tokenize_chat_request(model: str, text: str) -> dict[str, object]:
    """Return the body of a request to vLLM's `/tokenize` for the token ids of a chat of one message of the
    user, with what its chat template puts around that.
    """
    return {"model": model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}


def tokenize_json(tokens: Sequence[int], max_model_tokens: int) -> dict[str, object]:
    """Return the JSON body of a server's answer to a `/tokenize` request: the tokens, and the longest prompt
    and answer.
    """
    return {"count": len(tokens), "max_model_len": max_model_tokens, "tokens": list(tokens)}


def read_tokens(body: Any) -> list[int] | None:
    """Read the token ids from the body of a server's answer to a `/tokenize` request; None if it has none."""
    tokens = body.get("tokens") if isinstance(body, dict) else None
    return tokens if isinstance(tokens, list) and tokens else None
