"""The state machine of the router, which decides which worker gets a request, and when.

Methods are events; they take the time and return actions. Events of requests are here, those of workers in
`membership.py`, and what the time alone does in `timers.py`: the driver calls `expire` when `next_due_s` has
come. Rules, besides those of refusing workers (`refusing_workers.py`) and of further attempts (`repeats.py`):

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
- Offline requests begin where they make others longer by a small share only, and leave again when others come
  (`offline_at_workers.py`). They wait for that as long as they must while a worker serves.
- At most `max_waiting` requests wait or are held, which clients share (`waiting_limit.py`); others are
  refused with 429. Each waits at most `max_wait_s`, after it was held for at most `max_hold_s`. Requests of
  an app's query in this process do not count: their door has limits of its own. They are refused after
  `max_wait_s` if no worker serves then.
- However a request ends, its load is taken off its worker in `OpenRequests.release`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.cluster.kv_events import KVEvent
from stretto.cluster.placement import Placement
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.cluster.prompt_keys import BYTES
from stretto.costs.learned_work import LearnedWork
from stretto.model.record import changed
from stretto.router.announcing.announcer import Announcer
from stretto.router.chat_counts import compare_counts
from stretto.router.config import RouterConfig
from stretto.router.dispatch import Dispatch
from stretto.router.held_blocks import HeldByWorkers
from stretto.router.membership import Membership
from stretto.router.messages import Cut, RoutedRequest, RouterAction, Ticket, WorkerId, WorkerUsage
from stretto.router.offline_at_workers import USUAL_RULES, OfflineRules
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.peers.peers import Peers
from stretto.router.peers.requests import PeerRequests
from stretto.router.prefills import Prefills
from stretto.router.refusing_workers import RefusingWorkers
from stretto.router.repeats import Repeats
from stretto.router.routed_client import Client
from stretto.router.router_view import RouterView
from stretto.router.split_requests import without_transfer
from stretto.router.timers import Timers
from stretto.router.turns import PAUSE, Turns
from stretto.router.urgency import ProgramDeadlines
from stretto.sched.orders.tenants_served import NO_WEIGHTS


class RouterState:
    """The state machine of a router: it places requests at workers, repeats them after failures, and keeps
    the states of the workers.

    Args:
        placement: policy that chooses the worker of a request.
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
        learned: what programs of earlier runs have asked for; None for nothing. It learns on here.
        offline: what decides how much offline work runs at workers.

    Attributes:
        membership: events of the workers.
        prefills: prompts that workers have computed for others.
        refusing: tells which answers are about a worker, not about a request.
        timers: what is to happen at a time, if nothing else does.
        view: what others see of the state.
        peers: what follows other routers before the same workers; None without any.
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
        dispatch = Dispatch(requests)
        self._turns = turns = Turns(requests, dispatch)
        self._repeats = repeats = Repeats(requests, dispatch)
        self.membership = Membership(requests, turns, repeats, self._caches)
        self.prefills = Prefills(requests, turns, self.membership)
        self.refusing = RefusingWorkers(requests, self.membership, repeats)
        self.timers = Timers(requests, turns, repeats)
        self.view = RouterView(requests, self._caches)
        self.peers: Peers | None = None
        self._workers, self._eligible, self._homes = requests.workers, requests.eligible, requests.homes
        self._loads, self._room, self._clients = requests.loads, requests.room, requests.clients

    def arrive(self, request: RoutedRequest, now_s: float) -> tuple[Ticket, list[RouterAction]]:
        """Take a request of a client; return its number, and what to do."""
        ticket = next(self._open.tickets)
        placed = PlacementRequest(
            num_tokens=len(request.ids) or request.num_tokens,
            expected_output=self._loads.outputs.expected(request.model, request.max_tokens),
            keys={} if request.key is None else {BYTES.name: request.key},
            hints=self._caches.held(request.ids, self._eligible.reporting(request)) if request.ids else {},
            purpose=Purpose(request.objective, yields_until_s=now_s + self._open.yields_s),
        )
        chat_tokens = len(request.ids) if request.chat is not None else 0
        if request.ids or request.text or request.chat is not None:  # long, and looked up above
            request = changed(request, ids=(), text="", chat=None)
        deadline_s = self._deadlines.of(request, now_s)
        self._clients[ticket] = client = Client(request, placed, now_s, now_s, deadline_s)
        client.chat_tokens = chat_tokens
        client.tried.update(request.failed_at)
        client.again_at.update(request.failed_at)
        client.home = self._homes.of(request)
        if client.home.problem:
            return ticket, [self._open.refuse(ticket, 404, client.home.problem, None, now_s)]
        if request.program.name and not self._open.is_left_out(ticket, request):
            self._open.step_of(ticket)
        if self.peers is not None:
            self.peers.requests.came_back(request, now_s)
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
            self._open.announce_waiting(ticket)
            actions += self._check_limits(ticket, now_s)
        return ticket, actions + self._turns.withdraw_offline(now_s)

    def _check_limits(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Refuse a request that has come and has to wait, if no worker takes it now, or too many wait."""
        client = self._clients[ticket]
        if client.request.step is not None:
            return []
        if (rest_s := self._eligible.rest_s(client, now_s)) is not None:
            return [self._open.refuse(ticket, 429, PAUSE, rest_s, now_s)]
        self._open.limit.add(ticket, client.waits_for)
        if (excess := self._open.limit.excess(ticket)) is None:
            return []
        others = "" if excess == ticket else ", and others have fewer of them"
        message = f"{self._config.max_waiting} requests wait already{others}"
        wait_s = self.timers.retry_after_s(excess, now_s)
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
        if self._open.hedges.are_on and status < 400 and client.prefilled is None:
            self._open.hedges.learn(client.request, now_s - client.sent_s)
        judged = self.refusing.judge(client, now_s, is_well=status < 300) if client.refused_by else []
        self._loads.first_byte(client.running, now_s)
        worker = self._workers.get(client.running.worker)
        if worker is None or not worker.is_doubted or status >= 500:
            return judged
        self._workers.answered(worker, status, now_s)
        return judged + self.membership.request_left(worker, now_s)

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
        if self._open.hedges.are_on and status < 400 and not client.has_begun and client.prefilled is None:
            self._open.hedges.learn(client.request, now_s - client.sent_s)
        judged = self.refusing.judge(client, now_s, is_well=status < 300) if client.refused_by else []
        worker, usage = self._open.release(ticket, usage, now_s, status, was_paused=was_paused)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
            if client.chat_tokens and client.num_attempts == 1:
                compare_counts(worker, client.chat_tokens, usage)
        if status < 400:
            self._open.forget(ticket, now_s, without_transfer(client, usage))
        else:
            self._open.forget(ticket, now_s, was_refused=True)
        actions = self._turns.limit_key(client_key, worker, now_s) if status == 429 else []
        return [*judged, *actions, *self.membership.request_left(worker, now_s)]

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
        if self.refusing.is_of_worker(ticket, status):
            return self.refusing.refused(ticket, status, now_s)
        client_key = self._clients[ticket].request.client_key
        worker, _ = self._open.release(ticket, UNKNOWN, now_s, status)
        if worker is not None:
            self._workers.answered(worker, status, now_s, retry_after_s, client_key)
            self.membership.refresh(worker)
        reason = reason or f"the worker answered with status {status}"
        actions = self._repeats.again(ticket, reason, now_s, may_return=False)
        if status == 429:
            actions += self._turns.limit_key(client_key, worker, now_s)
        return actions + self.membership.request_left(worker, now_s)

    def stored(self, ticket: Ticket, stored_id: str, *, is_made: bool = True) -> None:
        """Note that the worker of a request keeps what has an id; "" stands for no id.

        `is_made` is whether the request has made it.
        """
        client = self._clients.get(ticket)
        if stored_id and client is not None and client.running is not None:
            self._homes.learn(client.request.owner, stored_id, client.running.worker, is_made=is_made)

    def failed(
        self,
        ticket: Ticket,
        reason: str,
        now_s: float,
        *,
        was_sent: bool = True,
        may_go_on: bool = False,
    ) -> list[RouterAction]:
        """Handle an attempt whose connection failed or which took too long, before or after its first byte.

        Args:
            was_sent: whether the worker may have got the request.
            may_go_on: whether an answer that has begun can go on at another worker.
        """
        client = self._clients[ticket]
        client.num_attempts -= not was_sent
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        if worker is not None:
            self._workers.suspect(worker, reason, now_s)
            self.membership.refresh(worker)
        if client.has_begun and not (may_go_on and client.num_attempts < self._config.max_attempts):
            self._open.forget(ticket, now_s)
            return [Cut(ticket, reason), *self.membership.request_left(worker, now_s)]
        client.has_begun = False
        actions = self._repeats.again(ticket, reason, now_s, was_sent=was_sent)
        return actions + self.membership.request_left(worker, now_s)

    def hedge_won(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Handle that the answer of the second attempt of a request begins before that of the first, which is
        over.
        """
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        return [self._repeats.take_hedge(ticket), *self.membership.request_left(worker, now_s)]

    def left(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Handle that the client is gone, wherever its request is; nothing happens if it has ended."""
        if ticket not in self._clients:
            return []
        worker, _ = self._open.release(ticket, UNKNOWN, now_s)
        self._open.forget(ticket, now_s)
        return self.membership.request_left(worker, now_s)

    def end_program(self, tenant: str, program: str, now_s: float) -> list[RouterAction]:
        """Handle that a program of a tenant makes no more requests, where somebody says so."""
        self._open.account.now.program_ended(program, tenant)
        self._room.finished(tenant, program)
        return self._turns.release_held(now_s)

    def reported(self, worker: WorkerId, events: Sequence[KVEvent]) -> None:
        """Handle what a worker reports of its prefix cache. When it was cleared, what the worker was believed
        to hold is forgotten too.
        """
        if (found := self._open.workers.get(worker)) is not None and self._caches.apply(worker, events):
            self._open.loads.forget(found)

    def forget_reports(self, worker: WorkerId) -> None:
        """Handle that a worker reports nothing of its prefix cache any more."""
        self._caches.forget(worker)

    def follow_peers(self, origin: str) -> Peers:
        """Begin to tell other routers what happens here, under a name that no other process has; return what
        follows them.
        """
        self._open.announcer = announcer = Announcer(origin)
        self._open.account.now.on_charge = announcer.charged
        announcer.is_pressed = lambda: bool(self._open.waiting) or bool(self._room)
        announcer.waiting.takers = self._open.takers
        self._room.shares_names = True
        self.peers = peers = Peers(announcer, PeerRequests(self._open), self._turns.freed)
        return peers

    def catch_up(self) -> None:
        """Learn from all that has happened what programs ask for."""
        self._open.account.catch_up()

    def check_invariants(self) -> None:
        """Check that loads, queues and requests agree. Tests call it after every event."""
        self._caches.check_invariants()
        self._deadlines.check_invariants()
        self._open.check_invariants()
