"""The room of one instance: which blocks the contexts inside take, each counted once."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId
from stretto.cluster.room.contexts import Context, RoomRequest
from stretto.cluster.room.kv_belief import KVBelief


class InstanceRoom:
    """The KV memory of one instance, and the contexts that have room there.

    Attributes:
        prefill_s: predicted seconds of the prefill of a token.
        lane_tokens: tokens of the requests that run by the lane.
        computed: tokens that it has computed so far: prompts, as far as they were not cached, and answers.
        is_serving: whether further contexts may enter.
    """

    def __init__(self, instance: InstanceId, kv_tokens: int | None, prefill_s: float) -> None:
        self.id = instance
        self.belief = KVBelief(kv_tokens)
        self.prefill_s = prefill_s
        self.lane_tokens = 0
        self.computed = 0
        self.is_serving = False
        self.inside: dict[Context, None] = {}
        self._tokens = 0
        self._users: dict[BlockHash, int] = {}
        self._numbers: dict[BlockHash, int] = {}
        """Exclusive or of the numbers of each block's users: of a single one, its number."""

    def claims(self, per_call: float) -> float:
        """Return the tokens that the contexts inside take, if each grows by `per_call` tokens."""
        return self._tokens + len(self.inside) * per_call

    def num_inside(self, blocks: Sequence[BlockHash]) -> int:
        """Return how many of the first blocks of a prompt are inside. O(log n), as hashes are chained."""
        users = self._users
        low, high = 1, len(blocks)
        if not high or blocks[0] not in users:  # as most prompts at most instances
            return 0
        if blocks[high - 1] in users:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in users:
                low = middle
            else:
                high = middle - 1
        return low

    def only_user(self, block: BlockHash) -> int | None:
        """Return the number of the one context that has a block; None if there are several, or none."""
        return self._numbers[block] if self._users.get(block) == 1 else None

    def adds(self, context: Context, per_call: float) -> float:
        """Return the tokens that a context outside would add to those inside, with what a call adds."""
        num_new = len(context.blocks) - self.num_inside(context.blocks)
        return context.block_tokens * num_new + context.tail_tokens + per_call

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
        self._tokens += context.tail_tokens
        self._take(context, context.blocks)

    def leave(self, context: Context) -> None:
        """Take the room of a context away."""
        context.is_inside = False
        del self.inside[context]
        of_program = context.program.inside
        of_program[self.id] -= 1
        if not of_program[self.id]:
            del of_program[self.id]
        self._tokens -= context.tail_tokens
        self._give_back(context, context.blocks)

    def go_on(self, context: Context, request: RoomRequest, common: int) -> None:
        """Change the last prompt of a context inside to that of a request; the first `common` blocks stay.
        Takes O(other blocks).
        """
        self._tokens -= context.tail_tokens
        self._give_back(context, context.blocks[common:])
        context.goes_on_with(request)
        self._take(context, request.blocks[common:])
        self._tokens += context.tail_tokens

    def check_invariants(self) -> None:
        """Check the counts against the contexts inside. For tests."""
        users: dict[BlockHash, int] = {}
        tokens = 0
        for context in self.inside:
            assert context.is_inside
            assert context.instance == self.id
            assert context.program.inside[self.id] == sum(
                one.program is context.program for one in self.inside
            )
            tokens += context.tail_tokens
            for block in context.blocks:
                if block not in users:
                    tokens += context.block_tokens
                users[block] = users.get(block, 0) + 1
        assert users == self._users
        assert tokens == self._tokens
        assert self._numbers.keys() == users.keys()

    def _take(self, context: Context, blocks: Sequence[BlockHash]) -> None:
        users, numbers, number = self._users, self._numbers, context.number
        for block in blocks:
            if block in users:
                users[block] += 1
                numbers[block] ^= number
            else:
                users[block] = 1
                numbers[block] = number
                self._tokens += context.block_tokens

    def _give_back(self, context: Context, blocks: Sequence[BlockHash]) -> None:
        users, numbers, number = self._users, self._numbers, context.number
        for block in blocks:
            if users[block] > 1:
                users[block] -= 1
                numbers[block] ^= number
            else:
                del users[block], numbers[block]
                self._tokens -= context.block_tokens
