"""An LLM behind a server: completions, and partial prefills as requests that warm its prefix cache.

A completion is streamed if somebody reads parts of it before its end, if it ends with its list, or if it may
take so long that silence would be mistaken for a failure (`whole_answers.py`).

With a tokenizer the prompt is sent as token ids, each segment tokenised by itself as everywhere: no document
can smuggle in a special token, and the tokens of the next request begin with those that one request warmed;
the tokenizer's chat template is applied here. Otherwise the prompt goes to the server's chat, as messages. A
server without a chat gets it as text in its plain form.

An attempt that breaks off is `EngineUnavailable`, also after pieces of it have gone out. The scheduler tries
again and skips the text that it has passed on already; if the second text begins differently, which sampling
or another batch may cause even in greedy decoding, the query fails: shown text is never taken back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from stretto.cluster.kv_events import AllBlocksCleared, KVEvent
from stretto.cluster.messages import InstanceLoad
from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.decoding import max_new_tokens, refuse_others, without_wishes
from stretto.engines.openai_server.api import UNDERSTOOD, build_request
from stretto.engines.openai_server.chat_refusals import says_no_chat, says_no_system
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import ServerFacts, discover
from stretto.engines.openai_server.held_blocks import HeldByServer
from stretto.engines.openai_server.http import Http, read_server_json
from stretto.engines.openai_server.metrics import read_load
from stretto.engines.openai_server.places import ServerSlot
from stretto.engines.openai_server.priority import priority_of
from stretto.engines.openai_server.prompt import CHARS_PER_TOKEN, SentPrompt, encode, is_raw
from stretto.engines.openai_server.reading import AnswerReader
from stretto.engines.openai_server.reply_openings import ReplyOpenings
from stretto.engines.openai_server.request_fields import RequestFields
from stretto.engines.openai_server.tool_use import (
    ListReply,
    ObjectReply,
    asked_with,
    refuses_tools,
    reply_form,
)
from stretto.engines.openai_server.warming import WarmingPolicy
from stretto.engines.openai_server.whole_answers import WholeAnswers
from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.sampling import check_sampling
from stretto.model.errors import (
    BadReply,
    CapacityError,
    ConfigError,
    EngineTimeout,
    EngineUnavailable,
    NotFound,
    StrettoError,
)
from stretto.model.extras import imports_of
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started, Usage
from stretto.model.tools import ToolOffer
from stretto.model.values import answer_segment
from stretto.wire import paths
from stretto.wire.answers import TokenCounts, read_chunk, read_whole
from stretto.wire.paths import Api
from stretto.wire.sse import EventDecoder

if TYPE_CHECKING:
    from stretto.engines.openai_server.kv_event_stream import KVEventStream

_log = logging.getLogger(__name__)

_ANY_VOCABULARY = 2**31
_LOOK_S = 1.0
_MAX_ASKED = 4
"""Times that a request is sent at most: to a restarted server, without a system message, and as text."""
_ONE_TOKEN = Decode(max_tokens=1)  # servers generate no fewer


class OpenAIServer:
    """An LLM engine that sends its tasks to an OpenAI-compatible server, which runs already.

    Args:
        http: client of the server; None makes one.

    Raises:
        ConfigError: the URL or key is unusable, or a package is missing; the server is not asked for this.
    """

    LIMITS_OFFLINE: ClassVar[bool] = False

    def __init__(self, config: OpenAIServerConfig, http: Http | None = None) -> None:
        """Create the client of a server; nothing is sent yet.

        Raises:
            ConfigError: the URL or key is unusable, or a package is missing.
        """
        self._config = config
        self._http = http or Http(config)
        self._slots = asyncio.Semaphore(config.max_connections)
        self._asking = asyncio.Lock()
        self._facts: ServerFacts | None = None
        self._problem: StrettoError | None = None
        self._held = HeldByServer(1)
        self._warming = WarmingPolicy()
        self._whole = WholeAnswers(config.token_s)
        self._openings = ReplyOpenings("completions", "")
        self._has_chatted = False
        self._fields = RequestFields(frozenset(config.omit), config.max_tokens_field)
        self._takes_tools = config.api != "completions" and config.takes_tools is not False
        self._events: KVEventStream | None = None
        self._following: asyncio.Task[None] | None = None
        self._report: Callable[[Sequence[KVEvent] | InstanceLoad], None] = lambda _: None
        if config.kv_events is not None:
            with imports_of("kv-events", "kv_events"):
                from stretto.engines.openai_server.kv_event_stream import KVEventStream
            self._events = KVEventStream(config.kv_events)

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Run one task on the server and pass its events to `emit`. Cancelling closes the connection, which
        aborts the request.

        A task that only prefills (without `decode`) is `Done` when the server has its prompt in the cache, or
        at once if a request for it would not pay or no connection is free. It never fails: the later task
        with the whole prompt will report what is wrong.
        """
        if task.decode is None:
            emit(Started(task.id))
            emit(Done(task.id, None, await self._prefill(task, rank)))
            return
        async with ServerSlot(self._slots) as slot:
            emit(Started(task.id))
            try:
                done = await self._complete(task, task.decode, emit, rank, slot)
            except StrettoError as error:
                emit(Failed(task.id, error.at(task.step)))
            else:
                emit(done)

    def written(self, task: int) -> tuple[int, ...]:
        """Return the ids of the tokens that a running task has generated: here always an empty tuple.

        They are not known, because the server sends text, not token ids. So a task that moves to another
        instance starts over.
        """
        return ()

    async def start(self) -> None:
        """Return at once, because the server runs already; it is asked for its model by the first task."""

    async def probe(self) -> None:
        """Ask the server for its models. Raises EngineFailure if it does not answer."""
        await self._http.fetch(paths.MODELS, is_retried=False)

    async def watch(self, report: Callable[[Sequence[KVEvent] | InstanceLoad], None]) -> None:
        """Watch the server until cancelled: pass changes of its prefix cache, and its load, to `report`.

        Only what is configured, and what the server tells, is reported.
        """
        self._report = report
        async with asyncio.TaskGroup() as watching:
            if self._events is not None:
                watching.create_task(self._discover())
            if self._config.reports_load:
                watching.create_task(self._poll_load(report))
            await asyncio.Event().wait()

    async def load(self) -> InstanceLoad:
        """Ask the server's `/metrics` for its load: running and waiting requests, share of KV memory in use.

        Raises:
            EngineFailure: the server does not answer, or does not report its load.
        """
        return read_load((await self._http.fetch(paths.METRICS)).decode(errors="replace"))

    async def aclose(self) -> None:
        """Close all connections to the server."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._http.aclose()

    async def _complete(
        self,
        task: LLMTask,
        decode: Decode,
        emit: Callable[[LLMEvent], None],
        rank: tuple[float, ...],
        slot: ServerSlot,
    ) -> Done:
        decode = without_wishes(decode)  # whether a server can is not known
        refuse_others(decode, UNDERSTOOD, "an OpenAI-compatible server")
        check_sampling(decode, _ANY_VOCABULARY)
        offer = ToolOffer.from_json(decode.tools) if decode.tools and self._takes_tools else None
        if offer is None:
            return await self._write(task, decode, emit, rank, slot, None)
        try:
            return await self._write(task, decode, emit, rank, slot, offer)
        except (BadReply, EngineUnavailable) as error:  # older llama.cpp servers answer 500
            words = error.message.replace(self._http.name, "")
            is_refused = not isinstance(error, BadReply) or error.is_refusal
            if not is_refused or self._config.takes_tools or not refuses_tools(words):
                raise
            _log.warning("%s takes no tools, so its model gets them in words: %s", self._http.name, error)
            self._takes_tools = False
            return await self._write(task, decode, emit, rank, slot, None)

    async def _write(
        self,
        task: LLMTask,
        wanted: Decode,
        emit: Callable[[LLMEvent], None],
        rank: tuple[float, ...],
        slot: ServerSlot,
        offered: ToolOffer | None,
    ) -> Done:
        """Ask for an answer, and emit its pieces as they come.

        Args:
            offered: tools that are sent if the server is asked by chat; else they stand in words.
        """
        if self._config.api == "chat" and is_raw(task.prompt):
            raise ConfigError("the server takes chats, and no prompt to go on with as it is")
        known = await self._known(others_serve=task.others_serve)
        for num_left in reversed(range(_MAX_ASKED)):
            facts = _facts_for(task, known)
            offer = offered if facts.api == "chat" else None
            reply = None if offer is None else reply_form(offer, wanted)
            decode = wanted if offer is None else asked_with(wanted, offer)
            if not is_raw(task.prompt):
                decode = self._stopped(decode, facts)
            is_read = task.silence_s == 0 and not isinstance(reply, ListReply)
            opening = self._openings.of_next(is_list=decode.items is not None, is_read=is_read)
            output = DecodeOutput(decode, task.prompt, opening)
            prompt = encode(facts, task, offer)
            try:
                reader = await self._ask(
                    facts,
                    prompt,
                    _fitted(prompt, decode, facts),
                    _feeder(task, output, emit, reply),
                    rank,
                    slot,
                    others_serve=task.others_serve,
                    silence_s=task.silence_s,
                )
                break
            except BadReply as error:
                if num_left == 0:
                    raise
                known = await self._facts_after(error, known, facts.api)
        self._has_chatted = self._has_chatted or facts.api == "chat"
        last, value = output.finish(reader.finish)
        self._openings.observe(output, value, has_reasoning=reader.has_reasoning)
        has_thoughts_alone = reader.has_reasoning and not value and not reader.tool_calls
        if reply is not None:
            last = [*chain.from_iterable(map(reply.feed, last)), *reply.finish(reader.tool_calls)]
            value = reply.value
        for piece in last:
            emit(Piece(task.id, piece))
        written = output.written if task.is_continued else None
        return Done(
            task.id,
            value,
            reader.usage(prompt.num_tokens),
            None if written is None else answer_segment(written),
            "thoughts" if has_thoughts_alone else output.finish_reason,
        )

    def _stopped(self, decode: Decode, facts: ServerFacts) -> Decode:
        """Return a decode with the stop strings of this server's texts, and with the tokens that end turns of
        a template which is applied here.
        """
        if facts.tokenizer is not None and not decode.ignore_eos:
            turns = sorted(facts.tokenizer.ending - {facts.tokenizer.eos_token_id})
            decode = replace(decode, stop_tokens=tuple(dict.fromkeys((*decode.stop_tokens, *turns))))
        if decode.items is not None:
            return decode
        plain = PLAIN_STOP if self._config.api == "auto" and facts.is_plain else ()
        return replace(decode, stop=tuple(dict.fromkeys((*decode.stop, *self._config.stop, *plain))))

    async def _facts_after(self, error: BadReply, asked: ServerFacts, api: Api) -> ServerFacts:
        """Return other facts about the server, by which a request may be taken that was refused.

        Args:
            asked: facts by which it was sent.
            api: API by which it was sent, which may be another one than theirs.

        Raises:
            BadReply: nothing else is known; this is `error`.
        """
        facts = asked
        if isinstance(error, NotFound):  # perhaps the server was restarted
            facts = await self._known(but_not=asked)
            if facts.model != asked.model or (api == asked.api != facts.api):
                return facts
        if api != "chat":
            raise error
        if facts.takes_system and says_no_system(error):
            return self._learn(asked, replace(facts, takes_system=False))
        if self._config.api == "auto" and not self._has_chatted and says_no_chat(error):
            if self._facts is facts:
                plain = "prompts are sent in their plain form, as to a base model"
                _log.warning(
                    "%s has no chat for %r: %s (%s)", self._http.name, facts.model, plain, error.message
                )
            return self._learn(facts, replace(facts, api="completions"))
        raise error

    def _learn(self, before: ServerFacts, facts: ServerFacts) -> ServerFacts:
        """Replace the facts about the server, unless another request has done so already."""
        if self._facts is before or self._facts is None:
            self._facts = facts
            self._openings = ReplyOpenings(facts.api, facts.model)
        return self._facts

    async def _prefill(self, task: LLMTask, rank: tuple[float, ...]) -> Usage:
        if not self._config.warms_prefixes:
            return Usage()
        try:
            facts = _facts_for(task, await self._known())
            if self._slots.locked():
                return Usage()
            prompt = encode(facts, task)
            num_held = self._held.num_held(prompt.elements, prompt.tenant)
            num_whole = self._held.num_whole(prompt.elements)
            num_missing = round((num_whole - num_held) * prompt.tokens_per_element)
            if num_missing > 0:
                self._whole.want_prompt_time()
            if facts.cache.is_on is False or not self._warming.decide(num_missing):
                return Usage()
            if isinstance(prompt.content, tuple):
                whole = prompt.elements[:num_whole]
                prompt = SentPrompt(tuple(whole), whole, prompt.tenant)
            timeout_s = self._warming.timeout_s(num_missing)
            async with ServerSlot(self._slots) as slot:
                try:
                    async with asyncio.timeout(timeout_s):
                        reader = await self._ask(
                            facts, prompt, _ONE_TOKEN, lambda _: False, rank, slot, is_retried=False
                        )
                        return reader.usage(prompt.num_tokens)
                except TimeoutError:
                    assert timeout_s is not None
                    self._observe(prompt, num_held, None, timeout_s)
        except StrettoError:
            pass
        return Usage()

    async def _ask(
        self,
        facts: ServerFacts,
        prompt: SentPrompt,
        decode: Decode,
        feed: Callable[[str], bool],
        rank: tuple[float, ...],
        slot: ServerSlot,
        *,
        is_retried: bool = True,
        others_serve: bool = False,
        silence_s: float = 0.0,
    ) -> AnswerReader:
        """Send a prompt, and pass each piece of the answer to `feed` until that returns True.

        A request that is refused for a field that it can do without is sent again without that.

        Args:
            others_serve: whether the request can go to another server if this one refuses it.
            silence_s: seconds for which `feed` may be passed nothing.
        """
        priority = priority_of(rank) if self._config.priorities else None
        is_whole = decode.items is None and self._whole.decide(
            decode.max_tokens, min(silence_s, self._config.timeout_s)
        )
        request = build_request(facts.api, facts.model, prompt, decode, priority, is_streamed=not is_whole)
        # KV events tell of no tenant's blocks.
        is_guessed = self._following is None or prompt.tenant
        look_up = self._held.send if is_guessed else self._held.num_held
        num_held = look_up(prompt.elements, prompt.tenant)
        fields = self._fields
        while True:
            body = fields.applied(request.to_json())
            reader = AnswerReader(decode.max_tokens, feed)
            sent_s = time.perf_counter()
            try:
                first_s = await self._exchange(
                    facts.api,
                    body,
                    reader,
                    slot,
                    is_whole=is_whole,
                    is_retried=is_retried,
                    others_serve=others_serve,
                )
                reader.check_end()
                break
            except BadReply as error:
                again = None
                if error.is_refusal:
                    again = fields.without_refused(error.message, body)
                if again is None:
                    if isinstance(prompt.content, tuple) and reader.num_deltas == 0:
                        note = "sent as token ids; tokenizer 'none' sends text"
                        raise error.changed(message=f"{error.message} ({note})") from error
                    raise
                fields = again
            except (EngineTimeout, EngineUnavailable, asyncio.CancelledError):
                if is_whole:  # perhaps we, a proxy or the scheduler have heard nothing for too long
                    self._whole.observe_stopped(decode.max_tokens, time.perf_counter() - sent_s)
                raise
        if (learned := self._fields.joined(fields)) != self._fields:
            self._fields = learned
            _log.warning("%s gets requests %s, as it refuses others", self._http.name, self._fields)
        if decode is not _ONE_TOKEN:
            self._whole.observe(reader.num_output, time.perf_counter() - sent_s)
        if first_s is not None:
            self._observe(prompt, num_held, reader.counts, first_s)
        return reader

    async def _exchange(
        self,
        api: Api,
        body: dict[str, object],
        reader: AnswerReader,
        slot: ServerSlot,
        *,
        is_whole: bool,
        is_retried: bool,
        others_serve: bool,
    ) -> float | None:
        """Send a request, and let `reader` read the answer; return the seconds to the first piece of a
        streamed one.
        """
        if is_whole:
            found = await self._http.fetch(
                paths.GENERATE[api], body, is_retried=is_retried, others_serve=others_serve, wait=slot.wait
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
            is_retried=is_retried,
            others_serve=others_serve,
            is_complete=lambda: reader.has_finished,
            wait=slot.wait,
        ) as events:
            async for event in events:
                is_enough = reader.read(read_chunk(api, event))
                if first_s is None and reader.has_begun:
                    first_s = time.perf_counter() - sent_s
                if is_enough:
                    break
        return first_s

    def _observe(self, prompt: SentPrompt, num_held: int, counts: TokenCounts | None, seconds: float) -> None:
        """Pass an observed time to the warming policy, which counts in estimated tokens where the prompt is
        text.
        """
        num_tokens = round(len(prompt.elements) * prompt.tokens_per_element)
        num_reported = None
        if counts is not None and counts.num_cached is not None and counts.num_prompt > 0:
            num_reported = round(counts.num_cached / counts.num_prompt * num_tokens)
        self._warming.observe(num_tokens, round(num_held * prompt.tokens_per_element), num_reported, seconds)

    async def _discover(self) -> None:
        """Ask the server for its facts until it answers; its KV events are followed from then on."""
        while True:
            try:
                await self._known()
            except ConfigError:
                return  # as every task will say
            except StrettoError:
                await asyncio.sleep(_LOOK_S)
            else:
                return

    async def _poll_load(self, report: Callable[[InstanceLoad], None]) -> None:
        while True:
            try:
                report(await self.load())
            except BadReply:
                return  # it does not tell
            except StrettoError:
                pass  # it is away
            await asyncio.sleep(_LOOK_S)

    async def _known(self, *, but_not: ServerFacts | None = None, others_serve: bool = False) -> ServerFacts:
        """Return the facts about the server, which is asked once. A failure reaches all who wait.

        Where they are `but_not`, it is asked again: it may have been restarted with another model.
        `others_serve` is whether the request can go to another server if this one refuses.
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
                block_len, num_blocks = facts.cache.block_tokens, facts.cache.num_blocks
                if facts.tokenizer is None:
                    block_len *= CHARS_PER_TOKEN
                self._held = HeldByServer(block_len, num_blocks)
                if self._events is not None:
                    if facts.tokenizer is None:
                        raise ConfigError("KV events are of token ids: the server's tokenizer is needed")
                    self._following = asyncio.create_task(self._follow(self._events))
                self._facts = facts
                self._openings = ReplyOpenings(facts.api, facts.model)
        return self._facts

    async def _follow(self, stream: KVEventStream) -> None:
        """Follow the server's KV events. When they cannot be understood, go on guessing."""
        try:
            async with aclosing(stream.events()) as batches:
                async for events in batches:
                    for event in events:
                        self._held.apply(event)
                    self._report(events)
        except StrettoError:
            self._following = None
            self._report([AllBlocksCleared()])


