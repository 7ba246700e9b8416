"""Changes at one place of the prompts of a kind of program, and what was lost by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.operate.prefix.comparison import HISTORY, LEAST_TOKENS, Change
from stretto.operate.prefix.redaction import Rule
from stretto.operate.prefix.seen_prompt import CHARS_PER_TOKEN

_LEAST_SEEN = 3
"""Changes at one place from which on they may be a fault."""
_MOST_PROMPTS = 0.33
"""Share of prompts that lose by a change that is weak evidence, before it is a fault."""
_STRONG: frozenset[Rule] = frozenset(("time", "id", "order of tools", "order of keys"))


class Loss(NamedTuple):
    """What requests have lost: how many of them, and the tokens and seconds of their prefills."""

    num_requests: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, other: Loss, sign: int = 1) -> Loss:
        """Return the sum of two, or with a sign of -1 their difference."""
        return Loss(
            self.num_requests + sign * other.num_requests,
            self.tokens + sign * other.tokens,
            self.seconds + sign * other.seconds,
        )


NO_LOSS = Loss()


class ToldLoss(NamedTuple):
    """What was lost by a fault since it was told last."""

    fault: Fault
    loss: Loss


@dataclass(slots=True)
class Fault:
    """Changes at one place of the prompts of a kind.

    Attributes:
        num_seen: comparisons that found it.
        num_requests: requests that lose by it, as far as a sample tells.
        num_openings: requests that lose by it and begin a program.
        lost_tokens, lost_s: tokens that these requests had to have computed again, and the seconds of that.
        last: the change that was found last.
        program: a program that has it; "" if it has no name.
        told: what of the loss was told before.
        rules: how often each kind of change was found.
        stays: pieces that have stayed the same behind it in all openings; None before the first of these.
    """

    last: Change
    program: str = ""
    num_seen: int = 0
    num_requests: int = 0
    num_openings: int = 0
    lost_tokens: int = 0
    lost_s: float = 0.0
    told: Loss = NO_LOSS
    rules: Counter[Rule] = field(default_factory=Counter)
    stays: Mapping[int, int] | None = None

    @property
    def rule(self) -> Rule:
        """What changes there most often."""
        return self.rules.most_common(1)[0][0]

    def add(self, change: Change, loss: Loss, *, is_opening: bool) -> None:
        """Take one more comparison that has found it, for some requests that lose by it."""
        self.last = change
        self.num_seen += 1
        self.rules[change.rule] += 1
        self.num_requests += loss.num_requests
        self.num_openings += loss.num_requests * is_opening
        self.lost_tokens += loss.tokens
        self.lost_s += loss.seconds
        if is_opening:
            had = self.stays
            self.stays = (
                change.stays if had is None else {key: n for key, n in change.stays.items() if key in had}
            )

    def is_told(self, num_later: int, num_all_openings: int) -> bool:
        """Return whether there is enough evidence that it is a fault of its kind's programs.

        Args:
            num_later, num_all_openings: requests of the kind that go on with a program, and that begin one.
        """
        num_same, num_openings = self.num_requests - self.num_openings, self.num_openings
        if self.num_openings and not num_same and self._num_stays < LEAST_TOKENS * CHARS_PER_TOKEN:
            return False
        if self.num_seen < _LEAST_SEEN:
            return False
        if self.rule in _STRONG and self.last.place != HISTORY:
            return True
        is_usual = num_same >= _MOST_PROMPTS * max(1, num_later)
        return is_usual or num_openings >= _MOST_PROMPTS * max(1, num_all_openings)

    def tell(self) -> Loss:
        """Return what was lost since this was called last."""
        before, self.told = self.told, Loss(self.num_requests, self.lost_tokens, self.lost_s)
        return self.told.plus(before, -1)

    @property
    def _num_stays(self) -> int:
        return sum(self.stays.values()) if self.stays else 0
