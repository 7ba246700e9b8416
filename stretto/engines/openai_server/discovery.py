"""The facts to learn about a server before the first prompt: its model, its tokenizer, its prefix cache."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.http import Http, read_server_json
from stretto.engines.openai_server.metrics import CacheConfig, read_cache_config
from stretto.model.errors import BadReply, ConfigError, EngineFailure
from stretto.model.extras import is_installed
from stretto.model.values import Segment
from stretto.wire import paths
from stretto.wire.models import (
    ModelCard,
    choose_model,
    read_models,
    read_tokens,
    tokenize_chat_request,
    tokenize_request,
)
from stretto.wire.paths import Api

if TYPE_CHECKING:
    from stretto.engines.prompt_tokens import PromptTokenizer

_log = logging.getLogger(__name__)

# Tokenizers that agree on this are taken for the same.
_PROBE = "Which voice enters first, and why? 3,14 ½ naïve façade\n\n\tdef f(x): return {'日本語': x[0]} 🎼"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The properties of an LLM server that were found out before the first prompt is sent.

    Attributes:
        model: name of the model, as the server knows it.
        api: API by which it is asked.
        tokenizer: tokenizer for sending token ids; None where prompts are sent as text or messages.
        max_model_tokens: longest prompt and answer together; None where the server does not say.
        cache: what is known of the server's prefix cache.
        takes_system: whether chats may have a system message; otherwise the user's begins with its text.
    """

    model: str
    api: Api
    tokenizer: PromptTokenizer | None
    max_model_tokens: int | None
    cache: CacheConfig
    takes_system: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether prompts are sent in their plain form, without a chat template."""
        return self.api == "completions" and (self.tokenizer is None or not self.tokenizer.has_template)


async def discover(http: Http, config: OpenAIServerConfig, *, others_serve: bool = False) -> ServerFacts:
    """Ask a server for its model, its tokenizer and the properties of its prefix cache.

    `others_serve` is whether what needs them can go to another server, so that one that refuses is not asked
    again.

    Raises:
        ConfigError: the configured tokenizer cannot be loaded, or is not the server's; or the server lists
            several models, and none is named.
        EngineFailure: the server cannot be asked, or lists no model.
    """
    card = await find_model(http, config.model, others_serve=others_serve)
    tokenizer = await _find_tokenizer(http, config, card)
    if config.api == "completions" and tokenizer is None and card.is_for_chats:
        _log.warning(
            "%s: the name of %r says that it is trained for chats, and it gets prompts without its chat "
            "template; --api auto or chat (`api` in a file with engines) has the server apply that",
            http.name,
            card.id,
        )
    cache = await _find_cache(http) if config.warms_prefixes else CacheConfig()
    api = config.api
    if api == "auto":
        api = "chat" if tokenizer is None else "completions"
    return ServerFacts(card.id, api, tokenizer, card.max_model_tokens, cache)


async def find_model(http: Http, wanted: str | None, *, others_serve: bool = False) -> ModelCard:
    """Return the model that requests to a server are for: the one of this name, or the only one it lists.

    Raises:
        ConfigError: none is named, and the server lists several.
        EngineFailure: none is named, and the server cannot be asked or lists none.
    """
    try:
        models = read_models(read_server_json(await http.fetch(paths.MODELS, others_serve=others_serve)))
    except BadReply:
        if wanted is None:
            raise
        models = ()
    try:
        chosen = choose_model(models, wanted)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} (option --model, `model` in a file with engines, or `model=` of `llm_engine`)"
        ) from error
    if wanted is None and len(models) > 1:
        _log.warning("of the %d models that %s lists, %r is used", len(models), http.name, chosen.id)
    return chosen


async def _find_tokenizer(http: Http, config: OpenAIServerConfig, card: ModelCard) -> PromptTokenizer | None:
    if config.api == "chat" or config.tokenizer == "none":
        return None
    folder = Path(config.tokenizer)
    if config.tokenizer == "auto":
        can_read = is_installed("tokenizers", "transformers")
        if card.root is None or not can_read or not _has_tokenizer(Path(card.root)):
            return None
        folder = Path(card.root)
    tokenizer = await asyncio.to_thread(_load, folder)
    theirs = await _their_tokens(http, tokenize_request(card.id, _PROBE))
    ours = tokenizer.encode((Segment(_PROBE, "probe"),))
    num_of_text = len(ours) - len(tokenizer.encode(()))
    if theirs is None:
        return tokenizer if config.tokenizer != "auto" else None
    if len(theirs) < num_of_text or ours[-len(theirs) :] != theirs:
        if config.tokenizer == "auto":
            return None
        raise ConfigError(f"the tokenizer in {folder} is not the one of {card.id!r} at {config.url}")
    if (
        config.api == "auto"
        and tokenizer.has_template
        and not await _has_same_template(http, card, tokenizer)
    ):
        _log.warning("%s: its chat template is not the one in %s, so it is asked by chat", http.name, folder)
        return None
    return tokenizer


async def _has_same_template(http: Http, card: ModelCard, tokenizer: PromptTokenizer) -> bool:
    """Return whether a server makes of a chat what our copy of its template makes, or does not tell.

    A server may have another one than stands beside its model, such as vLLM with `--chat-template`.
    """
    theirs = await _their_tokens(http, tokenize_chat_request(card.id, _PROBE))
    prompt = (Segment(_PROBE, "probe", role="user"),)
    return theirs is None or theirs == tokenizer.encode(prompt) + tokenizer.end_of(prompt)


def _has_tokenizer(folder: Path) -> bool:
    try:
        return (folder / "tokenizer.json").is_file()
    except OSError:  # not to be read, or no path at all
        return False


def _load(folder: Path) -> PromptTokenizer:
    from stretto.engines.prompt_tokens import PromptTokenizer

    try:
        return PromptTokenizer(folder)
    except ConfigError:
        raise
    except Exception as error:  # whatever the loaders raise, it is about these files
        raise ConfigError(f"cannot load the tokenizer in {folder}: {error}") from error


async def _their_tokens(http: Http, asking: dict[str, object]) -> list[int] | None:
    """Return the probe text as the server tokenises it, or None if it does not tell."""
    try:
        asked = await http.fetch(paths.TOKENIZE, asking, is_retried=False)
        return read_tokens(read_server_json(asked))
    except EngineFailure:
        return None


async def _find_cache(http: Http) -> CacheConfig:
    try:
        return read_cache_config((await http.fetch(paths.METRICS, is_retried=False)).decode(errors="replace"))
    except EngineFailure:
        return CacheConfig()
