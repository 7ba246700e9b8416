"""What a run knows of the answers to its calls when it plans again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AnswersSoFar:
    """The answers of a run so far, for a plan of what is left.

    Attributes:
        lengths: number of answers of each length in tokens, by node; finished requests are included.
        ended: tokens of each answer to a request that has not ended, by node; the keys are the place of the
            request among those that are left, and the number of the call.
        running: tokens so far of each answer under way, by node, in the order in which their calls began.
    """

    lengths: Mapping[str, Counter[int]] = field(default_factory=dict)
    ended: Mapping[str, Mapping[tuple[int, int], int]] = field(default_factory=dict)
    running: Mapping[str, Sequence[int]] = field(default_factory=dict)


NO_ANSWERS = AnswersSoFar()
