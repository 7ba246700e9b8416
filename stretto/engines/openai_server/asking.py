"""Asks one server for answers, and learns from them what it takes, and how long prompts and answers take.

A rank is packed into the one integer that vLLM orders requests by. It is a signed number of 64 bits, smaller
first:

    40 bits  the first element of the rank in milliseconds, rounded down
    24 bits  the second element, as a number with 15 bits of precision

So ranks whose first elements are a millisecond apart, or equal, keep their order as far as the second
elements differ by more than their precision; later elements are left out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stretto.engines.openai_server.api import build_request
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import ServerFacts
from stretto.engines.openai_server.http import Http, read_server_json
from stretto.engines.openai_server.known_server import KnownServer
from stretto.engines.openai_server.places import ServerSlot
from stretto.engines.openai_server.prompt import SentPrompt
from stretto.engines.openai_server.reading import AnswerReader
from stretto.engines.openai_server.request_fields import RequestFields
from stretto.engines.openai_server.warming import WarmingPolicy
from stretto.engines.openai_server.whole_answers import WholeAnswers
from stretto.model.errors import BadReply, EngineTimeout, EngineUnavailable
from stretto.model.tasks import Decode
from stretto.wire import paths
from stretto.wire.answers import TokenCounts, read_chunk, read_whole
from stretto.wire.service_tiers import OFFLINE_TIER
from stretto.wire.sse import EventDecoder

_LEAST_MS, _MOST_MS = -(1 << 39), (1 << 39) - 1


def priority_of(rank: tuple[float, ...]) -> int:
    """Convert a request's rank (place among waiting requests, smaller first) to the priority that vLLM takes.

    A rank is a tuple of numbers, a priority one integer. Priorities are in the order of the ranks, up to
    rounding. Missing elements of a rank count as 0.
    """
    first = rank[0] if rank else 0.0
    first_ms = max(_LEAST_MS, min(_MOST_MS, math.floor(max(-1e12, min(1e12, first)) * 1000)))
    second = rank[1] if len(rank) > 1 else 0.0
    return (first_ms << 24) | _sortable_24(second)


def _sortable_24(value: float) -> int:
    """Return the leading bits of a single-precision number, changed so that they ascend with it."""
    limit = 3.4e38
    packed = struct.pack("<f", max(-limit, min(limit, value)) + 0.0)
    bits = int.from_bytes(packed, "little")
    ascending = ~bits & 0xFFFFFFFF if bits >> 31 else bits | 0x80000000
    return ascending >> 8


_log = logging.getLogger(__name__)

Feed: TypeAlias = Callable[[str], bool]
"""Function that takes the next piece of an answer, and returns whether no more is wanted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for an answer.

    Attributes:
        feed: takes the pieces of the answer.
        rank: rank of the task among those of the engine, for a server that takes priorities.
        slot: slot of the server that the request holds.
        is_offline: whether it gives way to others. Servers that know OpenAI's tiers are told so.
        warms: whether only the prompt matters, which the server is to keep in its cache.
        is_retried: whether it is sent again if the server refuses it for a while.
        others_serve: whether it can go to another server if this one refuses it.
        silence_s: seconds for which `feed` may be passed nothing.
    """

    facts: ServerFacts
    prompt: SentPrompt
    decode: Decode
    feed: Feed
    rank: tuple[float, ...]
    slot: ServerSlot
    is_offline: bool = False
    warms: bool = False
    is_retried: bool = True
    others_serve: bool = False
    silence_s: float = 0.0


class Asker:
    """The requests to one server. Each is changed as the server takes it, and asked whole where that pays.

    Attributes:
        warming: what warming requests have cost and saved at the server.
        whole: which answers are asked for whole.
    """

    def __init__(self, config: OpenAIServerConfig, http: Http, known: KnownServer) -> None:
        self.warming = WarmingPolicy()
        self.whole = WholeAnswers(config.token_s)
        self._config = config
        self._http = http
        self._known = known
        self._fields = RequestFields(frozenset(config.omit), config.max_tokens_field)

    async def ask(self, asked: Asked) -> AnswerReader:
        """Send a prompt, and pass each piece of the answer on until no more is wanted; return what was read.

        A request that is refused for a field that it can do without is sent again without that.

        Raises:
            StrettoError: the server refuses it, fails, or does not answer in time.
        """
        prompt, num_tokens = asked.prompt, asked.decode.max_tokens
        is_whole = asked.decode.items is None and self.whole.decide(
            num_tokens, min(asked.silence_s, self._config.timeout_s)
        )
        request = self._request(asked, is_whole)
        num_held = self._look_up(prompt)
        fields = self._fields
        while True:
            body = fields.applied(request)
            reader = AnswerReader(num_tokens, asked.feed)
            sent_s = time.perf_counter()
            try:
                first_s = await self._exchange(asked, body, reader, is_whole=is_whole)
                reader.check_end()
                break
            except BadReply as error:
                again = fields.without_refused(error.message, body) if error.is_refusal else None
                if again is None and isinstance(prompt.content, tuple) and reader.num_deltas == 0:
                    note = "sent as token ids; tokenizer 'none' sends text"
                    raise error.changed(message=f"{error.message} ({note})") from error
                if again is None:
                    raise
                fields = again
            except (EngineTimeout, EngineUnavailable, asyncio.CancelledError):
                if is_whole:  # perhaps we, a proxy or the scheduler have heard nothing for too long
                    self.whole.observe_stopped(num_tokens, time.perf_counter() - sent_s)
                raise
        if (learned := self._fields.joined(fields)) != self._fields:
            self._fields = learned
            _log.warning("%s gets requests %s, as it refuses others", self._http.name, self._fields)
        if not asked.warms:
            self.whole.observe(reader.num_output, time.perf_counter() - sent_s)
        if first_s is not None:
            self.observe(prompt, num_held, reader.counts, first_s)
        return reader

    def observe(self, prompt: SentPrompt, num_held: int, counts: TokenCounts | None, seconds: float) -> None:
        """Pass an observed time to the warming policy, which counts in estimated tokens where the prompt is
        text.

        Args:
            num_held: elements of the prompt that the server was believed to hold.
            counts: token counts that the server has reported.
        """
        num_tokens = round(len(prompt.elements) * prompt.tokens_per_element)
        num_reported = None
        if counts is not None and counts.num_cached is not None and counts.num_prompt > 0:
            num_reported = round(counts.num_cached / counts.num_prompt * num_tokens)
        self.warming.observe(num_tokens, round(num_held * prompt.tokens_per_element), num_reported, seconds)

    def _look_up(self, prompt: SentPrompt) -> int:
        """Return how much of a prompt the server may hold. Where that is a guess, it is all from now on."""
        is_guessed = not self._known.is_followed or prompt.tenant  # KV events tell of no tenant's blocks
        look_up = self._known.held.send if is_guessed else self._known.held.num_held
        return look_up(prompt.elements, prompt.tenant)

    def _request(self, asked: Asked, is_whole: bool) -> dict[str, object]:
        priority = priority_of(asked.rank) if self._config.priorities else None
        facts = asked.facts
        body = build_request(
            facts.api, facts.model, asked.prompt, asked.decode, priority, is_streamed=not is_whole
        ).to_json()
        return {**body, "service_tier": OFFLINE_TIER} if asked.is_offline else body

    async def _exchange(
        self, asked: Asked, body: dict[str, object], reader: AnswerReader, *, is_whole: bool
    ) -> float | None:
        """Send a request, and let `reader` read the answer; return the seconds to the first piece of a
        streamed one.
        """
        api = asked.facts.api
        if is_whole:
            found = await self._http.fetch(
                paths.GENERATE[api],
                body,
                is_retried=asked.is_retried,
                others_serve=asked.others_serve,
                wait=asked.slot.wait,
            )
            if not found.startswith(b"data:"):
                reader.read(read_whole(api, read_server_json(found)))
            else:  # the server knows nothing but streams
                for data in EventDecoder().feed(found + b"\n"):
                    reader.read(read_chunk(api, read_server_json(data)))
            return None
        first_s: float | None = None
        sent_s = time.perf_counter()
        async with self._http.stream(
            paths.GENERATE[api],
            body,
            is_retried=asked.is_retried,
            others_serve=asked.others_serve,
            is_complete=lambda: reader.has_finished,
            wait=asked.slot.wait,
        ) as events:
            async for event in events:
                is_enough = reader.read(read_chunk(api, event))
                if first_s is None and reader.has_begun:
                    first_s = time.perf_counter() - sent_s
                if is_enough:
                    break
        return first_s
