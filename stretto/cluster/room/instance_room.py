"""The room of one instance, and what the contexts inside take of it."""

from __future__ import annotations

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId
from stretto.cluster.room.blocks_inside import BlocksInside
from stretto.cluster.room.call_means import CallMeans
from stretto.cluster.room.contexts import Context, RoomRequest
from stretto.cluster.room.kv_belief import KVBelief

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
