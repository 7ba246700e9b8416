"""One attempt to have a task answered by a server: what it is asked for, and what its answer becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.decoding import max_new_tokens
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import ServerFacts
from stretto.engines.openai_server.prompt import SentPrompt, encode, is_raw
from stretto.engines.openai_server.reading import AnswerReader
from stretto.engines.openai_server.reply_openings import ReplyOpenings
from stretto.engines.openai_server.tool_use import ListReply, asked_with, reply_form
from stretto.llm.output.output import DecodeOutput
from stretto.model.errors import CapacityError
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece
from stretto.model.tools import ToolOffer
from stretto.model.values import answer_segment


def facts_for(task: LLMTask, known: ServerFacts, *, has_tools: bool = False) -> ServerFacts:
    """Return the facts by which a task is sent to a server: a prompt to go on with as it is is no chat, and
    tools are sent by chat also where the tokenizer is known, as the server then reads the calls.
    """
    if is_raw(task.prompt):
        return replace(known, api="completions")
    if has_tools and known.tokenizer is not None and known.tokenizer.has_template:
        return replace(known, api="chat", tokenizer=None)
    return known


class TaskAnswer:
    """The answer to a task, whose pieces are emitted as they come.

    Args:
        wanted: what the task asks for.
        offered: tools that are sent if the server is asked by chat; else they stand in words.
        openings: how the server's replies begin.

    Attributes:
        facts: facts about the server by which it is asked.
        prompt: what is sent.
        decode: what is asked for, so that it fits the model's context behind the prompt.

    Raises:
        CapacityError: the prompt and the answer are longer together than the context.
        ConfigError: the prompt or a field of the task cannot be sent.
    """

    def __init__(
        self,
        task: LLMTask,
        wanted: Decode,
        emit: Callable[[LLMEvent], None],
        config: OpenAIServerConfig,
        known: ServerFacts,
        offered: ToolOffer | None,
        openings: ReplyOpenings,
    ) -> None:
        self.facts = facts_for(task, known, has_tools=offered is not None and config.api == "auto")
        self._task = task
        self._emit = emit
        self._openings = openings
        offer = offered if self.facts.api == "chat" else None
        self._reply = None if offer is None else reply_form(offer, wanted)
        decode = wanted if offer is None else asked_with(wanted, offer)
        if not is_raw(task.prompt):
            decode = _stopped(decode, config, self.facts)
        is_read = task.silence_s == 0 and not isinstance(self._reply, ListReply)
        opening = openings.of_next(is_list=decode.items is not None, is_read=is_read)
        self._output = DecodeOutput(decode, task.prompt, opening)
        self.prompt = encode(self.facts, task, offer)
        self.decode = _fitted(self.prompt, decode, self.facts)

    def feed(self, text: str) -> bool:
        """Take the next piece of the server's answer, and return whether no more is wanted."""
        pieces, is_finished = self._output.feed(text)
        for piece in pieces if self._reply is None else chain.from_iterable(map(self._reply.feed, pieces)):
            self._emit(Piece(self._task.id, piece))
        return is_finished

    def finish(self, reader: AnswerReader) -> Done:
        """Emit the last pieces, when the answer has been read; return the end of the task."""
        last, value = self._output.finish(reader.finish)
        self._openings.observe(self._output, value, has_reasoning=reader.has_reasoning)
        has_thoughts_alone = reader.has_reasoning and not value and not reader.tool_calls
        if self._reply is not None:
            last = [*chain.from_iterable(map(self._reply.feed, last)), *self._reply.finish(reader.tool_calls)]
            value = self._reply.value
        for piece in last:
            self._emit(Piece(self._task.id, piece))
        written = self._output.written if self._task.is_continued else None
        return Done(
            self._task.id,
            value,
            reader.usage(self.prompt.num_tokens),
            None if written is None else answer_segment(written),
            "thoughts" if has_thoughts_alone else self._output.finish_reason,
        )


def _stopped(decode: Decode, config: OpenAIServerConfig, facts: ServerFacts) -> Decode:
    """Return a decode with the stop strings of this server's texts, and with the tokens that end turns of
    a template which is applied here.
    """
    if facts.tokenizer is not None and not decode.ignore_eos:
        turns = sorted(facts.tokenizer.ending - {facts.tokenizer.eos_token_id})
        decode = replace(decode, stop_tokens=tuple(dict.fromkeys((*decode.stop_tokens, *turns))))
    if decode.items is not None:
        return decode
    plain = PLAIN_STOP if config.api == "auto" and facts.is_plain else ()
    return replace(decode, stop=tuple(dict.fromkeys((*decode.stop, *config.stop, *plain))))


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
