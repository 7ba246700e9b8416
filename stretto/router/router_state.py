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
- A worker gets no more requests at once than it runs, as far as that is learned (`learned_slots.py`).
- A worker that has answered with status 429 rests for as long as it says, and gets nothing meanwhile; if the
  client had brought the key, nothing with that key. A request that comes while all rest that could take it is
  refused with 429 and the soonest end of a rest.
- A request that names what one worker keeps, such as a stored answer, goes there alone (`homes.py`).
- A worker that *refuses whoever asks* (status 401, 403, 404, 405 or a redirection), as far as can be said, is
  left for each other worker that serves; no attempt is counted. When none is left, the last answer is passed
  on. If another one answers well and the worker lists the request's model, that counts as a failure of the
  worker.
- Status 401 and 403 are about a key. If the client has brought it, the answer is passed on. If it is the
  router's own, the worker is left as after a failure, and its answer, which may show the key, is not passed
  on. If there is none, requests without a key go there for some time only if no other worker is left.
- Offline requests begin where they make others longer by a small share only, and leave again when others come
  (`offline_at_workers.py`). They wait for that as long as they must while a worker serves.
- At most `max_waiting` requests wait or are held, which clients share (`waiting_limit.py`); others are
  refused with 429. Each waits at most `max_wait_s`, after it was held for at most `max_hold_s`. Requests of
  an app's query in this process do not count: their door has limits of its own. They are refused after
  `max_wait_s` if no worker serves then.
- An attempt that fails before its first byte is repeated at a worker that has not been tried, until
  `max_attempts`. One that was suspect and serves again counts as not tried. Where all have been tried, a lost
  connection is followed by another try at any of them, and an answer with status 5xx is passed on.
- A request that waits much longer for its first byte than others like it may be sent a second time
  (`hedges.py`). The second attempt is a request of its own here, which takes the place of the first if its
  answer begins first, or as soon as the first one fails, however that fails. It is never repeated.
- However a request ends, its load is taken off its worker in `_release`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.loading import loading_shares
from stretto.cluster.placement import Placement, PlacementRequest, Purpose
from stretto.cluster.prompt_keys import BYTES
from stretto.costs.learned_work import LearnedWork
from stretto.model.errors import ConfigError
from stretto.model.record import changed
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.router.held_blocks import HeldByWorkers
from stretto.router.homes import unknown
from stretto.router.messages import (
    Check,
    Cut,
    RoutedRequest,
    RouterAction,
    Stop,
    Ticket,
    WaitingPicture,
    WorkerGone,
    WorkerId,
    WorkerUsage,
)
from stretto.router.offline_at_workers import USUAL_RULES, OfflineRules
from stretto.router.open_requests import TURN, UNKNOWN, OpenRequests
from stretto.router.routed_client import Client
from stretto.router.turns import PAUSE, Turns
from stretto.router.urgency import ProgramDeadlines
from stretto.router.workers import Worker
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.wire.errors import REFUSING_ALL

_ABOUT_KEYS = (401, 403)


