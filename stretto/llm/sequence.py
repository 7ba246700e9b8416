"""A prompt and its continuation, as the scheduler sees it: tokens, and the blocks that hold their KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from stretto.llm.cache.block_runs import BlockRun


class Status(Enum):
    """Where a sequence is. A preempted one waits again."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class TokenSequence:
    """Mutable, and owned by one `LocalScheduler`.

    Attributes:
        tokens: the prompt, then what was generated; only ever appended to.
        num_prompt_tokens: of `tokens`, those that were not generated.
        max_new_tokens: upper bound of generated tokens; 0 for a prefill.
        rank: from the upper tier; smaller goes first. Empty for the order of arrival.
        query: for whom; its prefixes are forgotten when the query is released.
        salt: of the tenant: equal tokens under different salts share nothing.
        capacity_tokens: how many tokens may be on board beside this sequence before it gets too slow;
            None for as many as there is room for.
        blocks: KV of tokens [i·block_tokens, (i+1)·block_tokens) is in `blocks[i]`.
        num_computed: leading tokens whose KV is in the blocks.
        num_cached: of the prompt, those found in the cache when it was first started.
        num_shared_blocks: leading blocks that are registered in the prefix cache.
        cached: the cache's node with the last of these, by which they are held.
    """

    id: int
    tokens: list[int]
    max_new_tokens: int
    rank: tuple[float, ...] = ()
    query: str = ""
    salt: str = ""
    capacity_tokens: int | None = None

    status: Status = Status.WAITING
    num_prompt_tokens: int = field(init=False)
    arrived_s: float = 0.0
    order: int = 0
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int | None = None
    num_shared_blocks: int = 0
    cached: BlockRun | None = None
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    def resume(self, generated: Sequence[int]) -> None:
        """Take over what was generated elsewhere, before anything is computed here."""
        assert self.num_computed == 0
        self.tokens += generated

    @property
    def place(self) -> tuple[tuple[float, ...], int]:
        """Key among all sequences of an instance: who goes first, and who keeps its blocks longest."""
        return self.rank or (self.arrived_s,), self.order

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens still to be generated, at most."""
        return self.max_new_tokens - self.num_generated

    @property
    def is_decoding(self) -> bool:
        """Whether all but the last token is computed, and that one was generated."""
        num_tokens = len(self.tokens)
        return self.num_computed == num_tokens - 1 and num_tokens > self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens whose KV has to be computed before the next one can be chosen."""
        return len(self.tokens) - self.num_computed
