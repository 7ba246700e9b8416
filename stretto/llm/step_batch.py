"""The work of one step of an LLM instance: which tokens of which sequences it computes."""

from __future__ import annotations

from typing import NamedTuple

from stretto.llm.sequence import TokenSequence
from stretto.model.record import record


class Slice(NamedTuple):
    """The share of one sequence in a step: the KV of its tokens [start, start + num_tokens) is to be
    computed.

    With `samples` they are the sequence's last tokens so far, and the step also chooses the next one.
    """

    sequence: TokenSequence
    start: int
    num_tokens: int
    samples: bool


@record
class StepBatch:
    """The work of one step of an LLM instance, or of `num_repeats` decode steps in a row.

    Attributes:
        slices: which tokens of which sequences to compute. In a repeat, each sampled token is the next input.
        copies: pairs (from, to) of KV blocks: contents are copied before anything is computed, and all are
            read before any is written.
        num_loaded: tokens whose KV is loaded from host memory for sequences that begin in this step.
    """

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_repeats: int = 1
    num_loaded: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens computed in one step, over all sequences."""
        return sum(piece.num_tokens for piece in self.slices)
