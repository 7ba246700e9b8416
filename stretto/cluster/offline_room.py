"""How much offline work runs at an instance that forms its own batches, such as a server.

Nobody tells such an instance which prefill may wait: what is sent there is computed as it comes, and makes
the steps of all others longer. An offline request costs each of them the time of its prefill, once, and a
little in each of its own decodes. So what can be kept is a rate. Rules:

- While requests of others are there, offline ones begin one after the other. Others are to need longer by a
  share of their time. A request that comes waits for the end of a step, in which there would be none without
  offline work. What is left of the share holds a number of prefills, and as many begin in the time of a
  request. If it holds none, few requests only are to meet one.
- When others come, the youngest offline requests leave, so that the decodes of those that stay keep within
  the share.
- Others count as being there for some seconds after the last of them: one who has read an answer asks again.
- Without others, as many run as use an instance well. Each begins when the prefill of the one before is about
  over, so that who comes finds no queue of prefills.
- What steps cost is learned from the answers (`costs/learned_steps.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.costs.learned_steps import LearnedSteps
from stretto.model.profile import Profile

SHARE = 0.08
"""Part by which the requests of others may be longer because of offline work, in all."""
_APART = 1.05
"""Times of a request between as many prefills as one may meet: it is not to meet one more."""
_FEW = 0.04
"""Part of the others' requests that meet a prefill which is longer than the share of a request's time."""
_WEIGHT = 0.1
"""Weight of a request in the mean time of others."""
_ALONE = 64
"""Offline requests at an instance without others."""
_QUIET_S = 5.0
"""Seconds without requests of others after which an instance is taken to be without them."""
_ALONE_PACE = 0.5
"""Part of a prefill after which the next offline request begins at an instance without others."""


@dataclass(slots=True)
class _Request:
    """A request that runs.

    Attributes:
        area, prefilled: `_area` and `_prefilled` of the room when it was sent.
    """

    since_s: float
    is_offline: bool
    area: float
    prefilled: int


class OfflineRoom:
    """The room for offline requests at one instance.

    Args:
        profile: predicted seconds of the instance.

    Attributes:
        steps: what its steps take.
        share: part by which offline work may lengthen the requests of others.
        num_offline: number of offline requests that run.
    """

    def __init__(self, profile: Profile) -> None:
        self.steps = LearnedSteps(profile)
        self.share = SHARE
        self._requests: dict[int, _Request] = {}
        self.num_offline = 0
        self._others_until_s = -math.inf
        self._last_s = 0.0
        self._area = 0.0  # requests times seconds
        self._prefilled = 0  # tokens of prompts
        self._begun_s = -math.inf  # when the last offline request began, or others came
        self._last_new = self._last_output = 0  # its tokens
        self._others_s: float | None = None  # mean seconds of a request of others

    @property
    def num_others(self) -> int:
        """Number of requests that are not offline."""
        return len(self._requests) - self.num_offline

    def has_others(self, now_s: float) -> bool:
        """Return whether requests that are not offline are there, or were lately."""
        return self.num_others > 0 or now_s < self._others_until_s

    def is_left_to_others(self, now_s: float) -> bool:
        """Return whether offline requests do not begin here while another instance takes them: others are
        here, and one prefill is longer than the share of their time. The few that may begin would be half a
        percent of the work, and others would need 3 % longer for it (95th percentile).
        """
        return self.has_others(now_s) and self._others_s is not None and self._num_prefills() < 1.0

    def started(self, key: int, num_new: int, num_output: int, now_s: float, *, is_offline: bool) -> None:
        """Note that a request is sent to the instance.

        Args:
            num_new: tokens of its prompt that are to be computed.
            num_output: tokens that its answer is expected to have.
        """
        self._advance(now_s)
        if is_offline:
            self.num_offline += 1
            self._begun_s, self._last_new, self._last_output = now_s, num_new, num_output
        elif not self.has_others(now_s) and self.num_offline:
            self._begun_s = now_s
        self._requests[key] = _Request(now_s, is_offline, self._area, self._prefilled)
        self._prefilled += num_new

    def ended(self, key: int, num_output: int | None, now_s: float) -> bool:
        """Note that a request has left the instance; return whether it was there.

        Args:
            num_output: tokens of its whole answer; None if its time tells nothing.
        """
        if (one := self._requests.pop(key, None)) is None:
            return False
        self._advance(now_s, num_more=1)
        self.num_offline -= one.is_offline
        if not one.is_offline:
            self._others_until_s = now_s + _QUIET_S
        seconds = now_s - one.since_s
        if not one.is_offline and num_output is not None:
            before_s = seconds if self._others_s is None else self._others_s
            self._others_s = before_s + _WEIGHT * (seconds - before_s)
        if num_output is not None and seconds > 0.0:
            neighbours = max(0.0, (self._area - one.area) / seconds - 1.0)
            self.steps.answered(seconds, num_output, neighbours, self._prefilled - one.prefilled)
        return True

    def takes_one(self, now_s: float) -> bool:
        """Return whether an offline request may begin now."""
        return self.num_offline < self._most(now_s) and now_s >= self._free_s(now_s)

    def next_s(self, now_s: float) -> float:
        """Return the time from which one more may begin if nothing else happens; infinite for never."""
        alone_s = self._others_until_s if not self.num_others and now_s < self._others_until_s else math.inf
        free_s = self._free_s(now_s) if self.num_offline < self._most(now_s) else math.inf
        return min(alone_s, free_s if free_s > now_s else math.inf)

    def in_the_way(self, now_s: float) -> Sequence[int]:
        """Return the offline requests that have to leave, the youngest first."""
        return self.youngest(self.num_offline - self._most(now_s)) if self.num_offline else ()

    def youngest(self, number: int) -> Sequence[int]:
        """Return so many offline requests, the youngest first."""
        if number <= 0:
            return ()
        offline = [key for key, one in self._requests.items() if one.is_offline]
        return offline[: -number - 1 : -1]

    def _free_s(self, now_s: float) -> float:
        """Return the time from which an offline request may begin after the last one."""
        steps = self.steps
        prefill_s = steps.per_token_s * self._last_new
        if not self.has_others(now_s):
            return self._begun_s + _ALONE_PACE * prefill_s
        if self.share <= 0.0:
            return math.inf
        cost_s = prefill_s + steps.per_neighbour_s * self._last_output
        if self._others_s is None:
            return self._begun_s + cost_s / self.share
        if (num_prefills := self._num_prefills()) < 1.0:
            return self._begun_s + max(cost_s / self.share, self._others_s / _FEW)
        return self._begun_s + _APART * self._others_s / int(num_prefills)

    def _num_prefills(self) -> float:
        """Return how many prefills like the last one a request of others may meet."""
        steps = self.steps
        cost_s = steps.per_token_s * self._last_new + steps.per_neighbour_s * self._last_output
        return (self.share * (self._others_s or 0.0) - steps.per_output_s) / max(cost_s, 1e-9)

    def _most(self, now_s: float) -> int:
        """Return how many offline requests may run now."""
        if not self.has_others(now_s):
            return _ALONE
        steps = self.steps
        if not steps.per_neighbour_s:
            return _ALONE
        return max(1, min(_ALONE, int(self.share * steps.per_output_s / steps.per_neighbour_s)))

    def _advance(self, now_s: float, num_more: int = 0) -> None:
        """Let the time since the last change pass, in which so many more ran than do now."""
        self._area += (now_s - self._last_s) * (len(self._requests) + num_more)
        self._last_s = now_s

    def check_invariants(self) -> None:
        """Check the counts. For tests."""
        assert self.num_offline == sum(one.is_offline for one in self._requests.values())
