"""The interface of placement policies, which choose the instance of a request.

A policy is one class in one file of `placements/`, and one line in the table there. It says when requests are
bound to an instance:

- "late": a request waits in the engine's queue, and is placed when it goes out. `choose` names an instance
  that has room, and None lets the request wait.
- "early": a request is placed when it comes. `choose` may name an instance that is full, and the request
  waits in that instance's own queue. The policy is asked again when that instance drains, becomes suspect or
  dies. It is also asked again, with `bound_to` set, when that instance slows down, and when another one has
  room and an empty queue. To name another instance then is to move the request. A policy that wants a margin
  adds it to the price of moving.
- "final": as "early", but the policy is asked again only when the instance no longer serves.

The scheduler owns the queues and the moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, Protocol, TypeAlias

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.instances import InstanceTable, InstanceView
from stretto.cluster.load_order import Load
from stretto.cluster.messages import InstanceId, KVReport, LoadReport
from stretto.record import record

Binds: TypeAlias = Literal["late", "early", "final"]
"""When a request is bound to an instance; see above."""

KeyUse: TypeAlias = Literal["never", "reported", "always"]
"""Which keys of prompts a policy wants. "reported" asks for token blocks, in the spaces of instances that
report what their caches hold. "always" asks for blocks of bytes too, where instances report nothing."""


@record
class PromptKey:
    """A prompt as chained hashes of its full blocks, `block_tokens` tokens each."""

    blocks: tuple[BlockHash, ...]
    block_tokens: int


@record(kw_only=True)
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
        slack_s: seconds that it may wait without delaying its query.
        bound_to: instance in whose queue it waits now, if it is asked about again.
        ahead_s: predicted seconds of the requests that wait before it there.
    """

    num_tokens: int
    expected_output: int = 0
    keys: Mapping[str, PromptKey] = field(default_factory=dict)
    hints: Mapping[InstanceId, int] = field(default_factory=dict)
    computing: Mapping[InstanceId, int] = field(default_factory=dict)
    tenant: str = ""
    slack_s: float = 0.0
    bound_to: InstanceId | None = None
    ahead_s: float = 0.0

    @property
    def all_tokens(self) -> int:
        """Number of tokens of the prompt and of the expected output together."""
        return self.num_tokens + self.expected_output

    def start_s(self, view: InstanceView) -> float:
        """Return the predicted seconds until its prefill begins at an instance.

        It waits for the prefills there, for the requests that wait before it, and for room if there is none.
        """
        waiting_s = self.ahead_s if view.id == self.bound_to else view.waiting_s
        has_room = not waiting_s and view.room_tokens >= min(self.all_tokens, view.capacity_tokens)
        return view.slowness * (view.prefill_s + waiting_s + (0.0 if has_room else view.turn_s))


@record
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


@record
class Joined:
    """Event for a placement policy: an instance can take work; prompts have their keys there in `space`."""

    instance: InstanceId
    space: str


@record
class Bound:
    """Event for a placement policy: a request waits in the queue of an instance. `Unbound` follows."""

    instance: InstanceId
    request: PlacementRequest


@record
class Unbound:
    """Event for a placement policy: a request has left the queue of an instance, wherever it goes.

    `request` is the same object as in `Bound`. Before the next `choose`, `Dispatched` follows if it goes out.
    """

    instance: InstanceId
    request: PlacementRequest


@record
class Dispatched:
    """Event for a placement policy: a request was given to an instance. `Ended` follows."""

    instance: InstanceId
    request: PlacementRequest


@record
class Ended:
    """Event for a placement policy: a request has left an instance that ran it.

    Attributes:
        request: the same object as in `Dispatched`.
        held_tokens: tokens of its prompt that were found in the instance's cache; None if that is unknown.
    """

    instance: InstanceId
    request: PlacementRequest
    held_tokens: int | None = None


@record
class Left:
    """Event for a placement policy: an instance is gone, with all that it held."""

    instance: InstanceId


PlacementEvent: TypeAlias = Joined | Bound | Unbound | Dispatched | Ended | Left | KVReport | LoadReport


class Placement(Protocol):
    """The interface of a placement policy. It is deterministic; only `observe` changes its state.

    Attributes:
        binds: when requests are bound to an instance. A policy that derives from this class binds late.
        uses_keys: keys of prompts that it reads. A policy that derives from this class reads none.
    """

    binds: Binds = "late"
    uses_keys: KeyUse = "never"

    def load(self, instance: InstanceView) -> Load:
        """Return the load of an instance; the table that `choose` is given is sorted by it."""
        ...

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Choose the best instance; return None if there is none now. Only late binding asks for room."""
        ...

    def observe(self, event: PlacementEvent) -> None:
        """Update the policy's state after an event. Called before the table is told that a view has
        changed.
        """
        ...
