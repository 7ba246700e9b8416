"""The state machine of the router, which decides which worker gets a request, and when.

Methods are events; they take the time and return actions. The driver calls `expire` when `next_due_s` has
come. Rules:

- A request goes to the worker that the placement policy chooses among those that list its model; if none
  lists it, among all: servers may know names that they do not list, and refuse the others themselves.
- A request whose program has no room in KV memory is held, before it waits for its turn
  (`room_at_workers.py`). What has room somewhere goes there, as long as that worker takes it.
- What waits is served in the order of `sched/orders/programs_first.py`, or another of that folder, whatever
  its model is.
- A policy that binds "late" is asked for a worker with room; without one the request waits with others for
  its model.
- A policy that binds "early" or "final" may choose a full worker; the request then waits in that worker's
  queue. It is placed again when that worker leaves or becomes suspect, and (early) when another worker has
  room and nothing waits for that one.
- A worker that has answered with status 429 rests for as long as it says, and gets nothing meanwhile; if the
  client had brought the key, nothing with that key. A request that comes while all rest that could take it is
  refused with 429 and the soonest end of a rest.
- A worker that refuses the router's own key (status 401 or 403) is left as after a failure. No attempt is
  counted, and its answer, which may show the key, is not passed on.
- At most `max_waiting` requests wait or are held; others are refused at once with 429. Each waits at most
  `max_wait_s`, after it was held for at most `max_hold_s`. Requests of an app's query in this process do not
  count: their door has limits of its own. They are refused after `max_wait_s` if no worker serves then.
- An attempt that fails before its first byte is repeated at a worker that has not been tried, until
  `max_attempts`. Where all have been tried, a lost connection is followed by another try at any of them, and
  an answer with status 5xx is passed on.
- However a request ends, its load is taken off its worker in `_release`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.loading import loading_shares
from stretto.cluster.placement import Bound, Choice, Placement, PlacementRequest, Unbound
from stretto.cluster.prompt_keys import BYTES
from stretto.model.deployment import Engine
from stretto.model.errors import ConfigError
from stretto.model.profile import UNKNOWN_LLM
from stretto.model.tasks import Usage
from stretto.router import believable
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.router.held_blocks import HeldByWorkers
from stretto.router.loads import RunningAtWorker, WorkerLoads
from stretto.router.messages import (
    Check,
    Cut,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Stop,
    Ticket,
    WaitingPicture,
    WorkerGone,
    WorkerId,
    WorkerUsage,
)
from stretto.router.queued_request import step_of, step_usage
from stretto.router.room_at_workers import RoomAtWorkers
from stretto.router.waiting import QueueName, Waiting
from stretto.router.workers import MOST_TOKENS, Worker, Workers
from stretto.sched.orders.order import prices_s
from stretto.sched.orders.program_account import NO_WEIGHTS, ProgramAccount
from stretto.sched.queries.request import QueueEntry, StepRequest

_MAX_ASKED = 8
"""Waiting requests about which the policy is asked again after one event."""
_UNKNOWN = WorkerUsage()
_PAUSE = "the workers ask for a pause (status 429)"
_TURN = "its turn"


@dataclass(slots=True)
class _Client:
    """A client's request while it is at the router.

    Attributes:
        since_s: time from which it waits for its turn.
        step: the request as queues and accounts know it; None while these need not know it.
        room_at: worker where its program has room; None for any.
        why: what it waits for, or has waited for; "" if it has not.
        bound: the choice of a worker in whose queue it waits, and the seconds that it delays the next one.
        num_attempts: number of times that it was sent to a worker.
        tried: workers that it is not sent to again.
        has_begun: whether the first byte of an answer has come.
    """

    request: RoutedRequest
    placed: PlacementRequest
    arrived_s: float
    since_s: float
    step: StepRequest | None = None
    room_at: WorkerId | None = None
    why: str = ""
    num_attempts: int = 0
    tried: set[WorkerId] = field(default_factory=set)
    running: RunningAtWorker | None = None
    bound: tuple[Choice, float] | None = None
    has_begun: bool = False


class RouterState:
    """The state machine of a router: it places requests at workers, repeats them after failures, and keeps
    the states of the workers.

    Args:
        placement: policy that chooses the worker of a request.
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
    """

    def __init__(
        self,
        config: RouterConfig,
        placement: Placement,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
    ) -> None:
        self._config = config
        self._placement = placement
        self._workers = Workers(config.max_failures)
        self._loads = WorkerLoads(placement)
        self._caches = HeldByWorkers()
        profile = config.worker[0].profile if config.worker else UNKNOWN_LLM
        engine = Engine("router", "llm", policy=config.order)
        self._account = ProgramAccount(*prices_s(engine, profile), tenant_weights)
        self._waiting = Waiting(engine, profile, self._account, config.max_wait_s)
        self._room = RoomAtWorkers(holds=config.holds_programs)
        self._clients: dict[Ticket, _Client] = {}
        self._by_worker: dict[WorkerId, dict[Ticket, None]] = {}
        self._rest_ends_s = math.inf
        self._tickets = count()

    # --- requests

    def arrive(self, request: RoutedRequest, now_s: float) -> tuple[Ticket, list[RouterAction]]:
        """Take a request of a client; return its number, and what to do."""
        ticket = next(self._tickets)
        placed = PlacementRequest(
            num_tokens=len(request.ids) or request.num_tokens,
            expected_output=self._loads.expected_output(request.model, request.max_tokens),
            keys={} if request.key is None else {BYTES.name: request.key},
            hints=self._caches.held(request.ids, self._reporting(request)) if request.ids else {},
        )
        if request.ids or request.text:  # long, and looked up above
            request = replace(request, ids=(), text="")
        self._clients[ticket] = client = _Client(request, placed, now_s, now_s)
        if request.program.name:
            self._step_of(ticket)
        entered = self._room.arrive(ticket, request, placed.expected_output, now_s)
        actions: list[RouterAction] = []
        if entered is not None:
            client.room_at = entered.instance
            actions = self._queue_or_place(ticket, now_s)
        actions += self._release_held(now_s)
        if ticket in self._room:
            client.why = self._room.reason(ticket)
            self._note_rest(client, now_s)
        if client.running is None:
            actions += self._check_limits(ticket, now_s)
        return ticket, actions

    def _queue_or_place(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Send a request that has come, or let it wait: behind others like it, if there are any."""
        client = self._clients[ticket]
        name = self._queue_name(client, now_s) if self._waiting else ""
        if not self._waiting.has(name):
            return self._place(ticket, now_s)
        self._wait(ticket, name)
        self._note_rest(client, now_s)
        return []

    def _check_limits(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Refuse a request that has come and has to wait, if no worker takes it now, or too many wait."""
        if self._clients[ticket].request.step is not None:
            return []
        if (rest_s := self._rest_s(self._clients[ticket], now_s)) is not None:
            return [self._refuse(ticket, 429, _PAUSE, rest_s, now_s)]
        if self._waiting.num_plain + self._room.num_plain > self._config.max_waiting:
            message = f"{self._config.max_waiting} requests wait already"
            wait_s = self._room.wait_s(ticket, now_s) if ticket in self._room else 1.0
            return [self._refuse(ticket, 429, message, wait_s, now_s)]
        return []

    def began(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle the head of an answer that is passed on as it comes: the request is not repeated any more,
        and a worker that had failed is trusted again.
        """
        if (client := self._clients.get(ticket)) is None or client.running is None:
            return []
        client.has_begun = True
        self._loads.first_byte(client.running, now_s)
        worker = self._workers.get(client.running.worker)
        if worker is None or not worker.is_doubted or status >= 500:
            return []
        self._workers.answered(worker, status, now_s)
        return self._after(worker, now_s)

    def answered(
        self,
        ticket: Ticket,
        status: int,
        usage: WorkerUsage,
        now_s: float,
        *,
        was_paused: bool = False,
        retry_after_s: float | None = None,
    ) -> list[RouterAction]:
        """Handle a complete answer with a status that was passed on to the client.

        Args:
            was_paused: whether the worker had to wait for the client, so that its time tells nothing of it.
            retry_after_s: seconds that an answer with status 429 asks to wait.
        """
        client = self._clients[ticket]
        client_key = client.request.client_key
        worker, usage = self._release(ticket, usage, now_s, status, was_paused=was_paused)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
        if status < 400:
            self._forget(ticket, now_s, usage)
        else:
            self._forget(ticket, now_s, was_refused=True)
        actions = self._limit_key(client_key, worker, now_s) if status == 429 else []
        return actions + self._after(worker, now_s)

    def refused(
        self, ticket: Ticket, status: int, now_s: float, *, retry_after_s: float | None = None
    ) -> list[RouterAction]:
        """Handle an answer with a passing failure (status 429 or 5xx), or about the router's own key, that
        was not passed on.

        `retry_after_s` is how long an answer with status 429 asks to wait.
        """
        if self.is_about_own_key(ticket, status):
            return self._refused_key(ticket, status, now_s)
        client_key = self._clients[ticket].request.client_key
        worker, _ = self._release(ticket, _UNKNOWN, now_s, status)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
            self._refresh(worker)
        reason = f"the worker answered with status {status}"
        actions = self._again(ticket, reason, now_s, may_return=False)
        if status == 429:
            actions += self._limit_key(client_key, worker, now_s)
        return actions + self._after(worker, now_s)

    def is_about_own_key(self, ticket: Ticket, status: int) -> bool:
        """Return whether the status with which a request's worker answers is about the router's own key."""
        if status not in (401, 403) or (client := self._clients.get(ticket)) is None:
            return False
        worker = None if client.running is None else self._workers.get(client.running.worker)
        return worker is not None and not client.request.client_key and worker.config.has_key

    def _refused_key(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle that a worker has refused the router's own key, and so has not begun the request."""
        self._clients[ticket].num_attempts -= 1
        worker, _ = self._release(ticket, _UNKNOWN, now_s, status)
        assert worker is not None, "it was found by `is_about_own_key`"
        self._workers.refused_key(worker, status, now_s)
        self._refresh(worker)
        reason = f"no worker is left that accepts the router's key (status {status})"
        actions = self._again(ticket, reason, now_s, may_return=False, was_sent=False)
        actions += self._after(worker, now_s)
        return [*actions, Check(worker.id, now_s)] if worker.state == "serving" else actions

    def failed(
        self,
        ticket: Ticket,
        reason: str,
        now_s: float,
        *,
        was_sent: bool = True,
        may_go_on: bool = False,
    ) -> list[RouterAction]:
        """Handle an attempt whose connection failed or which took too long, before or after its first
        byte.

        Args:
            was_sent: whether the worker may have got the request.
            may_go_on: whether an answer that has begun can go on at another worker.
        """
        client = self._clients[ticket]
        client.num_attempts -= not was_sent
        worker, _ = self._release(ticket, _UNKNOWN, now_s)
        if worker is not None:
            self._workers.suspect(worker, reason, now_s)
            self._refresh(worker)
        if client.has_begun and not (may_go_on and client.num_attempts < self._config.max_attempts):
            self._forget(ticket, now_s)
            return [Cut(ticket, reason), *self._after(worker, now_s)]
        client.has_begun = False
        return self._again(ticket, reason, now_s, was_sent=was_sent) + self._after(worker, now_s)

    def left(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Handle that the client is gone, wherever its request is; nothing happens if it has ended."""
        if ticket not in self._clients:
            return []
        worker, _ = self._release(ticket, _UNKNOWN, now_s)
        self._forget(ticket, now_s)
        return self._after(worker, now_s)

    def end_program(self, tenant: str, program: str, now_s: float) -> list[RouterAction]:
        """Handle that a program of a tenant makes no more requests, where somebody says so."""
        self._account.program_ended(program, tenant)
        self._room.finished(tenant, program)
        return self._release_held(now_s)

    def expire(self, now_s: float) -> list[RouterAction]:
        """Refuse requests that have waited too long, and send those for whose key a worker rests no more."""
        actions: list[RouterAction] = []
        if now_s >= self._rest_ends_s:
            actions += self._end_key_rests(now_s)
        for ticket in self._waiting.overdue(now_s):
            if self._may_wait_on(ticket):
                self._waiting.wait_on(ticket, now_s)
                continue
            waited = f"no worker could take the request in {self._config.max_wait_s:g} s"
            actions.append(self._refuse(ticket, 503, waited, None, now_s))
        limit_s = self._config.max_hold_s
        for ticket in self._room.overdue(limit_s, now_s):
            held = f"there was no room in KV memory for {limit_s:g} s: {self._room.reason(ticket)}"
            wait_s = self._room.wait_s(ticket, now_s)
            actions.append(self._refuse(ticket, 503, held, wait_s, now_s))
        return actions + self._release_held(now_s)

    def _may_wait_on(self, ticket: Ticket) -> bool:
        """Return whether a request that has waited long goes on waiting: of an app, while a worker serves."""
        client = self._clients[ticket]
        is_served = any(worker.state == "serving" for worker in self._able(client)[0])
        return client.request.step is not None and is_served

    @property
    def next_due_s(self) -> float | None:
        """Time at which `expire` is to be called; None while nothing waits."""
        dues = (self._waiting.next_due_s, self._room.due_s(self._config.max_hold_s))
        due_s = min((one for one in dues if one is not None), default=None)
        return None if due_s is None else min(due_s, self._rest_ends_s)

    # --- workers

    def add_worker(self, config: WorkerConfig) -> Worker:
        """Add a worker, which gets requests after its first passed health check.

        Raises:
            ConfigError: there is a worker with this address.
        """
        worker = self._workers.add(config)
        self._caches.set_loading(worker.id, loading_shares(config.profile))
        return worker

    def check_passed(
        self, worker: WorkerId, models: Mapping[str, object], kv_tokens: int | None, now_s: float
    ) -> list[RouterAction]:
        """Handle a health check that a worker passed, with the models that it lists, by name, which are not
        changed any more, and the size of its KV memory if it tells.
        """
        if (found := self._workers.get(worker)) is None or found.state == "draining":
            return []
        found.models = models
        found.kv_tokens = found.config.kv_tokens or kv_tokens
        self._workers.passed(found, now_s)
        self._loads.join(found)
        self._room.join(found)
        actions = [self._next_check(found, now_s), *self._fill(worker, now_s)]
        return actions + self._release_held(now_s)

    def check_failed(
        self, worker: WorkerId, reason: str, now_s: float, *, is_gone: bool = False
    ) -> list[RouterAction]:
        """Handle a failed health check. After several in a row, requests that the worker has not begun to
        answer are sent elsewhere.

        `is_gone` is whether nothing listens at its address: the process has ended, and with it what its cache
        held.
        """
        if (found := self._workers.get(worker)) is None:
            return []
        if is_gone:
            self._loads.forget(found)
            self._room.leave(worker)
        is_dead = self._workers.check_failed(found, reason, now_s)
        self._refresh(found)
        next_s = min(found.probe_s, now_s + self._config.health_interval_s)
        actions = [Check(worker, next_s), *self._unbind(worker, now_s)]
        if is_dead:
            actions += self._move_unanswered(worker, reason, now_s)
        return actions + self._release_held(now_s)

    def reported(self, worker: WorkerId, events: Sequence[KVEvent]) -> None:
        """Handle what a worker reports of its prefix cache. When it was cleared, what the worker was believed
        to hold is forgotten too.
        """
        if (found := self._workers.get(worker)) is not None and self._caches.apply(worker, events):
            self._loads.forget(found)

    def forget_reports(self, worker: WorkerId) -> None:
        """Handle that a worker reports nothing of its prefix cache any more."""
        self._caches.forget(worker)

    def drain(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Give a worker no more requests; it is gone when it has answered those that it has.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        self._leave(found, now_s)
        actions = [*self._unbind(worker, now_s), *self._fill(worker, now_s), *self._retire(found, now_s)]
        return actions + self._release_held(now_s)

    def remove(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Remove a worker at once: requests that it has not begun to answer are sent elsewhere, answers that
        have begun are cut.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        self._leave(found, now_s)
        actions = self._unbind(worker, now_s)
        actions += self._move_unanswered(worker, "the worker was removed", now_s)
        for ticket in self._at(worker):
            self._release(ticket, _UNKNOWN, now_s)
            self._forget(ticket, now_s)
            actions.append(Cut(ticket, "the worker was removed"))
        actions += [*self._release_held(now_s), *self._fill(worker, now_s)]
        return actions + self._retire(found, now_s)

    def _leave(self, worker: Worker, now_s: float) -> None:
        """Give a worker no more requests."""
        self._workers.drain(worker, now_s)
        self._loads.leave(worker.id)
        self._room.leave(worker.id)

    def workers(self) -> list[Worker]:
        """Return the workers that are not gone."""
        return list(self._workers)

    def worker(self, worker: WorkerId) -> Worker | None:
        """Return a worker; None if it is gone or never was."""
        return self._workers.get(worker)

    def num_running(self, worker: WorkerId) -> int:
        """Return how many requests run at a worker."""
        return len(self._at(worker))

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in the router, for room or for their turn."""
        return len(self._waiting) + len(self._room)

    def claimed(self, worker: WorkerId, now_s: float) -> tuple[int, int | None]:
        """Return how many tokens programs take of a worker's KV memory, and how many it is believed to hold;
        None if that is not known.
        """
        return self._room.claimed(worker, now_s)

    def waiting(self, limit: int) -> list[WaitingPicture]:
        """Return what is shown of the requests that wait, at most `limit`: those that are held first."""
        found: list[WaitingPicture] = []
        for ticket in islice(chain(self._room, self._waiting.queues()), limit):
            client = self._clients[ticket]
            is_held = ticket in self._room
            why = self._room.reason(ticket) if is_held else _TURN
            since_s = client.arrived_s if is_held else client.since_s
            found.append(
                WaitingPicture(ticket, client.request.model, client.request.program.name, since_s, why)
            )
        return found

    @property
    def num_clients(self) -> int:
        """Number of requests at the router, running or waiting."""
        return len(self._clients)

    @property
    def uses_keys(self) -> bool:
        """Whether keys of prompts are read, by the placement policy or because memory is short."""
        return self._loads.uses_keys or self._room.wants_keys

    @property
    def has_reports(self) -> bool:
        """Whether the policy reads keys and a worker has reported what its prefix cache holds."""
        return self._loads.uses_keys and bool(self._caches)

    def check_invariants(self) -> None:
        """Check that loads, queues and requests agree. Tests call it after every event."""
        self._loads.check_invariants()
        self._caches.check_invariants()
        self._workers.check_invariants()
        self._waiting.check_invariants()
        self._room.check_invariants()
        self._account.check_invariants()
        for ticket, client in self._clients.items():
            is_running = client.running is not None
            assert is_running + (ticket in self._waiting) + (ticket in self._room) == 1
            assert client.bound is None or ticket in self._waiting
        assert self.num_waiting == sum(one.running is None for one in self._clients.values())

    # --- placing

    def _place(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Send a request to a worker, or let it wait."""
        client = self._clients[ticket]
        choice = self._loads.choose(client.placed, now_s, self._among(client, now_s))
        if choice is None:
            self._wait(ticket, self._queue_name(client, now_s))
            self._note_rest(client, now_s)
            return []
        return self._take(ticket, choice, now_s)

    def _wait(self, ticket: Ticket, name: QueueName, held_tokens: int = 0) -> None:
        """Put a request into a queue, of whose prompt so many tokens are held where it waits."""
        client = self._clients[ticket]
        client.why = client.why or _TURN
        entry = QueueEntry(self._step_of(ticket), client.arrived_s, client.placed.expected_output)
        num_tokens = max(1, client.placed.num_tokens)
        entry.fresh = max(0, num_tokens - held_tokens) / num_tokens
        self._waiting.add(name, ticket, entry, client.since_s)

    def _step_of(self, ticket: Ticket) -> StepRequest:
        """Return a request as queues and accounts know it. Those that belong to no program, and need not
        wait, are not made known.
        """
        client = self._clients[ticket]
        if client.step is None:
            num_tokens, since_s = client.placed.num_tokens, client.arrived_s
            client.step = step_of(ticket, client.request, num_tokens, since_s)
            self._account.arrived(client.step, client.placed.expected_output, since_s)
        return client.step

    def _release_held(self, now_s: float) -> list[RouterAction]:
        """Let what was held and has room now wait for its turn."""
        actions: list[RouterAction] = []
        for entered in self._room.released(now_s) if self._room else ():
            ticket: Ticket = entered.key  # type: ignore[assignment]
            client = self._clients[ticket]
            client.room_at, client.since_s = entered.instance, now_s
            actions += self._queue_or_place(ticket, now_s)
        return actions

    def _refresh(self, worker: Worker) -> None:
        """Bring loads and room in step with the state of a worker."""
        self._loads.refresh(worker)
        if worker.state == "suspect":
            self._room.suspend(worker.id)
        elif worker.state == "serving" and not self._room.is_serving(worker.id):
            self._room.join(worker)

    def _take(self, ticket: Ticket, choice: Choice, now_s: float) -> list[RouterAction]:
        """Send a request to the worker that was chosen for it, or let it wait there."""
        if self._placement.binds == "late" or self._can_start(choice, ticket):
            return [self._send(ticket, choice, now_s)]
        self._bind(ticket, choice)
        self._note_rest(self._clients[ticket], now_s)
        return []

    def _can_start(self, choice: Choice, ticket: Ticket) -> bool:
        view, placed = self._loads.view(choice.instance), self._clients[ticket].placed
        return view is not None and not view.num_waiting and self._loads.has_room(view.id, placed)

    def _able(self, client: _Client) -> tuple[Sequence[Worker], int]:
        """Return the workers that take a request, also those that rest, and how many take any: those that
        list its model, or all if none does.
        """
        model = client.request.model
        taking = self._workers.taking()
        listing = [worker for worker in taking if model in worker.models] if model else taking
        return listing or taking, len(taking)

    def _rest_s(self, client: _Client, now_s: float) -> float | None:
        """Return the seconds until the first of the workers that take a request ends its rest; None if one
        does not rest, or if there is none.
        """
        ends_s = [worker.free_s(client.request.client_key) for worker in self._able(client)[0]]
        return min(ends_s) - now_s if ends_s and min(ends_s) > now_s else None

    def _among(self, client: _Client, now_s: float) -> Collection[WorkerId] | None:
        """Return the workers among which a request's worker is chosen; None stands for all.

        Workers where it has failed are among them only if no other is left.
        """
        able, num_taking = self._able(client)
        client_key = client.request.client_key
        among = [worker.id for worker in able if worker.free_s(client_key) <= now_s]
        if client.room_at is not None and self._has_room_at(client, among):
            return [client.room_at]
        if tried := client.tried:
            among = [worker for worker in among if worker not in tried] or among
        return None if len(among) == num_taking else among

    def _has_room_at(self, client: _Client, among: Collection[WorkerId]) -> bool:
        """Return whether the worker where the program of a request has room can take the request."""
        assert client.room_at is not None
        worker = self._workers.get(client.room_at)
        is_tried = client.room_at in client.tried
        return worker is not None and worker.state == "serving" and worker.id in among and not is_tried

    def _reporting(self, request: RoutedRequest) -> list[WorkerId]:
        """Return the workers in whose reports a request's token ids may be looked up.

        Reports are of the model itself, so that those who ask for an adapter find nothing there.
        """
        found = []
        for worker in self._workers:
            card = worker.models.get(request.model)
            is_same = worker.shares_tokenizer or not request.text
            if is_same and isinstance(card, dict) and not card.get("parent"):
                found.append(worker.id)
        return found

    def _queue_name(self, client: _Client, now_s: float) -> str:
        """Return the name of the queue of a request that is bound to no worker: one for each listed model.

        Requests that are repeated, and those for whose key a worker rests, have queues of their own, because
        fewer workers can take them.
        """
        model, client_key = client.request.model, client.request.client_key
        is_listed = any(model in worker.models for worker in self._workers)
        is_limited = client_key and any(
            worker.key_rests.until_s(client_key) > now_s for worker in self._workers
        )
        name = f"{model if is_listed else ''}{'/again' if client.tried else ''}"
        if client.room_at is not None:
            name = f"{name}@{client.room_at}"
        return f"{name}/limited" if is_limited else name

    def _send(self, ticket: Ticket, choice: Choice, now_s: float) -> Send:
        client = self._clients[ticket]
        worker = self._workers.get(choice.instance)
        model = client.request.model
        is_listed = worker is not None and model in worker.models
        client.running = self._loads.start(ticket, client.placed, choice, now_s, model if is_listed else "")
        self._by_worker.setdefault(choice.instance, {})[ticket] = None
        client.num_attempts += 1
        client.tried.add(choice.instance)
        self._room.sent(ticket, choice.instance)
        if client.step is not None:
            self._account.sent(client.step, now_s)
        return Send(
            ticket, choice.instance, choice, now_s - client.arrived_s if client.why else 0.0, client.why
        )

    def _bind(self, ticket: Ticket, choice: Choice) -> None:
        client = self._clients[ticket]
        seconds = self._loads.share_s(client.placed, choice.held_tokens, choice.instance)
        client.bound = choice, seconds
        self._wait(ticket, choice.instance, choice.held_tokens)
        self._placement.observe(Bound(choice.instance, client.placed, client.arrived_s))
        self._loads.wait(choice.instance, client.placed, seconds, 1)

    def _dequeue(self, ticket: Ticket, *, is_its_turn: bool = False) -> None:
        client = self._clients[ticket]
        if is_its_turn:
            self._waiting.take(ticket)
        else:
            self._waiting.remove(ticket)
        if client.bound is not None:
            (choice, seconds), client.bound = client.bound, None
            self._placement.observe(Unbound(choice.instance, client.placed))
            self._loads.wait(choice.instance, client.placed, seconds, -1)

    def _unbind(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Place what waits for a worker again."""
        actions: list[RouterAction] = []
        for ticket in self._waiting.queue(worker):
            self._dequeue(ticket)
            actions += self._place(ticket, now_s)
        return actions

    def _limit_key(self, client_key: str, worker: Worker | None, now_s: float) -> list[RouterAction]:
        """Move what waits with a key for which a worker has just begun to rest, so that it keeps no other
        request waiting; refuse what all workers rest for.
        """
        actions: list[RouterAction] = []
        if not client_key or worker is None:
            return actions
        for ticket, name in [*dict.fromkeys(self._room, "").items(), *self._waiting.queues().items()]:
            client = self._clients[ticket]
            if client.request.client_key != client_key:
                continue
            is_bound = client.bound is not None
            if (rest_s := self._rest_s(client, now_s)) is not None:
                actions.append(self._refuse(ticket, 429, _PAUSE, rest_s, now_s))
            elif ticket in self._room:
                self._note_rest(client, now_s)
            elif name == worker.id if is_bound else name != self._queue_name(client, now_s):
                self._dequeue(ticket)
                actions += self._place(ticket, now_s)
        return actions

    def _note_rest(self, client: _Client, now_s: float) -> None:
        """Note when the first rest of a worker for the key of a request that waits ends."""
        if key := client.request.client_key:
            ends_s = (worker.key_rests.until_s(key) for worker in self._workers)
            self._rest_ends_s = min(
                self._rest_ends_s, *(end_s for end_s in ends_s if end_s > now_s), math.inf
            )

    def _end_key_rests(self, now_s: float) -> list[RouterAction]:
        """Send what waits and fits now, when the rest of a worker for a key has ended."""
        self._rest_ends_s = math.inf
        actions: list[RouterAction] = []
        for worker in self._workers:
            if worker.state == "serving":
                actions += self._fill(worker.id, now_s)
        for ticket in self._waiting.queues():
            self._note_rest(self._clients[ticket], now_s)
        return actions

    def _fill(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Send what waits and fits now, when a worker has room."""
        actions: list[RouterAction] = []
        firsts = {name: self._waiting.first(name, now_s) for name in self._waiting.unbound()}
        while firsts:
            name = min(firsts, key=firsts.__getitem__)  # type: ignore[arg-type]
            del firsts[name]
            if (chosen := self._choose_of(name, now_s)) is not None:
                self._dequeue(chosen[0], is_its_turn=True)
                actions += self._take(*chosen, now_s)
                if (first := self._waiting.first(name, now_s)) is not None:
                    firsts[name] = first
        if self._placement.binds != "late":
            actions += self._admit(worker, now_s)
            if self._placement.binds == "early":
                actions += self._attract(worker, now_s)
        return actions

    def _choose_of(self, name: QueueName, now_s: float) -> tuple[Ticket, Choice] | None:
        """Return the request of a queue that goes next, and the worker that was chosen for it."""
        choice: Choice | None = None
        num_asked = 0

        def fits(ticket: Ticket) -> bool:
            nonlocal choice, num_asked
            num_asked += 1
            client = self._clients[ticket]
            if num_asked > _MAX_ASKED:
                return False
            choice = self._loads.choose(client.placed, now_s, self._among(client, now_s))
            return choice is not None

        ticket = self._waiting.choose(name, fits, now_s)
        return None if ticket is None or choice is None else (ticket, choice)

    def _admit(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Send what waits for a worker and fits there now."""

        def fits(ticket: Ticket) -> bool:
            return self._loads.has_room(worker, self._clients[ticket].placed)

        actions: list[RouterAction] = []
        while (ticket := self._waiting.choose(worker, fits, now_s)) is not None:
            bound = self._clients[ticket].bound
            assert bound is not None
            self._dequeue(ticket, is_its_turn=True)
            actions.append(self._send(ticket, bound[0], now_s))
        return actions

    def _attract(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Ask again about the heads of the longest queues, if a worker has room and an empty queue."""
        actions: list[RouterAction] = []
        view, num_asked = self._loads.view(worker), 0
        for name in self._waiting.longest():
            ahead_s = 0.0
            for ticket in self._waiting.heads(name, _MAX_ASKED - num_asked, now_s):
                if view is None or view.num_waiting or not view.room_tokens:
                    return actions
                num_asked += 1
                client = self._clients[ticket]
                assert client.bound is not None
                bound_to, seconds = client.bound[0].instance, client.bound[1]
                asked = replace(client.placed, bound_to=bound_to, ahead_s=ahead_s)
                choice = self._loads.choose(asked, now_s, self._among(client, now_s))
                if choice is None or choice.instance == bound_to:
                    ahead_s += seconds
                    continue
                self._dequeue(ticket)
                actions += self._take(ticket, choice, now_s)
        return actions

    # --- ends

    def _again(
        self,
        ticket: Ticket,
        reason: str,
        now_s: float,
        *,
        may_return: bool = True,
        was_sent: bool = True,
    ) -> list[RouterAction]:
        """Repeat a request whose attempt has failed before its first byte, or refuse it.

        `may_return` is whether it may be sent to a worker again where it has failed.
        """
        client = self._clients[ticket]
        may_repeat = client.request.is_repeatable or not was_sent
        rest_s = self._rest_s(client, now_s)
        if client.num_attempts >= self._config.max_attempts or not may_repeat:
            return [self._refuse(ticket, 502, reason, rest_s, now_s)]
        client_key = client.request.client_key
        able = [worker.id for worker in self._able(client)[0] if worker.free_s(client_key) <= now_s]
        if client.tried.issuperset(able):
            if not may_return:
                return [self._refuse(ticket, 502, reason, rest_s, now_s)]
            client.tried.clear()
        return self._place(ticket, now_s)

    def _refuse(
        self, ticket: Ticket, status: int, message: str, retry_after_s: float | None, now_s: float
    ) -> Refuse:
        if ticket in self._waiting:
            self._dequeue(ticket)
        self._forget(ticket, now_s)
        return Refuse(ticket, status, message, retry_after_s)

    def _forget(
        self,
        ticket: Ticket,
        now_s: float,
        usage: WorkerUsage = _UNKNOWN,
        *,
        was_refused: bool = False,
    ) -> None:
        """Forget a request that has left the router, with the counts of its answer if there was one."""
        client = self._clients.pop(ticket)
        counts = step_usage(usage)
        if (step := client.step) is not None:
            account = self._account
            if usage.num_output is not None:
                account.answered(step, counts or Usage(), usage.num_output, now_s)
            else:
                account.withdrawn(step.query, step.node.id)
            account.query_ended(step.query)
            if client.request.program.is_final:
                account.program_ended(client.request.program.name, step.record.tenant)
        self._room.ended(ticket, client.request, counts, now_s, was_refused=was_refused)

    def _release(
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
        client = self._clients[ticket]
        if ticket in self._waiting:
            self._dequeue(ticket)
        if (running := client.running) is None:
            return None, _UNKNOWN
        client.running = None
        del self._by_worker[running.worker][ticket]
        was_refused = status is not None and status >= 400
        worker = self._workers.get(running.worker)
        most_tokens = MOST_TOKENS if worker is None else worker.most_tokens(client.request.model)
        usage = believable.usage(usage, client.request, most_tokens)
        is_timed = status is not None and not (was_refused or was_paused)
        self._loads.end(running, usage, now_s, is_timed=is_timed, was_refused=was_refused)
        return worker, usage

    def _after(self, worker: Worker | None, now_s: float) -> list[RouterAction]:
        """Do what follows when a request has left a worker."""
        actions: list[RouterAction] = []
        if worker is not None:
            self._refresh(worker)
            if worker.state == "draining":
                actions = self._retire(worker, now_s)
            elif worker.state == "suspect":
                next_s = min(worker.probe_s, now_s + self._config.health_interval_s)
                actions = [Check(worker.id, next_s), *self._unbind(worker.id, now_s)]
            elif worker.state == "serving" and worker.rests_until_s > now_s:
                actions = [self._next_check(worker, now_s), *self._unbind(worker.id, now_s)]
            elif self._waiting:
                actions = self._fill(worker.id, now_s)
        return actions + self._release_held(now_s)

    def _next_check(self, worker: Worker, now_s: float) -> Check:
        """Return the check of a worker that serves, at the end of its rest if that comes first: then it gets
        what waits.
        """
        at_s = now_s + self._config.health_interval_s
        return Check(worker.id, min(at_s, worker.rests_until_s) if worker.rests_until_s > now_s else at_s)

    def _retire(self, worker: Worker, now_s: float) -> list[RouterAction]:
        if self._at(worker.id):
            return []
        self._by_worker.pop(worker.id, None)
        self._caches.forget(worker.id)
        self._workers.gone(worker, now_s)
        return [WorkerGone(worker.id)]

    def _move_unanswered(self, worker: WorkerId, reason: str, now_s: float) -> list[RouterAction]:
        actions: list[RouterAction] = []
        for ticket in self._at(worker):
            if not self._clients[ticket].has_begun:
                self._release(ticket, _UNKNOWN, now_s)
                actions.append(Stop(ticket, reason))
                actions += self._again(ticket, reason, now_s)
        return actions

    def _at(self, worker: WorkerId) -> list[Ticket]:
        return list(self._by_worker.get(worker, ()))

    def _known(self, worker: WorkerId) -> Worker:
        if (found := self._workers.get(worker)) is None:
            known = ", ".join(str(one.id) for one in self._workers) or "none"
            raise ConfigError(f"there is no worker {worker}; the numbers of the workers are: {known}")
        return found
