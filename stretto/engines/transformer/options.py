"""The likeliest of several options as an output: how likely the model's text begins with each one.

Each option has the spellings with and without a space before it, as token ids. The spellings are a tree: a
sequence for each of its longest forks computes how likely the tokens are that part options. Options that
part with their first token need one step after the prompt.

An option that others begin with, such as "yes" beside "yes, surely", is not likelier for being short: its
likelihood is that the text begins with it and with none of those. Likelihoods of different options then never
count a text twice, and need no token that ends an answer, of which base models know little.

Source: `select` of SGLang (arXiv:2312.07104 §2.1). Differs: it compares mean log-probabilities of tokens, by
which an option wins that has many tokens which follow from its first ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from stretto.engines.decoding import changed_settings
from stretto.engines.transformer.running_task import TransformerUsage
from stretto.engines.transformer.token_choice import Chosen, TokenChoice
from stretto.llm.output.sampling import noise_seed
from stretto.llm.sequence import TokenSequence
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece, Started
from stretto.model.values import answer_segment

_Tokens: TypeAlias = tuple[int, ...]

_COMPARED = frozenset(
    ("choices", "max_tokens", "fits_context", "stop", "temperature", "seed", "draws_seed", "strip")
)


def compares_options(decode: Decode) -> bool:
    """Return whether the output is the likeliest of its choices.

    It is held to them token by token instead where other settings change how likely a token is, where a stop
    string would cut a choice, and where a choice is empty.
    """
    if not decode.choices or not all(decode.choices) or not changed_settings(decode).keys() <= _COMPARED:
        return False
    return not any(stop in choice for choice in decode.choices for stop in decode.stop)


class Comparison:
    """The comparison of the options of a task, made of the tokens' likelihoods after its prompt.

    Attributes:
        task: task that is answered with the likeliest option.
        forks: tokens of options after which likelihoods have to be computed, the longest first; those of all
            other forks are computed on the way.

    Raises:
        ConfigError: an option has no tokens, or has those of the model's own marks.
    """

    def __init__(self, task: LLMTask, decode: Decode, tokens_of: Callable[[str], Sequence[int]]) -> None:
        self.task, self._decode = task, decode
        self._spellings: dict[_Tokens, tuple[str, str]] = {}
        for option in dict.fromkeys(decode.choices):
            for text in (option, f" {option}") if decode.strip else (option,):
                try:
                    tokens = tuple(tokens_of(text))
                except (TypeError, ValueError) as error:
                    raise ConfigError(f"choices: {option!r} cannot be tokenised: {error}") from error
                if not tokens:
                    raise ConfigError(f"choices: the model has no tokens for {option!r}")
                self._spellings.setdefault(tokens, (option, text))
        self._next: dict[_Tokens, dict[int, None]] = {}
        for tokens in self._spellings:
            for place, token in enumerate(tokens):
                self._next.setdefault(tokens[:place], {})[token] = None
        leaves = [
            fork
            for fork, after in self._next.items()
            if not any((*fork, token) in self._next for token in after)
        ]
        self.forks = sorted(leaves, key=len, reverse=True)
        self._logprobs: dict[_Tokens, float] = {}
        self._is_started = False
        self._num_left = len(self.forks)
        self._num_cached: int | None = None

    def after(self, fork: _Tokens, first: int | None) -> tuple[int, ...]:
        """Return the tokens that go on with options after a fork, with `first` before the others."""
        tokens = tuple(self._next[fork])
        return tokens if first is None else (first, *(token for token in tokens if token != first))

    def note_started(self, events: list[LLMEvent]) -> None:
        """Append the event that the task has started, once."""
        if not self._is_started:
            self._is_started = True
            events.append(Started(self.task.id))

    def note(self, fork: _Tokens, chosen: Chosen) -> None:
        """Note how likely tokens are after a fork."""
        assert chosen.logprobs is not None
        self._logprobs |= {(*fork, token): logprob for token, logprob in chosen.logprobs.top}

    def note_ended(self, sequence: TokenSequence, events: list[LLMEvent]) -> None:
        """Note that a sequence has ended. With the last one, append the answer to `events`."""
        cached = sequence.num_cached or 0
        self._num_cached = cached if self._num_cached is None else min(cached, self._num_cached)
        self._num_left -= 1
        if self._num_left:
            return
        tokens = self._best()
        option, text = self._spellings[tokens]
        usage = TransformerUsage(sequence.num_prompt_tokens, self._num_cached, len(tokens), tokens)
        written = answer_segment(text) if self.task.is_continued else None
        events += [Piece(self.task.id, option), Done(self.task.id, option, usage, written)]

    def likelihoods(self) -> dict[_Tokens, float]:
        """Return how likely the text begins with each spelling and with none that goes on from it, relative
        to the likeliest beginning.
        """
        sums = {
            tokens: sum(self._logprobs[tokens[:place]] for place in range(1, len(tokens) + 1))
            for tokens in self._spellings
        }
        most = max(sums.values())
        begins = {tokens: math.exp(logprob - most) for tokens, logprob in sums.items()}
        found = dict(begins)
        for tokens in begins:
            shorter = (tokens[:place] for place in range(len(tokens) - 1, 0, -1))
            if (within := next((one for one in shorter if one in begins), None)) is not None:
                found[within] = max(0.0, found[within] - begins[tokens])
        return found

    def _best(self) -> _Tokens:
        """Return the likelier spelling of the likeliest option, or of one drawn by the temperature."""
        found = self.likelihoods()
        options = dict.fromkeys(self._decode.choices, 0.0)
        for tokens, likelihood in found.items():
            options[self._spellings[tokens][0]] += likelihood
        best = max(options, key=options.__getitem__)
        if self._decode.temperature:
            weights = [(one / options[best]) ** (1 / self._decode.temperature) for one in options.values()]
            (best,) = Random(noise_seed(self._decode.seed, 0)).choices(list(options), weights)
        mine = [tokens for tokens in found if self._spellings[tokens][0] == best]
        return max(mine, key=found.__getitem__)


@dataclass(slots=True)
class OptionPath:
    """A sequence that computes the likelihoods at a fork of a comparison, and at all forks before it."""

    comparison: Comparison
    fork: _Tokens
    sequence: TokenSequence
    is_over: bool = False

    @property
    def task(self) -> LLMTask:
        """The task that the comparison answers."""
        return self.comparison.task

    @property
    def generated(self) -> tuple[int, ...]:
        """Nothing: another instance compares all options again."""
        return ()

    def choice(self) -> TokenChoice:
        """Return what is wanted of the next token: likelihoods, and the token that leads to the fork."""
        place = self.sequence.num_generated
        first = self.fork[place] if place < len(self.fork) else None
        after = self.comparison.after(self.fork[:place], first)
        return TokenChoice(self.comparison.task.decode or Decode(), [], [], frozenset(), scored=after)

    def tell(self, chosen: list[Chosen], events: list[LLMEvent]) -> list[int]:
        """Note the likelihoods of a step, and append the events that they cause. Return its tokens."""
        self.comparison.note_started(events)
        start = self.sequence.num_generated
        for place, made in enumerate(chosen, start=start):
            self.comparison.note(self.fork[:place], made)
        if start + len(chosen) > len(self.fork):
            self.is_over = True
            self.comparison.note_ended(self.sequence, events)
        return [made.token for made in chosen]

    def tell_prefilled(self, num_computed: int, events: list[LLMEvent]) -> None:
        """Append the events that a step caused which computed a chunk of the prompt."""
        self.comparison.note_started(events)
