"""The room of one instance, what the contexts inside take of it, and how many tokens its KV memory holds.

That is corrected by what is found in its cache. A program that comes back should find its last prompt there,
if less than the whole memory was computed since. Where that fails often, the memory is smaller than it was
said to be; where prompts are found though more than the memory was computed, it is larger.
"""

from __future__ import annotations

import math

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId
from stretto.cluster.room.blocks_inside import BlocksInside
from stretto.cluster.room.call_means import CallMeans
from stretto.cluster.room.contexts import Context, RoomRequest

_WINDOW = 32
_LEAST_EXPECTED = 512
"""Tokens that a prompt must be expected to find, so that a single block more or less does not count."""
_MANY_MISSES, _FEW_MISSES = 0.10, 0.04
_MOST_DOWN, _BACK, _UP = 0.08, 0.05, 0.01
_FORGIVEN = 0.005
"""Part of the way to the size that was said by which the belief may come back further, in a window."""
_LEAST_BEYOND, _BEYOND_SHARE = 3, 0.8
_LEAST_SHARE = 0.25
"""Part of the configured size below which the belief never falls: then other clients share the cache."""


class KVBelief:
    """The believed size of the KV memory of one instance.

    Attributes:
        configured: tokens that it was said to hold; None if nothing was said. Then the size counts as endless
            until prompts that should have been found are missing, though the cache has found others.
    """

    def __init__(self, configured: int | None) -> None:
        self.configured = configured
        self.tokens = math.inf if configured is None else float(configured)
        self._back_to = self.tokens
        """Where the belief comes back to after it fell: at first halfway to what was too large, and further
        from window to window. If that were the size that was said, a size that was said too large would be
        believed again and again.
        """
        self._has_hit = False
        self._num_expected = self._num_missed = self._num_beyond = self._num_found = 0

    def resize(self, configured: int) -> None:
        """Take another number of tokens for the size that was said; what is believed changes by as much."""
        if self.configured is not None:
            self.tokens *= configured / self.configured
            self._back_to *= configured / self.configured
            self.configured = configured

    def note(self, expected: int, cached: int, computed_since: int, taken: float) -> None:
        """Compare what a prompt found in the cache with what it should have.

        Args:
            expected: tokens that it has in common with the program's last prompt.
            computed_since: tokens that the instance has computed since that one.
            taken: tokens of all programs that have room now, from which a belief begins if no size was said.
        """
        self._has_hit = self._has_hit or cached > 0
        if expected < _LEAST_EXPECTED or not self._has_hit:
            return
        is_found = 2 * cached >= expected
        if computed_since + expected >= self.tokens:
            self._num_beyond += 1
            self._num_found += is_found
        else:
            self._num_expected += 1
            self._num_missed += not is_found
        if self._num_expected + self._num_beyond >= _WINDOW:
            self._correct(taken)

    def _correct(self, taken: float) -> None:
        missed = self._num_missed / max(1, self._num_expected)
        known = self.configured
        if missed > _MANY_MISSES:
            least, too_large = 0.0 if known is None else _LEAST_SHARE * known, self._begin(taken)
            self.tokens = max(least, too_large * (1.0 - min(_MOST_DOWN, missed / 2)))
            self._back_to = (self.tokens + too_large) / 2
        elif missed < _FEW_MISSES and self.tokens < math.inf:
            if known is not None and self.tokens < known:
                self.tokens += _BACK * max(0.0, self._back_to - self.tokens)
                self._back_to += _FORGIVEN * (known - self._back_to)
            if self._num_found >= max(_LEAST_BEYOND, _BEYOND_SHARE * self._num_beyond):
                self.tokens *= 1.0 + _UP
        self._num_expected = self._num_missed = self._num_beyond = self._num_found = 0

    def _begin(self, taken: float) -> float:
        """Return the size from which a belief begins that was endless."""
        return max(taken, 1.0) if self.tokens == math.inf else self.tokens


_PRESSED = 0.5
"""Part of the memory from which on it matters what prompts share, and where requests go."""


class InstanceRoom:
    """The KV memory of one instance, and the contexts that have room there.

    Attributes:
        prefill_s: predicted seconds of the prefill of a token.
        lane_tokens: tokens of the requests that run by the lane.
        computed: tokens that it has computed so far: prompts, as far as they were not cached, and answers.
        is_serving: whether further contexts may enter.
        inside: the contexts that have room.
        blocks: the blocks that these take, each counted once.
    """

    def __init__(
        self, instance: InstanceId, kv_tokens: int | None, prefill_s: float, means: CallMeans
    ) -> None:
        self.id = instance
        self.belief = KVBelief(kv_tokens)
        self.prefill_s = prefill_s
        self.lane_tokens = 0
        self.computed = 0
        self.is_serving = False
        self.inside: dict[Context, None] = {}
        self.blocks = BlocksInside()
        self._tail_tokens = 0
        self._means = means

    @property
    def claims(self) -> float:
        """Tokens that the contexts inside take, with what their next calls add."""
        return self.blocks.tokens + self._tail_tokens + len(self.inside) * self._means.per_call

    @property
    def is_pressed(self) -> bool:
        """Whether so much of the memory is taken that it matters what prompts share."""
        return self.claims > _PRESSED * self.belief.tokens

    def adds(self, context: Context) -> float:
        """Return the tokens that a context outside would add to those inside, with what a call adds."""
        num_new = len(context.blocks) - self.blocks.find(context.blocks)[0]
        return context.block_tokens * num_new + context.tail_tokens + self._means.per_call

    def keeps_for_s(self) -> float:
        """Return for how long it is worth to keep what will be needed again, in seconds: as long as it takes
        to compute the whole memory. Keeping c tokens for t seconds takes c × t of what the memory offers, and
        computing them again takes c × `prefill_s` of the time of all of it.
        """
        return self.belief.tokens * self.prefill_s

    def enter(self, context: Context) -> None:
        """Give room to a context, which is nowhere inside."""
        assert not context.is_inside
        context.is_inside, context.instance = True, self.id
        self.inside[context] = None
        of_program = context.program.inside
        of_program[self.id] = of_program.get(self.id, 0) + 1
        self._tail_tokens += context.tail_tokens
        self.blocks.add(context)

    def leave(self, context: Context) -> None:
        """Take the room of a context away."""
        context.is_inside = False
        del self.inside[context]
        of_program = context.program.inside
        of_program[self.id] -= 1
        if not of_program[self.id]:
            del of_program[self.id]
        self._tail_tokens -= context.tail_tokens
        self.blocks.remove(context)

    def go_on(self, context: Context, request: RoomRequest) -> None:
        """Change the last prompt of a context inside to that of a request."""
        self._tail_tokens -= context.tail_tokens
        self.blocks.go_on(context, request)
        self._tail_tokens += context.tail_tokens

    def check_invariants(self) -> None:
        """Check the counts against the contexts inside. For tests."""
        tokens_of_block: dict[BlockHash, int] = {}
        for context in self.inside:
            assert context.is_inside
            assert context.instance == self.id
            assert context.program.inside[self.id] == sum(
                one.program is context.program for one in self.inside
            )
            for block in context.blocks:
                tokens_of_block.setdefault(block, context.block_tokens)
        self.blocks.check_invariants()
        assert self.blocks.tokens == sum(tokens_of_block.values())
        assert self._tail_tokens == sum(context.tail_tokens for context in self.inside)
