"""The interface of placement policies, which choose the instance of a request.

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
    """A prompt as chained hashes of its full blocks, `block_tokens` tokens each."""

    blocks: tuple[BlockHash, ...]
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """A request as a placement policy sees it.

    Attributes:
        num_tokens: tokens of the prompt.
        expected_output: tokens that it is expected to generate.
        keys: the prompt in the blocks of each space that instances have.
        hints: tokens of the prompt's beginning that instances are known to hold without a report, for example
            where an earlier part of the same query ran.
        computing: tokens of the prompt's beginning that instances are computing right now.
        tenant: owner of the query.
        group: name of a group of requests that are needed together; empty if it is alone.
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
        """Number of tokens of the prompt and of the expected output together."""
        return self.num_tokens + self.expected_output


@dataclass(frozen=True, slots=True)
class Choice:
    """The instance that a placement policy has chosen for a request, and why.

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
    """Event for a placement policy: a request was given to an instance."""

    instance: InstanceId
    request: PlacementRequest


@dataclass(frozen=True, slots=True)
class Left:
    """Event for a placement policy: an instance is gone, with all that it held."""

    instance: InstanceId


PlacementEvent: TypeAlias = Dispatched | Left | KVReport | LoadReport


class Placement(Protocol):
    """The interface of a placement policy. It is deterministic; only `observe` changes its state."""

    def load(self, instance: InstanceView) -> Load:
        """Return the load of an instance; the table that `choose` is given is sorted by it."""
        ...

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Choose the best instance with room for a request; return None if there is none now."""
        ...

    def observe(self, event: PlacementEvent) -> None:
        """Update the policy's state after an event. Called before the table is told that a view has
        changed.
        """
        ...
