"""The work of one step of an LLM instance: which tokens of which sequences it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stretto.llm.sequence import TokenSequence


class Slice(NamedTuple):
    """Tokens [start, start + num_tokens) of a sequence, whose KV is to be computed in a step.

    With `samples` they are the last ones, and the next token is to be chosen. It is a tuple, as every step
    makes one for every sequence.
    """

    sequence: TokenSequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The slices of one step, to run `num_repeats` times: in a repeat, what was sampled is the next input.

    Only decodes are repeated. Before anything else the contents of blocks are copied, (from, to): all are
    read before any is written.
    """

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_repeats: int = 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens computed in one repeat."""
        return sum(piece.num_tokens for piece in self.slices)
