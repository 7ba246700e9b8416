"""What the sampler is asked for and what it answers, without any computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stretto.model.tasks import Decode

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probabilities of a chosen token and of the most likely ones, before temperature and penalties.

    Attributes:
        top: (token, log-probability) of the most likely tokens.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The input of the sampler for the choice of the next token of a sequence.

    Attributes:
        prompt: tokens of the prompt.
        generated: tokens of the output so far.
        ending: tokens that would end the output.
        allowed: mask of the tokens that a JSON schema or regular expression allows next, (V,); None for all.
        scored: tokens whose log-probabilities are wanted. The first of them is chosen, unless there are none.
    """

    decode: Decode
    prompt: list[int]
    generated: list[int]
    ending: frozenset[int]
    allowed: Tensor | None = None
    scored: tuple[int, ...] = ()


class Chosen(NamedTuple):
    """A token chosen by the sampler, and its log-probabilities if they were asked for."""

    token: int
    logprobs: TokenLogprobs | None = None