class RouterState:
    """The state machine of a router: it places requests at workers, repeats them after failures, and keeps
    the states of the workers.

    Args:
        placement: policy that chooses the worker of a request.
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
        learned: what programs of earlier runs have asked for; None for nothing. It learns on here.
        offline: what decides how much offline work runs at workers.
    """

    def __init__(
        self,
        config: RouterConfig,
        placement: Placement,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        learned: LearnedWork | None = None,
        offline: OfflineRules = USUAL_RULES,
    ) -> None:
        self._config = config
        self._caches = HeldByWorkers()
        self._deadlines = ProgramDeadlines()
        self._open = requests = OpenRequests(config, placement, tenant_weights, learned, offline)
        self._turns = Turns(requests)
        self._workers, self._eligible, self._homes = requests.workers, requests.eligible, requests.homes
        self._loads, self._room, self._waiting = requests.loads, requests.room, requests.waiting
        self._clients, self._by_worker = requests.clients, requests.by_worker

    # --- requests

    def arrive(self, request: RoutedRequest, now_s: float) -> tuple[Ticket, list[RouterAction]]:
        """Take a request of a client; return its number, and what to do."""
        ticket = next(self._open.tickets)
        placed = PlacementRequest(
            num_tokens=len(request.ids) or request.num_tokens,
            expected_output=self._loads.expected_output(request.model, request.max_tokens),
            keys={} if request.key is None else {BYTES.name: request.key},
            hints=self._caches.held(request.ids, self._eligible.reporting(request)) if request.ids else {},
            purpose=Purpose(request.objective, yields_until_s=now_s + self._open.yields_s),
        )
        if request.ids or request.text:  # long, and looked up above
            request = changed(request, ids=(), text="")
        deadline_s = self._deadlines.of(request, now_s)
        self._clients[ticket] = client = Client(request, placed, now_s, now_s, deadline_s)
        client.tried.update(request.failed_at)
        client.again_at.update(request.failed_at)
        client.home = self._homes.of(request)
        if client.home.problem:
            return ticket, [self._open.refuse(ticket, 404, client.home.problem, None, now_s)]
        if request.program.name and not self._open.is_left_out(ticket, request):
            self._open.step_of(ticket)
        entered = self._room.arrive(ticket, request, placed.expected_output, now_s)
        actions: list[RouterAction] = []
        if entered is not None:
            client.room_at = entered.instance
            actions = self._turns.queue_or_place(ticket, now_s)
        actions += self._turns.release_held(now_s)
        if ticket in self._room:
            client.why = self._room.reason(ticket)
            self._open.note_rest(client, now_s)
        if client.running is None:
            actions += self._check_limits(ticket, now_s)
        return ticket, actions + self._turns.withdraw_offline(now_s)

    def _check_limits(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Refuse a request that has come and has to wait, if no worker takes it now, or too many wait."""
        if self._clients[ticket].request.step is not None:
            return []
        if (rest_s := self._eligible.rest_s(self._clients[ticket], now_s)) is not None:
            return [self._open.refuse(ticket, 429, PAUSE, rest_s, now_s)]
        self._open.note_waiting(ticket)
        if (excess := self._open.limit.excess(ticket)) is None:
            return []
        others = "" if excess == ticket else ", and others have fewer of them"
        message = f"{self._config.max_waiting} requests wait already{others}"
        wait_s = self._open.retry_after_s(excess, now_s)
        return [self._open.refuse(excess, 429, message, wait_s, now_s)]

    def head_came(self, ticket: Ticket) -> None:
        """Note that the head of an answer has come that is kept until it is whole."""
        if (client := self._clients.get(ticket)) is not None:
            client.has_head = True

    def began(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle the head of an answer that is passed on as it comes: the request is not repeated any more,
        and a worker that had failed is trusted again.
        """
        if (client := self._clients.get(ticket)) is None or client.running is None:
            return []
        client.has_begun = True
        if status < 400:
            self._note_wait(client, now_s)
        judged = self._judge(client, now_s, is_well=status < 300) if client.refused_by else []
        self._loads.first_byte(client.running, now_s)
        worker = self._workers.get(client.running.worker)
        if worker is None or not worker.is_doubted or status >= 500:
            return judged
        self._workers.answered(worker, status, now_s)
        return judged + self._after(worker, now_s)

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
        if client.home.is_sought and status < 400:
            self.stored(ticket, client.request.stored_id, is_made=False)
        if status < 400 and not client.has_begun:
            self._note_wait(client, now_s)
        judged = self._judge(client, now_s, is_well=status < 300) if client.refused_by else []
        worker, usage = self._open.release(ticket, usage, now_s, status, was_paused=was_paused)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
        if status < 400:
            self._open.forget(ticket, now_s, usage)
        else:
            self._open.forget(ticket, now_s, was_refused=True)
        actions = self._turns.limit_key(client_key, worker, now_s) if status == 429 else []
        return [*judged, *actions, *self._after(worker, now_s)]

    def refused(
        self,
        ticket: Ticket,
        status: int,
        now_s: float,
        reason: str = "",
        *,
        retry_after_s: float | None = None,
    ) -> list[RouterAction]:
        """Handle an answer that was not passed on: with a passing failure (status 429 or 5xx), or one that is
        about the worker.

        `reason` is why, where the status does not say; `retry_after_s` is how long an answer with status 429
        asks to wait.
        """
        if self.is_of_worker(ticket, status):
            return self._refused_by_worker(ticket, status, now_s)
        client_key = self._clients[ticket].request.client_key
        worker, _ = self._open.release(ticket, UNKNOWN, now_s, status)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
            self._open.refresh(worker)
        reason = reason or f"the worker answered with status {status}"
        actions = self._open.again(ticket, reason, now_s, may_return=False)
        if status == 429:
            actions += self._turns.limit_key(client_key, worker, now_s)
        return actions + self._after(worker, now_s)

    def stored(self, ticket: Ticket, stored_id: str, *, is_made: bool = True) -> None:
        """Note that the worker of a request keeps what has an id; "" stands for no id.

        `is_made` is whether the request has made it.
        """
        client = self._clients.get(ticket)
        if stored_id and client is not None and client.running is not None:
            self._homes.learn(client.request.owner, stored_id, client.running.worker, is_made=is_made)

    def is_of_worker(self, ticket: Ticket, status: int) -> bool:
        """Return whether a status with which a request's worker answers may be about the worker, so that
        another one may answer well: not about the client's own key, nor about what the worker alone keeps.
        """
        client = self._clients.get(ticket)
        if client is None or client.running is None or status not in REFUSING_ALL:
            return False
        request = client.request
        if status in _ABOUT_KEYS:
            return not request.client_key
        return not request.stored_id or (status == 404 and client.home.is_sought)

    def is_about_own_key(self, ticket: Ticket, status: int) -> bool:
        """Return whether the status with which a request's worker answers is about the router's own key."""
        if status not in _ABOUT_KEYS or not self.is_of_worker(ticket, status):
            return False
        running = self._clients[ticket].running
        assert running is not None, "a worker has answered it"
        worker = self._workers.get(running.worker)
        return worker is not None and worker.config.has_key

    def _refused_by_worker(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle that a worker refuses a request in a way that is about the worker, and so has not begun it.

        Each other worker that serves is asked once. If none is left, the last answer is passed on. That of a
        worker in doubt counts less: then those that are suspect are left too.
        """
        client = self._clients[ticket]
        is_own = self.is_about_own_key(ticket, status)
        client.num_attempts -= 1
        worker, _ = self._open.release(ticket, UNKNOWN, now_s, status)
        states = {"serving"}
        if worker is not None:
            if worker.is_doubted:
                states.add("suspect")
            client.refused_by[worker.id] = status
            if is_own:
                self._workers.refused_key(worker, status, now_s)
            elif status in _ABOUT_KEYS:
                self._workers.wanted_key(worker, status, now_s)
            self._open.refresh(worker)
        left = [one for one in self._eligible.left(client, now_s) if one.state in states]
        actions = self._go_elsewhere(ticket, status, is_own, bool(left), now_s) + self._after(worker, now_s)
        if is_own and worker is not None and worker.state == "serving":
            actions.append(Check(worker.id, now_s))
        return actions

    def _go_elsewhere(
        self, ticket: Ticket, status: int, is_own: bool, is_left: bool, now_s: float
    ) -> list[RouterAction]:
        """Send a request that a worker refuses elsewhere, or let it wait for a worker that `is_left`."""
        client = self._clients[ticket]
        if client.hedge is not None or client.hedge_of is not None:
            return self._open.again(ticket, f"the worker answered with status {status}", now_s)
        if is_left:
            rest_s = None if client.request.step is not None else self._eligible.rest_s(client, now_s)
            if rest_s is not None:
                return [self._open.refuse(ticket, 429, PAUSE, rest_s, now_s)]
            return self._open.again(ticket, f"all workers refuse it (status {status})", now_s, was_sent=False)
        reason = f"all workers refuse it (status {status})"
        if is_own:
            reason, status = f"no worker is left that accepts the router's key (status {status})", 502
        elif client.home.is_sought:
            reason = unknown(client.request)
        return [
            self._open.refuse(ticket, status, reason, None, now_s),
            *self._judge(client, now_s, is_well=False),
        ]

    def _judge(self, client: Client, now_s: float, *, is_well: bool) -> list[RouterAction]:
        """Handle the end of a request that workers have refused: those that list its model have failed if
        another worker has answered it well (`is_well`); other answers were proper ones.
        """
        actions: list[RouterAction] = []
        refused_by, client.refused_by = client.refused_by, {}
        model, is_stored = client.request.model, bool(client.request.stored_id)
        for one, status in refused_by.items():
            worker = self._workers.get(one)
            if worker is None or status in _ABOUT_KEYS:
                continue
            if not is_well or is_stored or (model and model not in worker.models):
                self._workers.answered(worker, status, now_s)
            else:
                self._workers.refused_wrongly(worker, status, now_s)
            actions += self._after(worker, now_s)
        return actions

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
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        if worker is not None:
            self._workers.suspect(worker, reason, now_s)
            self._open.refresh(worker)
        if client.has_begun and not (may_go_on and client.num_attempts < self._config.max_attempts):
            self._open.forget(ticket, now_s)
            return [Cut(ticket, reason), *self._after(worker, now_s)]
        client.has_begun = False
        return self._open.again(ticket, reason, now_s, was_sent=was_sent) + self._after(worker, now_s)

    def hedge_won(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Handle that the answer of the second attempt of a request begins before that of the first, which is
        over.
        """
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        return [self._open.take_hedge(ticket), *self._after(worker, now_s)]

    def left(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Handle that the client is gone, wherever its request is; nothing happens if it has ended."""
        if ticket not in self._clients:
            return []
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        self._open.forget(ticket, now_s)
        return self._after(worker, now_s)

    def end_program(self, tenant: str, program: str, now_s: float) -> list[RouterAction]:
        """Handle that a program of a tenant makes no more requests, where somebody says so."""
        self._open.account.program_ended(program, tenant)
        self._room.finished(tenant, program)
        return self._turns.release_held(now_s)

    def expire(self, now_s: float) -> list[RouterAction]:
        """Refuse requests that have waited too long, and send those for whose key a worker rests no more."""
        actions: list[RouterAction] = []
        if now_s >= self._open.rest_ends_s:
            actions += self._turns.end_key_rests(now_s)
        if now_s >= self._open.offline_due_s:
            actions += self._turns.fill_unbound(now_s)
        for ticket in self._waiting.overdue(now_s):
            if self._may_wait_on(ticket):
                self._waiting.wait_on(ticket, now_s)
                continue
            waited = f"no worker could take the request in {self._config.max_wait_s:g} s"
            is_plain = self._clients[ticket].request.step is None  # an app's query fails, and asks no more
            wait_s = self._open.retry_after_s(ticket, now_s) if is_plain else None
            actions.append(self._open.refuse(ticket, 503, waited, wait_s, now_s))
        limit_s = self._config.max_hold_s
        for ticket in self._room.overdue(limit_s, now_s):
            held = f"there was no room in KV memory for {limit_s:g} s: {self._room.reason(ticket)}"
            actions.append(
                self._open.refuse(ticket, 503, held, self._open.retry_after_s(ticket, now_s), now_s)
            )
        for ticket, num_attempts in self._open.hedges.due(now_s):
            actions += self._turns.hedge(ticket, num_attempts, now_s)
        return actions + self._turns.release_held(now_s)

    def _may_wait_on(self, ticket: Ticket) -> bool:
        """Return whether a request that has waited long goes on waiting while a worker serves: it is of an
        app, or gives way to all others.
        """
        client = self._clients[ticket]
        is_served = any(worker.state == "serving" for worker in self._eligible.able(client)[0])
        return is_served and (client.request.step is not None or client.request.objective == "offline")

    @property
    def next_due_s(self) -> float | None:
        """Time at which `expire` is to be called; None while nothing waits."""
        dues = (
            self._waiting.next_due_s,
            self._room.due_s(self._config.max_hold_s),
            self._open.hedges.next_due_s,
        )
        due_s = min((one for one in dues if one is not None), default=None)
        return None if due_s is None else min(due_s, self._open.rest_ends_s, self._open.offline_due_s)

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
        found.kv_tokens = found.config.kv_tokens or kv_tokens
        self._workers.passed(found, models, now_s)
        self._loads.join(found)
        self._room.join(found)
        self._open.refresh(found)
        actions = [self._next_check(found, now_s), *self._turns.fill(worker, now_s)]
        return actions + self._turns.release_held(now_s)

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
        self._open.refresh(found)
        next_s = min(found.probe_s, now_s + self._config.health_interval_s)
        actions = [Check(worker, next_s), *self._turns.unbind(worker, now_s)]
        if is_dead:
            actions += self._move_unanswered(worker, reason, now_s)
        return actions + self._turns.release_held(now_s)

    def reported(self, worker: WorkerId, events: Sequence[KVEvent]) -> None:
        """Handle what a worker reports of its prefix cache. When it was cleared, what the worker was believed
        to hold is forgotten too.
        """
        if (found := self._workers.get(worker)) is not None and self._caches.apply(worker, events):
            self._loads.forget(found)

    def forget_reports(self, worker: WorkerId) -> None:
        """Handle that a worker reports nothing of its prefix cache any more."""
        self._caches.forget(worker)

    def looked_at(
        self, worker: WorkerId, num_running: int, num_waiting: int, now_s: float
    ) -> list[RouterAction]:
        """Handle how many requests run and wait at a worker, as it tells itself."""
        if (found := self._workers.get(worker)) is None or found.state != "serving":
            return []
        if not found.slots.look(num_running, num_waiting, are_held=bool(self._waiting)):
            return []
        self._loads.refresh(found)
        return self._turns.fill(worker, now_s) if self._waiting else []

    def resize(self, worker: WorkerId, num_slots: int, now_s: float) -> list[RouterAction]:
        """Let at most `num_slots` requests run at a worker at once; those that run go on.

        Raises:
            ConfigError: there is no such worker, or it is no number of requests.
        """
        found = self._known(worker)
        found.config = replace(found.config, num_slots=num_slots)
        self._loads.refresh(found)
        return self._turns.fill(worker, now_s)

    def drain(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Give a worker no more requests; it is gone when it has answered those that it has.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        self._leave(found, now_s)
        actions = self._refuse_at_home(worker, now_s)
        actions += [
            *self._turns.unbind(worker, now_s),
            *self._turns.fill(worker, now_s),
            *self._retire(found, now_s),
        ]
        return actions + self._turns.release_held(now_s)

    def remove(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Remove a worker at once: requests that it has not begun to answer are sent elsewhere, answers that
        have begun are cut.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        self._leave(found, now_s)
        actions = [*self._refuse_at_home(worker, now_s), *self._turns.unbind(worker, now_s)]
        actions += self._move_unanswered(worker, "the worker was removed", now_s)
        for ticket in self._at(worker):
            self._open.release(ticket, UNKNOWN, now_s)
            self._open.forget(ticket, now_s)
            actions.append(Cut(ticket, "the worker was removed"))
        actions += [*self._turns.release_held(now_s), *self._turns.fill(worker, now_s)]
        return actions + self._retire(found, now_s)

    def _leave(self, worker: Worker, now_s: float) -> None:
        """Give a worker no more requests."""
        self._workers.drain(worker, now_s)
        self._loads.leave(worker.id)
        self._room.leave(worker.id)

    def _refuse_at_home(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Refuse what waits for a worker that leaves, because that one alone keeps what is named."""
        return [
            self._open.refuse(ticket, 404, self._homes.problem(client.request, worker), None, now_s)
            for ticket, client in list(self._clients.items())
            if client.home.worker == worker and client.running is None
        ]

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

    @property
    def num_held(self) -> int:
        """Number of those that wait for room."""
        return len(self._room)

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
            why = self._room.reason(ticket) if is_held else TURN
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
    def cuts_priority(self) -> bool:
        """Whether a worker knows no field `priority`."""
        return self._eligible.cuts_priority

    def is_listed(self, model: str) -> bool:
        """Return whether a worker that takes requests lists a model."""
        return self._eligible.is_listed(model)

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
        self._homes.check_invariants()
        self._deadlines.check_invariants()
        self._open.account.check_invariants()
        for ticket, client in self._clients.items():
            is_running = client.running is not None
            assert is_running or client.hedge_of is None
            if client.hedge is not None:
                assert is_running
                assert self._clients[client.hedge].hedge_of == ticket
            assert is_running + (ticket in self._waiting) + (ticket in self._room) == 1
            assert client.bound is None or ticket in self._waiting
        for worker, tickets in self._by_worker.items():
            for ticket in tickets:
                running = self._clients[ticket].running
                assert running is not None
                assert running.worker == worker
        num_running = sum(client.running is not None for client in self._clients.values())
        assert sum(map(len, self._by_worker.values())) == num_running
        waiting = self._waiting.queues()
        plain = [one for one, client in self._clients.items() if client.request.step is None]
        assert sorted(self._open.limit) == [one for one in plain if self._clients[one].running is None]
        assert self._open.waiting_tokens == sum(self._clients[one].placed.all_tokens for one in waiting)
        assert self.num_waiting == sum(one.running is None for one in self._clients.values())
        num_offline = sum(self._clients[one].placed.purpose.preference == "offline" for one in waiting)
        assert self._open.num_offline_waiting == num_offline

    def _note_wait(self, client: Client, now_s: float) -> None:
        """Learn how long a request has waited for its first byte."""
        self._open.hedges.learn(client.request, now_s - client.sent_s)

    # --- ends

    def _after(self, worker: Worker | None, now_s: float) -> list[RouterAction]:
        """Do what follows when a request has left a worker."""
        actions: list[RouterAction] = []
        if worker is not None:
            self._open.refresh(worker)
            if worker.state == "draining":
                actions = self._retire(worker, now_s)
            elif worker.state == "suspect":
                next_s = min(worker.probe_s, now_s + self._config.health_interval_s)
                actions = [Check(worker.id, next_s), *self._turns.unbind(worker.id, now_s)]
            elif worker.state == "serving" and worker.rests_until_s > now_s:
                actions = [self._next_check(worker, now_s), *self._turns.unbind(worker.id, now_s)]
            elif self._waiting:
                actions = self._turns.fill(worker.id, now_s)
        return actions + self._turns.release_held(now_s)

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
                self._open.release(ticket, UNKNOWN, now_s)
                actions.append(Stop(ticket, reason))
                actions += self._open.again(ticket, reason, now_s)
        return actions

    def _at(self, worker: WorkerId) -> list[Ticket]:
        return list(self._by_worker.get(worker, ()))

    def _known(self, worker: WorkerId) -> Worker:
        if (found := self._workers.get(worker)) is None:
            known = ", ".join(str(one.id) for one in self._workers) or "none"
            raise ConfigError(f"there is no worker {worker}; the numbers of the workers are: {known}")
        return found
