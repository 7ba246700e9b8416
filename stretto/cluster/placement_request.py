"""Requests as placement policies see them: the keys of prompts, their purpose, and predicted seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from stretto.cluster.block_hashes import BlockHash
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.model.record import record
from stretto.model.tasks import Objective


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
