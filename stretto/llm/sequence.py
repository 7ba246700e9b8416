"""A prompt and its continuation as a local scheduler sees them: tokens, and the blocks that hold their KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from stretto.llm.cache.block_runs import BlockRun


class Status(Enum):
    """The state of a sequence in an LLM instance's scheduler: waiting, running or finished. A preempted
    sequence waits again.
    """

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class TokenSequence:
    """A sequence of tokens that an LLM instance prefills and decodes: a prompt and its continuation.

    It is mutable, and owned by one `LocalScheduler`.

    Attributes:
        tokens: the prompt, then what was generated; only ever appended to.
        num_prompt_tokens: number of `tokens` that were not generated.
        max_new_tokens: upper bound of generated tokens; 0 for a prefill.
        rank: priority given by the cluster's scheduler, smaller first. Empty for the order of arrival.
        query: name of the query that it belongs to; its prefixes are dropped from the cache
            when the query is released.
        salt: salt of the tenant: equal tokens under different salts share nothing.
        blocks: ids of KV blocks; tokens [i·block_tokens, (i+1)·block_tokens) are in `blocks[i]`.
        num_computed: leading tokens whose KV is in the blocks.
        is_offline: whether it gives way to all sequences that are not. Its rank must be larger than theirs.
        num_cached: prompt tokens found in the cache when the sequence was first started.
        num_shared_blocks: leading blocks that are registered in the prefix cache.
        cached: the cache's node with the last of these blocks; the sequence holds them by it.
    """

    id: int
    tokens: list[int]
    max_new_tokens: int
    rank: tuple[float, ...] = ()
    query: str = ""
    salt: str = ""
    is_offline: bool = False

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
        """Append tokens that another instance generated for this sequence; nothing is computed here yet."""
        assert self.num_computed == 0
        self.tokens += generated

    @property
    def place(self) -> tuple[tuple[float, ...], int]:
        """Sort key of the sequence by rank (priority) and arrival: the smallest starts first and is preempted
        last.
        """
        return self.rank or (self.arrived_s,), self.order

    @property
    def num_generated(self) -> int:
        """Number of tokens generated for this sequence so far, without its prompt."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Largest number of tokens that may still be generated for this sequence."""
        return self.max_new_tokens - self.num_generated

    @property
    def is_decoding(self) -> bool:
        """Whether the sequence is past its prefill: only the KV of its last generated token is missing."""
        num_tokens = len(self.tokens)
        return self.num_computed == num_tokens - 1 and num_tokens > self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Number of tokens whose KV has to be computed before the next token can be chosen."""
        return len(self.tokens) - self.num_computed
