"""A client's request while it is at the router: what it waits for, where it runs, and what was tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.record import record
from stretto.router.homes import ANYWHERE, Home
from stretto.router.loads import RunningAtWorker
from stretto.router.messages import RoutedRequest, Ticket, WorkerId
from stretto.router.offline_at_workers import is_offline_request
from stretto.sched.queries.request import StepRequest


@record
class Prefilled:
    """The prompt of a request that one worker has computed, so that another one can write the answer.

    Attributes:
        worker: where its KV is.
        held_tokens: tokens of the prompt that the worker was expected to hold before.
        num_cached: tokens of it that the worker has found in its cache; None if it has not told.
        seconds: time that it took.
    """

    worker: WorkerId
    held_tokens: int
    num_cached: int | None
    seconds: float


@dataclass(slots=True)
class Client:
    """A client's request while it is at the router.

    Attributes:
        since_s: time from which it waits for its turn.
        deadline_s: time by which its program should end; None if there is none.
        step: the request as queues and accounts know it; None while these need not know it.
        room_at: worker where its program has room; None for any.
        why: what it waits for, or has waited for; "" if it has not.
        bound: the choice of a worker in whose queue it waits, and the seconds that it delays the next one.
        chat_tokens: number of tokens of its chat as the router has counted them; 0 if it has not.
        num_attempts: number of times that it was sent to a worker.
        tried: workers that it is not sent to again.
        refused_by: workers that have refused it, as they may refuse whoever asks, with the status. It goes
            there again only if no other is left.
        again_at: workers of `tried` that failed before it came here, which get it when no other is left.
        home: worker that it has to go to, if there is one.
        has_waited: whether it has waited for its turn.
        sent_s: time at which it was first sent, of the attempts that run.
        whole: the request as it came, where `placed` describes a part of it; None where no worker takes
            parts.
        prefilled: the prompt, when a worker has computed it for another one to write the answer.
        stays_whole: whether it is not split any more.
        prefilled_s: seconds in which workers computed the prompt for others that have failed since.
        hedge: second attempt of the request, while that runs beside the first.
        hedge_of: the request of which it is the second attempt; None for others.
        has_head: whether the head of an answer has come that is kept until it is whole.
        has_begun: whether the first byte of an answer has come.
    """

    request: RoutedRequest
    placed: PlacementRequest
    arrived_s: float
    since_s: float
    deadline_s: float | None = None
    step: StepRequest | None = None
    room_at: WorkerId | None = None
    why: str = ""
    chat_tokens: int = 0
    num_attempts: int = 0
    tried: set[WorkerId] = field(default_factory=set)
    refused_by: dict[WorkerId, int] = field(default_factory=dict)
    again_at: set[WorkerId] = field(default_factory=set)
    home: Home = ANYWHERE
    running: RunningAtWorker | None = None
    bound: tuple[Choice, float] | None = None
    has_waited: bool = False
    sent_s: float = 0.0
    whole: PlacementRequest | None = None
    prefilled: Prefilled | None = None
    prefilled_s: float = 0.0
    stays_whole: bool = False
    hedge: Ticket | None = None
    hedge_of: Ticket | None = None
    has_head: bool = False
    has_begun: bool = False

    @property
    def expected_output(self) -> int:
        """Number of tokens that its answer is expected to have."""
        return (self.whole or self.placed).expected_output

    @property
    def waits_for(self) -> str | None:
        """The owner among whose requests it counts while it waits; None for one of an app of this process."""
        if self.request.step is not None:
            return None
        owner = self.request.owner
        return f"{owner} offline" if is_offline_request(self.placed) else owner

    def has_tried(self, workers: Collection[WorkerId]) -> bool:
        """Return whether none of some workers is left to be tried."""
        if self.tried.issuperset(workers) and not self.again_at.isdisjoint(workers):
            self.tried -= self.again_at
            self.again_at.clear()
        return self.tried.issuperset(workers)


def explained(client: Client, choice: Choice) -> Choice:
    """Return a choice with the reason that counted, where that is not the policy's."""
    reason = choice.reason
    if client.home.worker is not None:
        reason = "it keeps what the request names"
    elif client.home.is_sought:
        reason = "it may keep what the request names"
    elif client.prefilled is not None:
        prefilled = client.prefilled
        reason = f"goes on from the KV of its prompt at worker {prefilled.worker}; {reason}"
        return replace(choice, reason=reason, held_tokens=prefilled.held_tokens)
    elif choice.instance == client.room_at:
        reason = "its program has room there"
    return choice if reason == choice.reason else replace(choice, reason=reason)
