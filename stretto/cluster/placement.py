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

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol, TypeAlias

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.held_blocks import HeldBlocks
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.load_order import Load
from stretto.cluster.loading import NO_LOADING, LoadingShares
from stretto.cluster.messages import InstanceId, KVReport
from stretto.model.record import record
from stretto.model.tasks import Objective

Binds: TypeAlias = Literal["late", "early", "final"]
"""When a request is bound to an instance; see above."""

KeyUse: TypeAlias = Literal["never", "reported", "always"]
"""Which keys of prompts a policy wants. "reported" asks for token blocks, in the spaces of instances that
report what their caches hold. "always" asks for blocks of bytes too, where instances report nothing."""


@record
class PromptKey:
    """The key of a prompt, by which it is looked up in caches: the chained hashes of its full blocks, each of
    `block_tokens` tokens.

    Policies compare it with the blocks that instances hold in their caches.
    """

    blocks: Sequence[BlockHash]
    block_tokens: int


@record
class Purpose:
    """The purpose that a request is scheduled for, as deduced from what the application waits for.

    Attributes:
        preference: class of the request. "latency" wants an instance with few tokens in flight; "throughput"
            wants as many as fit.
        job: name of what its caller waits for, which all requests that produce it share; "" if nobody waits,
            and outside of sessions.
        group: name of its task group, which matters only all together; "" outside of any.
        yields_until_s: time until which it may wait because requests of a stricter class run.
    """

    preference: Objective = "throughput"
    job: str = ""
    group: str = ""
    yields_until_s: float = math.inf


@record
class PlacementRequest:
    """A request as a placement policy sees it.

    Attributes:
        num_tokens: number of tokens of the prompt.
        expected_output: number of tokens that it is expected to generate.
        keys: hashes of the prompt's blocks, by name of the space that instances
            have.
        hints: number of tokens of the prompt's beginning that instances are known to hold without a report,
            for example where an earlier part of the same query ran.
        computing: number of tokens of the prompt's beginning that instances are computing right now.
        tenant: owner of the query that the request belongs to.
        slack_s: seconds that it may still wait without making its query miss a deadline; infinite without
            one.
        bound_to: instance in whose own queue it waits already, when the policy is asked about it again.
        ahead_s: predicted seconds of the requests that wait before it in that queue.
        purpose: class, job and task group of the request.
        shared_tokens: number of tokens of the prompt's beginning, by instance, that requests which run or
            wait there have too, so that they take no more of its budget. Known for requests of jobs alone.
    """

    num_tokens: int
    expected_output: int = 0
    keys: Mapping[str, PromptKey] = field(default_factory=dict)
    hints: Mapping[InstanceId, int] = field(default_factory=dict)
    computing: Mapping[InstanceId, int] = field(default_factory=dict)
    tenant: str = ""
    slack_s: float = math.inf
    bound_to: InstanceId | None = None
    ahead_s: float = 0.0
    purpose: Purpose = Purpose()
    shared_tokens: Mapping[InstanceId, int] = field(default_factory=dict)

    @property
    def all_tokens(self) -> int:
        """Number of tokens of the prompt and of the expected output together."""
        return self.num_tokens + self.expected_output

    def new_tokens(self, view: InstanceView) -> int:
        """Return how many tokens the request adds to those in flight at an instance."""
        if not self.shared_tokens:
            return self.num_tokens + self.expected_output
        return self.num_tokens + self.expected_output - self.shared_tokens.get(view.id, 0)

    def start_s(self, view: InstanceView, now_s: float) -> float:
        """Return the predicted seconds until the prefill of this request begins at an instance.

        The request waits for the rest of the prefills there, for the requests that wait before it, and until
        its tokens fit. Requests of a job come together: where all that waits fits, it goes out at once, and
        only its prefills are waited for.
        """
        goes_out = bool(self.purpose.job) and self._fits_behind(view)
        if goes_out and view.id != self.bound_to:
            return view.slowness * _prefills_s(view, now_s)
        waiting_s = self.ahead_s if view.id == self.bound_to else view.waiting_s
        start_s = view.prefill_left_s(now_s) + waiting_s if view.prefill_s else waiting_s
        if (
            view.num_running >= view.num_slots
            or 0 < view.running_tokens > view.capacity_tokens - self.new_tokens(view)
            or (waiting_s and not goes_out)
        ):
            start_s += view.turn_s
        return view.slowness * start_s

    def share_s(self, view: InstanceView, held_tokens: int) -> float:
        """Return the predicted seconds by which the request, while it waits at an instance that holds so many
        tokens of its prompt, delays the next one there.

        They are the time of its prefill, and its share of the decode steps of a full instance.
        """
        share = min(1.0, max(1 / view.num_slots, self.all_tokens / view.capacity_tokens))
        prefill_s = view.profile.batch_s(max(0, self.num_tokens - held_tokens))
        return prefill_s + share * view.profile.decode_s(view.num_slots) * self.expected_output

    def _fits_behind(self, view: InstanceView) -> bool:
        """Return whether this request and all that wait at an instance fit beside those that run there."""
        num_tokens = view.running_tokens + view.waiting_tokens + self.new_tokens(view)
        num_requests = view.num_running + view.num_waiting
        return num_tokens <= view.capacity_tokens and num_requests < view.num_slots


def _prefills_s(view: InstanceView, now_s: float) -> float:
    """Return the predicted seconds of all prefills that run or wait at an instance.

    They are computed in common steps, so that what a step takes anyway counts once.
    """
    prefills_s = view.waiting_prefill_s + (view.prefill_left_s(now_s) if view.prefill_s else 0.0)
    num_prefills = view.num_waiting + view.num_running - view.num_decoding
    return max(0.0, prefills_s - max(0, num_prefills - 1) * view.profile.base_s)


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
