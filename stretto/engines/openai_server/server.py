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
from collections.abc import Callable, Sequence
from typing import ClassVar

from stretto.cluster.kv_events import KVEvent
from stretto.engines.decoding import refuse_others, without_wishes
from stretto.engines.openai_server.api import UNDERSTOOD
from stretto.engines.openai_server.asking import Asked, Asker
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.http import Http
from stretto.engines.openai_server.known_server import KnownServer
from stretto.engines.openai_server.places import ServerSlot
from stretto.engines.openai_server.prompt import SentPrompt, encode, is_raw
from stretto.engines.openai_server.task_answer import TaskAnswer, facts_for
from stretto.engines.openai_server.tool_use import refuses_tools
from stretto.llm.output.sampling import check_sampling
from stretto.model.errors import BadReply, CapacityError, ConfigError, EngineUnavailable, StrettoError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Started, Usage
from stretto.model.tools import ToolOffer
from stretto.wire import paths
from stretto.wire.errors import says_too_long

_log = logging.getLogger(__name__)

_ANY_VOCABULARY = 2**31
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
        self._takes_tools = config.api != "completions" and config.takes_tools is not False
        self._known = KnownServer(config, self._http)
        self._asker = Asker(config, self._http, self._known)

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
                emit(Failed(task.id, self._told(error).at(task.step)))
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

    async def watch(self, report: Callable[[Sequence[KVEvent]], None]) -> None:
        """Watch the server until cancelled: pass changes of its prefix cache to `report`, if it is configured
        where the server tells them.
        """
        await self._known.follow(report)
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        """Close all connections to the server."""
        await self._known.aclose()
        await self._http.aclose()

    def _told(self, error: StrettoError) -> StrettoError:
        """Return an error as readers of answers get it: a prompt that the server calls too long is so
        everywhere, in the server's own words, and without its address, which the log keeps.
        """
        if not (isinstance(error, BadReply) and error.is_refusal and says_too_long(error.message)):
            return error
        _log.info("a prompt is too long: %s", error.message)
        words = error.message.replace(self._http.name, "its server")
        return CapacityError(f"the prompt is too long for the LLM: {words}")

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
        known = await self._known.facts(others_serve=task.others_serve)
        for num_left in reversed(range(_MAX_ASKED)):
            answer = TaskAnswer(task, wanted, emit, self._config, known, offered, self._known.openings)
            asked = Asked(
                answer.facts,
                answer.prompt,
                answer.decode,
                answer.feed,
                rank,
                slot,
                is_offline=task.objective == "offline",
                others_serve=task.others_serve,
                silence_s=task.silence_s,
            )
            try:
                reader = await self._asker.ask(asked)
                break
            except BadReply as error:
                if num_left == 0:
                    raise
                known = await self._known.facts_after(error, known, answer.facts.api)
        self._known.note_answer(answer.facts.api)
        return answer.finish(reader)

    async def _prefill(self, task: LLMTask, rank: tuple[float, ...]) -> Usage:
        if not self._config.warms_prefixes:
            return Usage()
        try:
            facts = facts_for(task, await self._known.facts())
            if self._slots.locked():
                return Usage()
            prompt = encode(facts, task)
            held = self._known.held
            num_held = held.num_held(prompt.elements, prompt.tenant)
            num_whole = held.num_whole(prompt.elements)
            num_missing = round((num_whole - num_held) * prompt.tokens_per_element)
            if num_missing > 0:
                self._asker.whole.want_prompt_time()
            warming = self._asker.warming
            if facts.cache.is_on is False or not warming.decide(num_missing):
                return Usage()
            if isinstance(prompt.content, tuple):
                whole = prompt.elements[:num_whole]
                prompt = SentPrompt(tuple(whole), whole, prompt.tenant)
            timeout_s = warming.timeout_s(num_missing)
            async with ServerSlot(self._slots) as slot:
                asked = Asked(
                    facts, prompt, _ONE_TOKEN, lambda _: False, rank, slot, warms=True, is_retried=False
                )
                try:
                    async with asyncio.timeout(timeout_s):
                        return (await self._asker.ask(asked)).usage(prompt.num_tokens)
                except TimeoutError:
                    assert timeout_s is not None
                    self._asker.observe(prompt, num_held, None, timeout_s)
        except StrettoError:
            pass
        return Usage()
