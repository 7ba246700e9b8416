"""One task of the in-process engine, from its admission to its ending, and its text, delta by delta."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stretto.engines.transformer.structured import Structure
from stretto.engines.transformer.token_choice import Chosen, TokenChoice, TokenLogprobs
from stretto.llm.output.output import DecodeOutput
from stretto.llm.output.sampling import is_plain_greedy
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import StrettoError
from stretto.model.tasks import Done, Failed, Finish, LLMEvent, LLMTask, Piece, Started, Usage
from stretto.model.values import Segment, TokenIds, answer_segment

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The interface of what turns tokens into text: the decoding half of a tokenizer."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of these tokens; it may end with U+FFFD, for half a character."""
        ...


class TextStream:
    """A converter of generated tokens to text, one at a time: it returns what each new token adds to the
    text.

    It returns "" while the text ends within a character. The text of a token may depend on the one before it
    (a leading space). So a delta is the difference of two short texts: with and without the new tokens.
    Earlier tokens are never decoded again.
    """

    def __init__(self, tokenizer: Decoder, known: dict[int, str] | None = None) -> None:
        """Start a stream; `known` caches texts of single tokens, and may be shared by streams."""
        self._tokenizer = tokenizer
        self._known = {} if known is None else known
        self._tokens: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def feed(self, token: int) -> str:
        """Append a token, and return the text that it adds; "" if it ends within a character."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._context_text):
            return ""
        delta = text[len(self._context_text) :]
        # The tokens of this delta are the context of the next one.
        self._tokens = self._tokens[self._num_context :]
        self._num_context = len(self._tokens)
        self._context_text = self._decoded()
        return delta

    def _decoded(self) -> str:
        if self._num_context != 1:
            return self._tokenizer.decode(self._tokens)
        (token,) = self._tokens
        if token not in self._known:
            self._known[token] = self._tokenizer.decode(self._tokens)
        return self._known[token]


_HELD_TOKENS = 32
"""Tokens whose text is one piece if nobody reads it before its end: telling costs as much as a small step."""


@dataclass(frozen=True, slots=True)
class TransformerUsage(Usage):
    """The token counts of a finished task, its generated `tokens`, and their `logprobs` if asked for."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class RunningTask:
    """A task that an LLM instance runs: it turns the tokens chosen for the task into events (started, piece,
    done).

    Attributes:
        output: builder of pieces and value from the generated text; None for a prefill.
        text: converter of its tokens to text.
        ending: tokens that end the output.
        structure: JSON schema or regular expression that the output has to follow; None for none.
        tokenizer: name of the tokenizer.
        is_over: whether its last event has been emitted.
    """

    task: LLMTask
    sequence: TokenSequence
    output: DecodeOutput | None
    text: TextStream
    ending: frozenset[int]
    structure: Structure | None
    tokenizer: str
    is_over: bool = False
    _is_started: bool = False
    _resumed: list[LLMEvent] = field(default_factory=list)
    _held: list[str] = field(default_factory=list)  # text that is not told yet
    _is_plain: bool = field(init=False)
    _failure: StrettoError | None = None
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    _num_chars: int = 0
    _ends: list[int] = field(default_factory=list)  # characters up to the end of each token

    def __post_init__(self) -> None:
        self._is_plain = self.task.decode is None or is_plain_greedy(self.task.decode)

    def choice(self) -> TokenChoice | None:
        """Return how to choose the next token of the output; None for the most likely one."""
        if self._is_plain or self.task.decode is None:
            return None
        tokens, num_prompt_tokens = self.sequence.tokens, self.sequence.num_prompt_tokens
        generated = tokens[num_prompt_tokens:]
        allowed = None
        if self.structure is not None:
            try:
                allowed = self.structure.allowed(generated)
            except StrettoError as error:
                self._failure = error
        return TokenChoice(self.task.decode, tokens[:num_prompt_tokens], generated, self.ending, allowed)

    @property
    def generated(self) -> tuple[int, ...]:
        """The tokens generated so far, after which another instance can continue.

        Empty if log-probabilities are asked for, which would be lost: the task then starts over.
        """
        decode = self.task.decode
        if decode is None or decode.logprobs is not None:
            return ()
        return tuple(self.sequence.tokens[self.sequence.num_prompt_tokens :])

    def resume(self, generated: tuple[int, ...]) -> None:
        """Continue the task after tokens that another instance generated; their pieces are sent with the
        first step.

        The task may be over with them.
        """
        tokens = self._feed([Chosen(token) for token in generated], self._resumed)
        self.sequence.resume(tokens)

    def tell(self, chosen: list[Chosen], events: list[LLMEvent]) -> list[int]:
        """Process tokens that were chosen for the task in a step: append the events that they cause to
        `events`.

        Returns the tokens that belong to the output: fewer than `chosen` if the output ends before.
        """
        self._tell_started(events)
        return self._feed(chosen, events)

    def _feed(self, chosen: list[Chosen], events: list[LLMEvent]) -> list[int]:
        tokens: list[int] = []
        output, num_left = self.output, self.sequence.num_remaining
        num_before = len(self.sequence.tokens) - self.sequence.num_prompt_tokens
        assert output is not None
        try:
            for token, logprobs in chosen:
                if self._failure is not None:
                    raise self._failure
                tokens.append(token)
                if logprobs is not None:
                    self._logprobs.append(logprobs)
                is_last = token in self.ending
                if not is_last:
                    delta = self.text.feed(token)
                    if self.task.is_continued:
                        self._num_chars += len(delta)
                        self._ends.append(self._num_chars)
                    pieces, is_last = output.feed(delta)
                    self._tell_pieces(pieces, events, num_before + len(tokens))
                if is_last or len(tokens) == num_left:
                    last, value = output.finish("stop" if is_last else "length")
                    self._tell_pieces(last, events)
                    self._tell_last(self._done(value, tokens), events)
                    break
        except StrettoError as error:
            self._tell_last(Failed(self.task.id, error.at(self.task.step)), events)
        return tokens

    def _tell_pieces(self, pieces: list[str], events: list[LLMEvent], num_tokens: int = 0) -> None:
        """Append the pieces to `events`. If nobody reads the text before its end, and no silence is too long,
        it is held back after the first token, and told with every 32nd one and the last.
        """
        if self.task.silence_s == math.inf and self.task.decode and not self.task.decode.items:
            self._held += pieces
            if num_tokens > 1 and num_tokens % _HELD_TOKENS:
                return
            pieces, self._held = ["".join(self._held)] if self._held else [], []
        events += [Piece(self.task.id, piece) for piece in pieces]

    def tell_prefilled(self, num_computed: int, events: list[LLMEvent]) -> None:
        """Process a step that computed a chunk of the task's prompt: append the events that it causes to
        `events`.

        `num_computed` tokens of the sequence are computed then. If these are all, the task, a prefill, ends.
        """
        self._tell_started(events)
        if num_computed == len(self.sequence.tokens):
            self._tell_last(self._done(None, []), events)

    def _tell_started(self, events: list[LLMEvent]) -> None:
        if not self._is_started:
            self._is_started = True
            events += [Started(self.task.id), *self._resumed]
            self._resumed.clear()

    def _tell_last(self, event: LLMEvent, events: list[LLMEvent]) -> None:
        self.is_over = True
        events.append(event)

    def _done(self, value: object, last_tokens: list[int]) -> Done:
        sequence = self.sequence
        tokens = (*sequence.tokens[sequence.num_prompt_tokens :], *last_tokens)
        usage = TransformerUsage(
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached or 0,
            num_output_tokens=len(tokens),
            tokens=tokens,
            logprobs=tuple(self._logprobs),
        )
        finish: Finish = "stop" if self.output is None else self.output.finish_reason
        return Done(self.task.id, value, usage, self._written(tokens), finish)

    def _written(self, tokens: Sequence[int]) -> Segment | None:
        if not self.task.is_continued or self.output is None or (text := self.output.written) is None:
            return None
        if self.output.has_thoughts:  # the text is not that of the first tokens
            return answer_segment(text)
        return as_written(text, self.tokenizer, tokens, self._ends)


def as_written(text: str, tokenizer: str, tokens: Sequence[int], ends: Sequence[int]) -> Segment:
    """Return a text that an LLM has generated as a segment of a later prompt, with its tokens.

    A token belongs to the text as a whole or not at all. Tokens at the end that add no character, such as the
    first half of one, are left out.

    Args:
        text: the text as it was generated, up to a stop string.
        tokenizer: name of the tokenizer.
        tokens: the generated tokens; there may be more than belong to the text.
        ends: number of characters up to the end of each token that belongs to the output.
    """
    num_tokens = num_chars = 0
    for count, end in enumerate(ends, start=1):
        if end > len(text):
            break
        if end > num_chars:
            num_tokens, num_chars = count, end
    return answer_segment(text, TokenIds(tokenizer, tuple(tokens[:num_tokens]), num_chars))
