"""The driver of the router: it carries out the actions of the state machine, at clients and at workers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

from stretto.cluster.placements.table import placement_of
from stretto.costs.learned_work import LearnedWork
from stretto.http.body_readers import BodyReaders
from stretto.http.byte_budget import ByteBudget
from stretto.model.backlog import Backlog
from stretto.operate.watch import Watch
from stretto.router.aliases import Aliases
from stretto.router.config import RouterConfig
from stretto.router.exchange import RoutedExchange
from stretto.router.fallback_placement import FallbackPlacement
from stretto.router.hedge_attempt import HedgeAttempt
from stretto.router.messages import (
    Check,
    Cut,
    Hedge,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Stop,
    TakeHedge,
    Ticket,
    Withdraw,
    WorkerGone,
    WorkerId,
)
from stretto.router.router_state import RouterState
from stretto.router.shown_requests import ShownRequests
from stretto.router.token_reader import TokenReader
from stretto.router.worker_link import WorkerLink
from stretto.sched.orders.tenants_served import NO_WEIGHTS

_log = logging.getLogger(__name__)


class Front:
    """The driver of the state machine that decides for a router.

    Args:
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
        watch: what sees all requests; None for one of its own.
        learned: what programs of earlier runs have asked for; None for nothing. It learns on here.

    Attributes:
        watch: what sees all requests.
        placement: the policy that chooses workers.
        unsettled_state: the state machine, to which the ends of the last answers may not have been brought.
        later: has something done in the next turn of the event loop, or before `router_state` is asked for
            (`Backlog.add`). An error in it is logged.
        links: the way to each worker.
        exchanges: the open requests that have come to the state machine.
        budget: count of the bytes held for all clients.
        aliases: names that stand for models.
        check: called to have the health of a worker checked at a time.
        on_worker_passed: called when a worker has passed a health check.
        on_worker_gone: called when a worker is gone.
        tokens: tokenizer of prompts; None without one.
        readers: what reads and writes large bodies beside the event loop.
    """

    def __init__(
        self,
        config: RouterConfig,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        watch: Watch | None = None,
        learned: LearnedWork | None = None,
    ) -> None:
        self.config = config
        self.placement = FallbackPlacement(placement_of(config.placement)())
        self.unsettled_state = RouterState(config, self.placement, tenant_weights, learned)
        self.links: dict[WorkerId, WorkerLink] = {}
        self.budget = ByteBudget(config.max_held_bytes)
        self.watch = Watch() if watch is None else watch
        self.aliases = Aliases(config.alias)
        self.check: Callable[[WorkerId, float], None] = lambda worker, at_s: None
        self.on_worker_passed: list[Callable[[WorkerId], None]] = []
        self.on_worker_gone: list[Callable[[WorkerId], None]] = []
        self.tokens: TokenReader | None = None
        self.readers = BodyReaders()
        self._loop = asyncio.get_running_loop()
        self._late = Backlog(soon=self._loop.call_soon, on_error=_not_done)
        self.later = self._late.add
        self._shown = ShownRequests(self.watch, self.readers)
        self.watch.deferred.sources.append(self.catch_up)
        self.exchanges: dict[Ticket, RoutedExchange] = {}
        self._hedges: dict[Ticket, HedgeAttempt] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_s = math.inf

    @property
    def router_state(self) -> RouterState:
        """The state machine, which knows all that has happened."""
        self.settle()
        return self.unsettled_state

    def settle(self) -> None:
        """Bring to the state machine, and to what recognises programs, how the last requests have ended."""
        if self._late.waiting:
            self._late.catch_up()

    def catch_up(self) -> None:
        """Do now what is to be done later."""
        self._late.catch_up()
        self._shown.catch_up()
        self.unsettled_state.catch_up()

    def act(self, actions: Sequence[RouterAction]) -> None:
        """Carry out actions of the state machine. An error in one ends its request, and nothing else."""
        for action in actions:
            try:
                self._carry_out(action)
            except Exception:
                _log.exception("an action of the router's state could not be carried out")
                exchange = self.exchanges.get(getattr(action, "ticket", -1))
                if exchange is not None:
                    exchange.fail("the router could not go on with the request")
        due_s = self.unsettled_state.timers.next_due_s
        if due_s is not None and due_s < self._expiry_s:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry_s = due_s
            self._expiry = self._loop.call_later(max(0.0, due_s - monotonic()), self._expire)

    def _carry_out(self, action: RouterAction) -> None:
        match action:
            case Send(ticket, worker):
                self.exchanges[ticket].send(action, self.links[worker])
            case Hedge(ticket, send):
                self._hedges[send.ticket] = self.exchanges[ticket].hedge(
                    send, self.links[send.worker], lambda ended: self._hedges.pop(ended, None)
                )
            case TakeHedge(ticket):
                self.exchanges[ticket].attempts.take_hedge()
            case Stop(ticket, reason):
                self._at(ticket).give_up(reason)
            case Withdraw(ticket):
                self.exchanges[ticket].attempts.withdraw()
            case Refuse(ticket, status, message, retry_after_s):
                self._at(ticket).refuse(status, message, retry_after_s)
            case Cut(ticket, reason):
                self._at(ticket).cut(reason)
            case Check(worker, at_s):
                self.check(worker, at_s)
            case WorkerGone(worker):
                link = self.links.pop(worker)
                link.connections.close()
                self.watch.metrics.forget_worker(link.name)
                for tell in self.on_worker_gone:
                    tell(worker)

    def _at(self, ticket: Ticket) -> RoutedExchange | HedgeAttempt:
        """Return the request or the second attempt that has a ticket."""
        return self.exchanges.get(ticket) or self._hedges[ticket]

    def remove(self, worker: WorkerId, now_s: float) -> None:
        """Remove a worker at once: streams that can go on elsewhere do, other begun answers are cut.

        Raises:
            ConfigError: there is no such worker.
        """
        self.act(self.router_state.membership.drain(worker, now_s))
        for exchange in list(self.exchanges.values()):
            exchange.move_stream(worker, "the worker was removed")
        if self.router_state.view.worker(worker) is not None:
            self.act(self.router_state.membership.remove(worker, now_s))

    def end_all(self, message: str) -> None:
        """End all requests with status 503, or by cutting their answers: first those that wait, so that none
        of them is sent.
        """
        for exchange in sorted(self.exchanges.values(), key=lambda one: one.attempts.running is not None):
            exchange.fail(message, 503)

    def sweep(self) -> None:
        """End attempts that bring nothing; called each second."""
        now_s = monotonic()
        config = self.config
        for exchange in list(self.exchanges.values()):
            exchange.time_out(now_s, config.first_byte_timeout_s, config.idle_timeout_s)

    def _expire(self) -> None:
        self._expiry, self._expiry_s = None, math.inf
        self.act(self.router_state.timers.expire(monotonic()))

    def register(self, exchange: RoutedExchange, routed: RoutedRequest) -> None:
        """Note that a request has come to the state machine."""
        self.exchanges[exchange.ticket] = exchange
        self._shown.later(exchange, routed)

    def ended(self, exchange: RoutedExchange) -> None:
        """Note that a request has left the router."""
        self.exchanges.pop(exchange.ticket, None)  # not there if the client left before it was placed
        self.later(partial(self._has_ended, exchange))

    def _has_ended(self, exchange: RoutedExchange) -> None:
        if (program := exchange.program) is not None:
            program.end(was_answered=exchange.was_answered)
        self._shown.later(exchange, None)


def _not_done(error: Exception) -> None:
    """Log that what was to be done later has failed, which ends nothing else."""
    _log.error("what was to be done later for a request has failed", exc_info=error)
