"""Prompts of calls that no server of their LLM has room for are refused before anything runs.

Only what is known when a call is submitted counts: constants, and variables that are set. A prompt that comes
of an earlier answer is refused by the server, when it is asked.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import find_model
from stretto.engines.openai_server.http import Http, read_server_json
from stretto.graph.graph import Constant
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply, CapacityError, StrettoError
from stretto.model.replica import Replica
from stretto.programs.fragment import WaitingCall
from stretto.programs.function import Function
from stretto.runtime.session import Session
from stretto.service.pool.engine import PooledConfig
from stretto.service.pool.in_process import InProcessClient
from stretto.wire import paths
from stretto.wire.models import read_tokens, tokenize_request

_SHORT_BYTES = 2000
"""Most bytes of prompts that are taken to fit everywhere, so that no server is asked."""
_MOST_BYTES_PER_TOKEN = 128
"""No tokenizer in use has tokens of more bytes; the longest are runs of spaces."""
_MOST_MERGED = 2
"""Most tokens by which a text is shorter where it is joined to another, and with white space left out."""
_PATIENCE_S = 2.0
"""Seconds in which a server must answer, or the prompt is left to it."""


_Config: TypeAlias = OpenAIServerConfig | PooledConfig


class PromptRoom:
    """Knows how long prompts may be at the servers of LLMs, which are asked when it matters.

    Args:
        deployments: the engines there are, which may change.
    """

    def __init__(self, deployments: Mapping[str, Deployment]) -> None:
        self._deployments = deployments
        self._servers: dict[_Config, ServerRoom] = {}

    async def check(
        self, calls: Sequence[WaitingCall], given: Mapping[str, object], session: Session
    ) -> None:
        """Check that the prompts of calls to a session fit, as far as they are known.

        Args:
            given: values of variables that come with the calls.

        Raises:
            CapacityError: the prompt of a call leaves no room for an answer at any server of its LLM; the
                message has its tokens and the limit.
        """
        for call in calls:
            if isinstance(call.work, Function) and _runs_as_it_is(call, call.work):
                pieces = _first_prompt(call.work, _values_of(call, given, session))
                if _num_bytes(pieces) > _SHORT_BYTES:
                    await self._check(call.work, pieces)

    async def _check(self, work: Function, pieces: Sequence[str]) -> None:
        deployment = self._deployments[work.engine]
        refusals = [await self._refusal(replica, pieces) for replica in deployment.replicas]
        if refusals and None not in refusals:
            raise CapacityError(f"the prompt {refusals[0]}", step=f"{work.name}.{next(iter(work.outputs))}")

    async def _refusal(self, replica: Replica, pieces: Sequence[str]) -> str | None:
        """Return why a prompt does not fit at a server; None if it may."""
        config = replica.config
        if not isinstance(config, OpenAIServerConfig | PooledConfig):
            return None
        server = self._servers.setdefault(config, ServerRoom(config))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await server.refusal(pieces)
        except (StrettoError, TimeoutError):
            return None  # as whoever sends the prompt will say


class ServerRoom:
    """One server of an LLM, or the pool of its workers."""

    def __init__(self, config: _Config) -> None:
        self._config = config
        self._most: float | None = None

    async def refusal(self, pieces: Sequence[str]) -> str | None:
        """Return why a prompt does not fit; None if it may. Raises StrettoError if the server cannot say."""
        config = self._config
        model = config.model if isinstance(config, OpenAIServerConfig) else config.server.model
        num_bytes = _num_bytes(pieces)
        if self._most is not None and num_bytes < self._most:
            return None
        http = _http_of(self._config)
        try:
            card = await find_model(http, model)  # again, as it may have been restarted
            most = card.max_model_tokens or await _context_of_llama(http)
            self._most = math.inf if most is None else most
            if num_bytes < self._most:
                return None
            asked = tokenize_request(card.id, " ".join(pieces))
            try:
                found = read_tokens(
                    read_server_json(await http.fetch(paths.TOKENIZE, asked, is_retried=False))
                )
            except BadReply:
                found = None
        finally:
            await http.aclose()
        if found is None:
            least = num_bytes // _MOST_BYTES_PER_TOKEN
            words = f"more than {least - 1}"
        else:
            least, words = len(found) - _MOST_MERGED * len(pieces), f"{len(found)}"
        if least < self._most:
            return None
        return f"has {words} tokens, and the LLM takes {most} together with its answer"


def _http_of(config: _Config) -> Http:
    if isinstance(config, OpenAIServerConfig):
        return Http(config)
    return Http(config.server, InProcessClient(config.door))


async def _context_of_llama(http: Http) -> int | None:
    """Return the tokens of the context of a llama.cpp server; None if it is another, or does not say."""
    try:
        props: Any = read_server_json(await http.fetch(paths.PROPS, is_retried=False))
        found = props["default_generation_settings"]["n_ctx"]
    except (StrettoError, LookupError, TypeError):
        return None
    return found if type(found) is int and found > 0 else None


def _runs_as_it_is(call: WaitingCall, work: Function) -> bool:
    """Return whether a call asks its own LLM once: it has no other to fall back to, and is never skipped."""
    fallbacks = [output.strategy.fallback for output in work.outputs.values()]
    return call.each is None and call.when is None and fallbacks.count(None) == len(fallbacks)


def _values_of(call: WaitingCall, given: Mapping[str, object], session: Session) -> dict[str, object]:
    """Return the values of a call's inputs by port, as far as they are known."""
    found = dict(call.constants)
    for port, name in call.inputs.items():
        if name is None:
            continue
        if name in given:
            found[port] = given[name]
        elif (known := session.state.variables.known(name)) is not None and known.has_come():
            found[port] = known.value
    return found


def _first_prompt(work: Function, values: Mapping[str, object]) -> list[str]:
    """Return the pieces of the prompt before the first output, without white space around them; none if an
    input among them is no text so far, or is transformed.
    """
    found = []
    for part in work.parts:
        if isinstance(part, Constant):
            found.append(part.text.strip())
        elif part.kind == "output":
            break
        else:
            value = values.get(part.name)
            if not isinstance(value, str) or work.input_steps.get(part.name):
                return []
            found.append(value.strip())
    return found


def _num_bytes(pieces: Sequence[str]) -> int:
    return sum(len(piece.encode(errors="replace")) for piece in pieces)
