"""The open requests of a router: where each is, and how it moves: into a queue, to a worker, and away.

Whatever happens to a request, its load, its place in a queue, the room of its program and the account of its
client change together here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

from stretto.cluster.placement import Bound, Choice, Placement, Unbound
from stretto.cluster.room.call_means import EnteredRate
from stretto.costs.learned_work import LearnedWork
from stretto.model.profile import UNKNOWN_LLM
from stretto.model.replica import Engine
from stretto.router import believable
from stretto.router.announcing.announcer import Announcer
from stretto.router.announcing.records import ended_record, left_record, sent_record, waiting_record
from stretto.router.config import RouterConfig
from stretto.router.eligible import Eligible
from stretto.router.hedges import Hedges
from stretto.router.homes import Homes
from stretto.router.loads import WorkerLoads
from stretto.router.messages import (
    Refuse,
    RoutedRequest,
    Send,
    Ticket,
    WorkerId,
    WorkerUsage,
)
from stretto.router.offline_at_workers import USUAL_RULES, OfflineRules, is_offline_request
from stretto.router.queued_request import step_usage
from stretto.router.request_account import RequestAccount
from stretto.router.room_at_workers import RoomAtWorkers
from stretto.router.routed_client import Client, explained
from stretto.router.split_requests import part_of
from stretto.router.waiting import QueueName, Waiting, ticket_of
from stretto.router.waiting_limit import WaitingLimit
from stretto.router.workers import MOST_TOKENS, Worker, Workers
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.queries.request import QueueEntry, StepRequest

UNKNOWN = WorkerUsage()
TURN = "its turn"


def queue_engine(name: str, config: RouterConfig) -> Engine:
    """Return the declaration of an engine by which the requests that wait are priced and sorted."""
    return Engine(name, "llm", policy=config.order)


class OpenRequests:
    """The requests of a router, and what they take of its workers.

    Attributes:
        clients: requests at the router, in order of arrival.
        by_worker: requests that run, by their worker.
        limit: the plain requests that wait, of which there is a limit.
        tickets: numbers of requests to come.
        waiting_tokens: tokens of the requests that wait for their turn.
        turn_rate: rate at which such requests have had their turn.
        rest_ends_s: time at which the first rest of a worker ends that a request waits for.
        num_offline_waiting: number of offline requests that wait.
        offline_due_s: time at which an offline request that waits may begin, if nothing else happens.
        yields_s: seconds for which a request gives way to those of a better class.
        announcer: what is told of the requests to routers before the same workers; None without any.
    """

    def __init__(
        self,
        config: RouterConfig,
        placement: Placement,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        learned: LearnedWork | None = None,
        offline: OfflineRules = USUAL_RULES,
    ) -> None:
        self.config = config
        self.placement = placement
        self.workers = Workers(config.max_failures)
        self.loads = WorkerLoads(placement, offline)
        self.eligible = Eligible(self.workers)
        self.homes = Homes(self.workers, config.max_stored_ids)
        self.hedges = Hedges(config.hedge_share)
        profile = config.worker[0].profile if config.worker else UNKNOWN_LLM
        engine = queue_engine("router", config)
        self.yields_s = engine.age_limit_s

        def is_asked() -> bool:
            return bool(self.waiting.queues) or self.announcer is not None

        self.account = RequestAccount(engine, profile, tenant_weights, learned, is_asked)
        self.waiting = Waiting(engine, profile, self.account.machine, config.max_wait_s)
        self.room = RoomAtWorkers(holds=config.holds_programs)
        self.limit = WaitingLimit(config.max_waiting, tenant_weights)
        self.clients: dict[Ticket, Client] = {}
        self.by_worker: dict[WorkerId, dict[Ticket, None]] = {}
        self.turn_rate = EnteredRate()
        self.waiting_tokens = 0
        self.rest_ends_s = math.inf
        self.offline_due_s = math.inf
        self.num_offline_waiting = 0
        self.tickets = count()
        self.announcer: Announcer | None = None

    def wait(self, ticket: Ticket, name: QueueName, held_tokens: int | None = None) -> None:
        """Put a request into a queue, of whose prompt so many tokens are held where it waits; None stands for
        as many as caches usually hold of prompts like it.
        """
        client = self.clients[ticket]
        client.why = client.why or TURN
        entry = QueueEntry(self.step_of(ticket), client.arrived_s, client.expected_output)
        self.waiting_tokens += client.placed.all_tokens
        self.num_offline_waiting += is_offline_request(client.placed)
        client.has_waited = True
        self.limit.add(ticket, client.waits_for)
        self.account.catch_up()  # it is asked from now on
        num_tokens = max(1, client.placed.num_tokens)
        if held_tokens is not None:
            entry.fresh = max(0, num_tokens - held_tokens) / num_tokens
        elif entry.request.asked is not None:
            entry.fresh = entry.request.asked.fresh
        self.waiting.add(name, ticket, entry, client.since_s)
        if self.announcer is not None and not is_offline_request(client.placed):
            self.announcer.waiting.add(ticket, name, client.request.owner)

    def takers(self, name: QueueName, now_s: float) -> Sequence[str]:
        """Return the addresses of the workers that take now what waits in a queue; "" stands for all."""
        if isinstance(name, str):
            some = ticket_of(next(iter(self.waiting.queues[name])))
            return self.eligible.takers(self.clients[some], now_s)
        worker = self.workers.get(name)
        return () if worker is None else (worker.server,)

    def is_left_out(self, ticket: Ticket, request: RoutedRequest) -> bool:
        """Return whether the request of a program need not be made known to the account."""
        return not (self.waiting.queues or self.room.held) and self.account.is_left_out(ticket, request)

    def step_of(self, ticket: Ticket) -> StepRequest:
        """Return a request as queues and accounts know it."""
        return self.account.step_of(ticket, self.clients[ticket])

    def send(self, ticket: Ticket, choice: Choice, now_s: float) -> Send:
        """Count a request as running at the worker that was chosen for it, and have it sent."""
        client = self.clients[ticket]
        self.limit.discard(ticket)
        worker = self.workers.get(choice.instance)
        model = client.request.model
        is_listed = worker is not None and model in worker.models
        client.running = self.loads.start(ticket, client.placed, choice, now_s, model if is_listed else "")
        self.by_worker.setdefault(choice.instance, {})[ticket] = None
        client.num_attempts += 1
        client.sent_s, client.has_head = now_s, False
        if (part := part_of(worker, client)) == "whole" and self.hedges.are_on:
            self.hedges.sent(ticket, client.request, client.num_attempts, now_s)
        client.tried.add(choice.instance)
        client.again_at.discard(choice.instance)
        if part != "prefill":
            self.room.sent(ticket, choice.instance)
        if self.announcer is not None and worker is not None:
            room = self.room.place_of(ticket)
            self.announcer.sent(sent_record(ticket, client.request, client.running, worker.server, room))
        self.account.sent(client, now_s)
        if client.has_waited:
            self.turn_rate.note(client.placed.all_tokens, now_s)
        choice = explained(client, choice)
        served_s = client.prefilled_s + (0.0 if client.prefilled is None else client.prefilled.seconds)
        waited_s = max(0.0, now_s - client.arrived_s - served_s) if client.why else 0.0
        held_s = client.since_s - client.arrived_s  # since then it has waited for its turn
        return Send(ticket, choice.instance, choice, waited_s, held_s, client.why, client.deadline_s, part)

    def announce_waiting(self, ticket: Ticket) -> None:
        """Tell other routers of a request that waits, if the account of room knows it."""
        if self.announcer is not None and (room := self.room.place_of(ticket)) != "unknown":
            client = self.clients[ticket]
            self.announcer.waits(waiting_record(ticket, client.request, client.placed, room))

    def bind(self, ticket: Ticket, choice: Choice) -> None:
        """Put a request into the queue of the worker that was chosen for it."""
        client = self.clients[ticket]
        view = self.loads.table.get(choice.instance)
        seconds = 0.0 if view is None else client.placed.share_s(view, choice.held_tokens)
        client.bound = choice, seconds
        self.wait(ticket, choice.instance, choice.held_tokens)
        self.placement.observe(Bound(choice.instance, client.placed, client.arrived_s))
        self.loads.wait(choice.instance, client.placed, seconds, 1)

    def dequeue(self, ticket: Ticket, *, is_its_turn: bool = False) -> None:
        """Take a request out of its queue; `is_its_turn` is whether it is sent now."""
        client = self.clients[ticket]
        self.waiting_tokens -= client.placed.all_tokens
        self.num_offline_waiting -= is_offline_request(client.placed)
        if is_its_turn:
            self.waiting.take(ticket)
        else:
            self.waiting.remove(ticket)
        if self.announcer is not None:
            self.announcer.waiting.remove(ticket)
        if client.bound is not None:
            (choice, seconds), client.bound = client.bound, None
            self.placement.observe(Unbound(choice.instance, client.placed))
            self.loads.wait(choice.instance, client.placed, seconds, -1)

    def note_rest(self, client: Client, now_s: float) -> None:
        """Note when the first rest of a worker for the key of a request that waits ends."""
        if key := client.request.client_key:
            ends_s = (worker.key_rests.until_s(key) for worker in self.workers)
            self.rest_ends_s = min(self.rest_ends_s, *(end_s for end_s in ends_s if end_s > now_s), math.inf)

    def note_offline(self, now_s: float) -> None:
        """Note when an offline request that waits may begin."""
        has_some = self.num_offline_waiting > 0
        self.offline_due_s = self.loads.offline.next_s(now_s) if has_some else math.inf

    def refuse(
        self, ticket: Ticket, status: int, message: str, retry_after_s: float | None, now_s: float
    ) -> Refuse:
        """End a request that no worker answers."""
        if ticket in self.waiting:
            self.dequeue(ticket)
        self.forget(ticket, now_s)
        return Refuse(ticket, status, message, retry_after_s)

    def release(
        self,
        ticket: Ticket,
        usage: WorkerUsage,
        now_s: float,
        status: int | None = None,
        *,
        was_paused: bool = False,
    ) -> tuple[Worker | None, WorkerUsage]:
        """Take a request off its worker's load, or out of its queue; return the worker if it is not gone, and
        what of the counts is believable.

        `status` is that of its whole answer; None if it was not answered to its end.
        """
        client = self.clients[ticket]
        if ticket in self.waiting:
            self.dequeue(ticket)
        if (running := client.running) is None:
            return None, UNKNOWN
        client.running = None
        del self.by_worker[running.worker][ticket]
        was_refused = status is not None and status >= 400
        worker = self.workers.get(running.worker)
        most_tokens = MOST_TOKENS if worker is None else worker.most_tokens(client.request.model)
        usage = believable.usage_of(usage, client.request, most_tokens)
        is_timed = status is not None and not (was_refused or was_paused)
        self.loads.end(running, usage, now_s, is_timed=is_timed, was_refused=was_refused)
        if self.announcer is not None:
            self.announcer.ended(ended_record(running, usage, is_timed=is_timed, was_refused=was_refused))
        return worker, usage

    def forget(
        self,
        ticket: Ticket,
        now_s: float,
        usage: WorkerUsage = UNKNOWN,
        *,
        was_refused: bool = False,
    ) -> None:
        """Forget a request that has left the router, with the counts of its answer if there was one."""
        client = self.clients.pop(ticket)
        self.limit.discard(ticket)
        if client.hedge_of is not None and (first := self.clients.get(client.hedge_of)) is not None:
            first.hedge = None
        counts = step_usage(usage)
        self.account.ended(client, usage, now_s)
        if self.announcer is not None and self.room.place_of(ticket) != "unknown":
            self.announcer.left(left_record(ticket, counts, was_refused=was_refused))
        self.room.ended(ticket, client.request, counts, now_s, was_refused=was_refused)

    def at(self, worker: WorkerId) -> list[Ticket]:
        """Return the requests that run at a worker."""
        return list(self.by_worker.get(worker, ()))

    def check_invariants(self) -> None:
        """Check that loads, queues and requests agree."""
        for part in (self.loads, self.workers, self.waiting, self.room, self.homes, self.account.now):
            part.check_invariants()
        for ticket, client in self.clients.items():
            is_running = client.running is not None
            assert is_running or client.hedge_of is None
            if client.hedge is not None:
                assert is_running
                assert self.clients[client.hedge].hedge_of == ticket
            assert is_running + (ticket in self.waiting) + (ticket in self.room) == 1
            assert client.bound is None or ticket in self.waiting
        for worker, tickets in self.by_worker.items():
            for ticket in tickets:
                running = self.clients[ticket].running
                assert running is not None
                assert running.worker == worker
        num_running = sum(client.running is not None for client in self.clients.values())
        assert sum(map(len, self.by_worker.values())) == num_running
        waiting = self.waiting.names()
        plain = [one for one, client in self.clients.items() if client.request.step is None]
        assert sorted(self.limit) == [one for one in plain if self.clients[one].running is None]
        assert self.waiting_tokens == sum(self.clients[one].placed.all_tokens for one in waiting)
        assert len(self.waiting) + len(self.room) == sum(one.running is None for one in self.clients.values())
        num_offline = sum(self.clients[one].placed.purpose.preference == "offline" for one in waiting)
        assert self.num_offline_waiting == num_offline