def _facts_for(task: LLMTask, known: ServerFacts) -> ServerFacts:
    """Return the facts by which a task is sent to a server: a prompt to go on with as it is is no chat."""
    return replace(known, api="completions") if is_raw(task.prompt) else known


def _feeder(
    task: LLMTask,
    output: DecodeOutput,
    emit: Callable[[LLMEvent], None],
    reply: ListReply | ObjectReply | None,
) -> Callable[[str], bool]:
    """Return the function that takes the pieces of an answer, and returns whether it is complete. They become
    parts of `reply` if there is one.
    """

    def feed(text: str) -> bool:
        pieces, is_finished = output.feed(text)
        for piece in pieces if reply is None else chain.from_iterable(map(reply.feed, pieces)):
            emit(Piece(task.id, piece))
        return is_finished

    return feed


def _fitted(prompt: SentPrompt, decode: Decode, facts: ServerFacts) -> Decode:
    """Return a decode whose answer fits the model's context behind a prompt, as far as tokens are known. How
    many a text has is for the server to say, which takes no limit above the context.

    Raises:
        CapacityError: they are longer together than the context.
    """
    if facts.max_model_tokens is None:
        return decode
    if not isinstance(prompt.content, tuple):
        return replace(decode, max_tokens=max_new_tokens(decode, 0, facts.max_model_tokens))
    decode = replace(decode, max_tokens=max_new_tokens(decode, len(prompt.content), facts.max_model_tokens))
    if len(prompt.content) + decode.max_tokens > facts.max_model_tokens:
        raise CapacityError(
            f"the prompt's {len(prompt.content)} tokens and max_tokens={decode.max_tokens} are more "
            f"than the {facts.max_model_tokens} of {facts.model!r}"
        )
    return decode
