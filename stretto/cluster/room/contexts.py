"""Contexts: what a program keeps in KV memory from one of its requests to the next.

A context is a chain of prompts, each of which begins with the one before. An agent is one context; its
sub-agents, and a history that was rewritten, are others of the same program. What a prompt begins with
decides which context a request goes on with: clients give wrong names, or none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.messages import InstanceId
from stretto.cluster.room.silences import Returns, Silences
from stretto.model.record import record


@record
class RoomRequest:
    """A request that arrives.

    Attributes:
        key: name by which the client calls it.
        program: name of its program, which no other one has.
        kind: name of what resembles it. Programs come back after answers of one kind in similar times.
        blocks: chained hashes of the prompt's full blocks, each of `block_tokens` tokens.
        num_output: tokens that it is expected to generate.
        returns: whether its program is expected to make further requests while nothing is known of the kind.
        is_last: whether its program makes no other request, ever.
    """

    key: Hashable
    program: Hashable
    kind: str
    num_tokens: int
    blocks: Sequence[BlockHash] = ()
    block_tokens: int = 1
    num_output: int = 0
    returns: Returns = "unlikely"
    is_last: bool = False


@dataclass(slots=True, eq=False)
class Program:
    """A program that has contexts.

    Attributes:
        start_s: time of its first request, from which it ages.
        silent: contexts of the program that are silent, the one that was silent first in front.
        inside: how many of its contexts have room, by instance.
        is_over: whether its end was said.
    """

    name: Hashable
    start_s: float
    contexts: dict[Context, None] = field(default_factory=dict)
    silent: dict[Context, None] = field(default_factory=dict)
    inside: dict[InstanceId, int] = field(default_factory=dict)
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Context:
    """What a program keeps in KV memory.

    Attributes:
        number: number that no other context has.
        blocks: hashes of the blocks of its last prompt, which has `num_tokens` tokens; `tail_tokens` of them
            fill no block.
        instance: where it was computed last, or is going to be; None before that is known.
        is_inside: whether it has room at `instance`. Only what is likely to come back has.
        in_lane: whether its last request went by the lane.
        is_computed: whether one of its requests was sent.
        request: key of its request that waits or runs; None while it is silent.
        last_s: time of its last answer.
        bin: bin of the silences that it is in.
        used_at: tokens that the instance had computed when it was used last.
        look_s: time at which to look at it next while it is silent; None if never.
    """

    number: int
    program: Program
    silences: Silences
    blocks: Sequence[BlockHash] = ()
    block_tokens: int = 1
    num_tokens: int = 0
    tail_tokens: int = 0
    instance: InstanceId | None = None
    is_inside: bool = False
    in_lane: bool = False
    is_computed: bool = False
    request: Hashable | None = None
    last_s: float = 0.0
    bin: int = 0
    used_at: int = 0
    look_s: float | None = None

    def goes_on_with(self, request: RoomRequest) -> None:
        """Make the prompt of a request its last one."""
        self.blocks, self.block_tokens = request.blocks, request.block_tokens
        self.num_tokens = request.num_tokens
        self.tail_tokens = max(0, self.num_tokens - self.block_tokens * len(self.blocks))

    def common(self, blocks: Sequence[BlockHash]) -> int:
        """Return how many blocks a prompt has in common with the last one: O(log n)."""
        return num_common_blocks(self.blocks, blocks, 0, min(len(self.blocks), len(blocks)))


def num_common_blocks(mine: Sequence[BlockHash], others: Sequence[BlockHash], least: int, most: int) -> int:
    """Return how many blocks two prompts have in common, from `least` to `most` of them. Hashes are chained,
    so that equal ones have equal beginnings: O(log n).
    """
    if most > least and mine[most - 1] == others[most - 1]:  # as most prompts go on
        return most
    while least < most:
        middle = (least + most + 1) // 2
        if mine[middle - 1] == others[middle - 1]:
            least = middle
        else:
            most = middle - 1
    return least
