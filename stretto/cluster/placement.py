"""Which instance gets a request: what a placement policy is given, and what it answers.

A policy is one class in one file of `placements/`, and one line in the table there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.instances import InstanceTable, InstanceView
from stretto.cluster.load_order import Load
from stretto.cluster.messages import InstanceId, KVReport, LoadReport


@dataclass(frozen=True, slots=True)
class PromptKey:
    """Chained hashes of the full blocks of a prompt, `block_tokens` tokens each."""

    blocks: tuple[BlockHash, ...]
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What a policy knows of a request.

    Attributes:
        num_tokens: tokens of the prompt.
        expected_output: tokens that it is expected to generate.
        keys: the prompt in the blocks of each space that instances have.
        hints: tokens of the prompt's beginning that instances are known to hold without a report, as the
            instance where an earlier part of the same query ran.
        computing: tokens of the prompt's beginning that instances are computing right now.
        tenant: owner of the query.
        group: requests that are needed together; empty if it is alone.
        slack_s: seconds that it may wait without delaying its query.
    """

    num_tokens: int
    expected_output: int = 0
    keys: Mapping[str, PromptKey] = field(default_factory=dict)
    hints: Mapping[InstanceId, int] = field(default_factory=dict)
    computing: Mapping[InstanceId, int] = field(default_factory=dict)
    tenant: str = ""
    group: str = ""
    slack_s: float = 0.0

    @property
    def all_tokens(self) -> int:
        """Tokens of the prompt and of the expected output."""
        return self.num_tokens + self.expected_output


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes.

    Attributes:
        held_tokens: tokens of the prompt that the instance is believed to hold.
        terms: predicted seconds by name, as far as the policy predicts any.
        reason: why, for traces.
    """

    instance: InstanceId
    held_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A request was given to an instance."""

    instance: InstanceId
    request: PlacementRequest


@dataclass(frozen=True, slots=True)
class Left:
    """An instance is gone, with all that it held."""

    instance: InstanceId


PlacementEvent: TypeAlias = Dispatched | Left | KVReport | LoadReport


class Placement(Protocol):
    """A rule that chooses instances. Deterministic; its state changes in `observe` alone."""

    def load(self, instance: InstanceView) -> Load:
        """Return how loaded an instance is. The table that `choose` is given is sorted by it."""
        ...

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the best instance with room, None if there is none now."""
        ...

    def observe(self, event: PlacementEvent) -> None:
        """Note what has happened. Called before the table is told that a view has changed."""
        ...
