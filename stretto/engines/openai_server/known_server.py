"""What is known of one server: its facts, what its cache holds, and how its replies begin.

The server is asked for its facts once, and again when it may have been restarted. What it cannot do with
chats it says by refusing them: a server may have no chat at all, or a model without a chat template, and some
templates take no system message.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.cluster.kv_events import AllBlocksCleared, KVEvent
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import ServerFacts, discover
from stretto.engines.openai_server.held_blocks import HeldByServer
from stretto.engines.openai_server.http import Http
from stretto.engines.openai_server.prompt import CHARS_PER_TOKEN
from stretto.engines.openai_server.reply_openings import ReplyOpenings
from stretto.model.errors import BadReply, ConfigError, NotFound, StrettoError
from stretto.model.extras import imports_of
from stretto.wire.paths import Api

if TYPE_CHECKING:
    from stretto.engines.openai_server.kv_event_stream import KVEventStream

Report = Callable[[Sequence[KVEvent]], None]

_log = logging.getLogger(__name__)
LOOK_S = 1.0
"""Seconds between two looks at a server."""
_NO_CHAT = re.compile(r"chat[ _-]?template|not support chat|not a chat model", re.IGNORECASE)
_NO_SYSTEM = re.compile(r"system[ _-]?(role|message|prompt|instruction)|role.{0,20}\bsystem\b", re.IGNORECASE)


class KnownServer:
    """A record of one server, which is asked for what it does not hold yet.

    Attributes:
        held: prompts whose prefixes the server's cache may hold.
        openings: how the server's replies begin.

    Raises:
        ConfigError: a package for KV events is missing.
    """

    def __init__(self, config: OpenAIServerConfig, http: Http) -> None:
        self.held = HeldByServer(1)
        self.openings = ReplyOpenings("completions", "")
        self._config = config
        self._http = http
        self._asking = asyncio.Lock()
        self._facts: ServerFacts | None = None
        self._problem: StrettoError | None = None
        self._has_chatted = False
        self._events: KVEventStream | None = None
        self._following: asyncio.Task[None] | None = None
        self._report: Report = lambda _: None
        if config.kv_events is not None:
            with imports_of("kv-events", "kv_events"):
                from stretto.engines.openai_server.kv_event_stream import KVEventStream
            self._events = KVEventStream(config.kv_events)

    @property
    def is_followed(self) -> bool:
        """Whether the server's KV events are followed, so that what its cache holds is no guess."""
        return self._following is not None

    async def facts(self, *, but_not: ServerFacts | None = None, others_serve: bool = False) -> ServerFacts:
        """Return the facts about the server, which is asked once. A failure reaches all who wait.

        Args:
            but_not: facts with which the server is asked again: it may have been restarted with another
                model.
            others_serve: whether the request can go to another server if this one refuses.

        Raises:
            StrettoError: the server does not answer, or cannot be used as it is configured.
        """
        before = self._problem
        async with self._asking:
            if self._facts is but_not:
                self._facts = None
            if self._facts is None:
                if self._problem is not None and self._problem is not before:
                    raise self._problem
                try:
                    facts = await discover(self._http, self._config, others_serve=others_serve)
                except StrettoError as error:
                    self._problem = error
                    raise
                self._begin_with(facts)
                self._note(facts)
        assert self._facts is not None
        return self._facts

    async def facts_after(self, error: BadReply, asked: ServerFacts, api: Api) -> ServerFacts:
        """Return other facts about the server, by which a request may be taken that was refused.

        Args:
            asked: facts by which it was sent.
            api: API by which it was sent, which may be another one than theirs.

        Raises:
            BadReply: nothing else is known; this is `error`.
        """
        facts = asked
        if isinstance(error, NotFound):  # perhaps the server was restarted
            facts = await self.facts(but_not=asked)
            if facts.model != asked.model or (api == asked.api != facts.api):
                return facts
        if api != "chat":
            raise error
        if facts.takes_system and _says_no_system(error):
            return self._learn(asked, replace(facts, takes_system=False))
        if self._config.api == "auto" and not self._has_chatted and _says_no_chat(error):
            if self._facts is facts:
                plain = "prompts are sent in their plain form, as to a base model"
                _log.warning(
                    "%s has no chat for %r: %s (%s)", self._http.name, facts.model, plain, error.message
                )
            return self._learn(facts, replace(facts, api="completions"))
        raise error

    def note_answer(self, api: Api) -> None:
        """Note that the server has answered by this API, which a later refusal then does not call missing."""
        self._has_chatted = self._has_chatted or api == "chat"

    async def follow(self, report: Report) -> None:
        """Ask the server for its facts until it answers, and report its KV events, if they are configured."""
        self._report = report
        while self._events is not None:
            try:
                await self.facts()
            except ConfigError:
                return  # as every task will say
            except StrettoError:
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def aclose(self) -> None:
        """Stop following the server's KV events."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    def _begin_with(self, facts: ServerFacts) -> None:
        """Record from now on what a server with these facts holds.

        Raises:
            ConfigError: its KV events are configured, which are of token ids, and it has no tokenizer.
        """
        block_len = facts.cache.block_tokens
        if facts.tokenizer is None:
            block_len *= CHARS_PER_TOKEN
        self.held = HeldByServer(block_len, facts.cache.num_blocks)
        if self._events is not None:
            if facts.tokenizer is None:
                raise ConfigError("KV events are of token ids: the server's tokenizer is needed")
            self._following = asyncio.create_task(self._follow(self._events))

    def _learn(self, before: ServerFacts, facts: ServerFacts) -> ServerFacts:
        """Replace the facts about the server, unless another request has done so already."""
        if self._facts is before or self._facts is None:
            self._note(facts)
        assert self._facts is not None
        return self._facts

    def _note(self, facts: ServerFacts) -> None:
        self._facts = facts
        self.openings = ReplyOpenings(facts.api, facts.model)

    async def _follow(self, stream: KVEventStream) -> None:
        """Follow the server's KV events. When they cannot be understood, go on guessing."""
        try:
            async with aclosing(stream.events()) as batches:
                async for events in batches:
                    for event in events:
                        self.held.apply(event)
                    self._report(events)
        except StrettoError:
            self._following = None
            self._report([AllBlocksCleared()])


def _says_no_chat(error: BadReply) -> bool:
    """Return whether the refusal of a chat says that the server has no chat for its model."""
    return isinstance(error, NotFound) or (
        error.is_refusal and _NO_CHAT.search(error.message) is not None and not _says_no_system(error)
    )


def _says_no_system(error: BadReply) -> bool:
    """Return whether the refusal of a chat is about its system message."""
    return error.is_refusal and _NO_SYSTEM.search(error.message) is not None
