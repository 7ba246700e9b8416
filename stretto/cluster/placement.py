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

`choose` gets a table of the instances. A "late" policy takes one of its `candidates`, which have room now;
the others take one of its `hosts`, which may be full. Both hold the least loaded instance of each speed, by
the policy's `load`, or suspect ones where none serves. To compare further instances, iterate over the table,
or `get` those that a prefix index names. Check them with the table's `has_room(instance.id, room)` ("late")
or `can_host`, where `room` is `table.room_for(request.all_tokens)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, Protocol, TypeAlias

from stretto.cluster.held_blocks import NO_LOADING, HeldBlocks, LoadingShares
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.messages import InstanceId, KVReport
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.record import record

Binds: TypeAlias = Literal["late", "early", "final"]
"""When a request is bound to an instance; see above."""

KeyUse: TypeAlias = Literal["never", "reported", "always"]
"""Which keys of prompts a policy wants. "reported" asks for token blocks, in the spaces of instances that
report what their caches hold. "always" asks for blocks of bytes too, where instances report nothing."""


@record
class Choice:
    """The instance that a placement policy has chosen for a request, and why.

    Attributes:
        held_tokens: tokens of the prompt that the instance is believed to hold.
        terms: predicted seconds by name, as far as the policy predicts any; they show why it was chosen.
        reason: reason for the choice in words, for traces.
    """

    instance: InstanceId
    held_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@record
class Joined:
    """Event for a placement policy: an instance can take work.

    Attributes:
        space: names the tokenizer and block length for which prompts have keys there, "" if they have none.
        cache_tokens: tokens that its prefix cache can hold; None if that is unknown.
        loading: what it costs there to load KV from host memory and from disk.
    """

    instance: InstanceId
    space: str
    cache_tokens: int | None = None
    loading: LoadingShares = NO_LOADING


@record
class Bound:
    """Event for a placement policy: a request was put into the queue of an
    instance, to wait there until it fits.

    The event `Unbound` follows when it leaves that queue.

    Attributes:
        at_s: time from which its wait counts. With that of `Dispatched`, it says how long the request has
            waited.
    """

    instance: InstanceId
    request: PlacementRequest
    at_s: float = 0.0


@record
class Unbound:
    """Event for a placement policy: a request has left the queue of an
    instance, to run there, to move to another instance or to be dropped.

    `request` is the same object as in `Bound`. If it is sent out to run, `Dispatched` follows before the next
    `choose`.
    """

    instance: InstanceId
    request: PlacementRequest


@record
class Dispatched:
    """Event for a placement policy: a request was sent to an instance, to run there.

    The event `Ended` follows when it has left.

    Attributes:
        at_s: present time, by which what has not been used for long is forgotten.
    """

    instance: InstanceId
    request: PlacementRequest
    at_s: float = 0.0


@record
class Ended:
    """Event for a placement policy: a request has left an instance that ran
    it, because it ended or was stopped.

    Attributes:
        request: the same object as in `Dispatched`.
        held_tokens: tokens of its prompt that were found in the instance's cache; None if that is unknown.
        was_refused: whether the instance has refused it, so that it has computed nothing of its prompt.
    """

    instance: InstanceId
    request: PlacementRequest
    held_tokens: int | None = None
    was_refused: bool = False


@record
class Left:
    """Event for a placement policy: an instance takes no more work, and
    what its cache holds no longer counts.
    """

    instance: InstanceId


@record
class Emptied:
    """Event for a placement policy: what an instance's cache holds is no
    longer known, for example because the cache was cleared. The instance goes on, with all its requests.
    """

    instance: InstanceId


PlacementEvent: TypeAlias = Joined | Bound | Unbound | Dispatched | Ended | Emptied | Left | KVReport


class Placement(Protocol):
    """The interface of a placement policy, which chooses the instance of each request of an LLM engine.

    It is deterministic; only `observe` changes its state.

    Attributes:
        binds: when a request is assigned to an instance: "late", once it fits there; "early", when it comes,
            so that it may wait there and move; "final", when it comes too, but it only moves when that
            instance no longer serves. A policy that derives from this class binds late.
        uses_keys: which keys of prompts it reads. A policy that derives from this class reads
            none.
        reported: what instances report that their caches hold; None if it does not follow that.
    """

    binds: Binds = "late"
    uses_keys: KeyUse = "never"
    reported: HeldBlocks | None = None

    def load(self, instance: InstanceView) -> Load:
        """Return how loaded an instance is, as a tuple of numbers (smaller is less loaded).

        The table of instances that `choose` gets is sorted by it, so that the least loaded one is found fast.
        """
        ...

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the best instance for a request, with predicted seconds and a reason; None if the request
        has to wait.

        A policy that assigns requests late may only name an instance on which the request fits now.
        """
        ...

    def admits(self, request: PlacementRequest, view: InstanceView, now_s: float) -> bool:
        """Return whether a request that waits at an instance, and fits there, may run beside those that run
        there now. By default, all may. Only policies that assign requests early are asked.

        A refused request is asked about again when another one has left the instance, and at its
        `yields_until_s`.
        """
        return True

    def observe(self, event: PlacementEvent) -> None:
        """Update what the placement policy remembers, after an event such
        as a request sent or an instance gone.

        Called before the instances are sorted by their new loads.
        """
        ...
