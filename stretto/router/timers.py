"""What the time alone does at a router: requests that have waited too long, rests and second attempts."""

from __future__ import annotations

from stretto.router.messages import RouterAction, Ticket
from stretto.router.open_requests import OpenRequests
from stretto.router.repeats import Repeats
from stretto.router.turns import Turns

_MOST_UNKNOWN_S = 60.0
"""Longest time until a client is told to ask again, where there is nothing to predict from."""


class Timers:
    """What is to happen at a router at a time, if nothing else does.

    Requests of an app's query in this process do not end for waiting while a worker serves.
    """

    def __init__(self, requests: OpenRequests, turns: Turns, repeats: Repeats) -> None:
        self._open = requests
        self._turns = turns
        self._repeats = repeats

    def expire(self, now_s: float) -> list[RouterAction]:
        """Refuse requests that have waited too long, and send those for whose key a worker rests no more."""
        actions: list[RouterAction] = []
        if now_s >= self._open.rest_ends_s:
            actions += self._turns.end_key_rests(now_s)
        if now_s >= self._open.offline_due_s:
            actions += self._turns.fill_unbound(now_s)
        for ticket in self._open.waiting.overdue(now_s):
            if self._may_wait_on(ticket):
                self._open.waiting.wait_on(ticket, now_s)
                continue
            waited = f"no worker could take the request in {self._open.config.max_wait_s:g} s"
            is_plain = self._open.clients[ticket].request.step is None  # an app's query asks no more
            wait_s = self.retry_after_s(ticket, now_s) if is_plain else None
            actions.append(self._open.refuse(ticket, 503, waited, wait_s, now_s))
        limit_s = self._open.config.max_hold_s
        for ticket in self._open.room.overdue(limit_s, now_s):
            held = f"there was no room in KV memory for {limit_s:g} s: {self._open.room.reason(ticket)}"
            actions.append(self._open.refuse(ticket, 503, held, self.retry_after_s(ticket, now_s), now_s))
        for ticket, num_attempts in self._open.hedges.due(now_s):
            actions += self._repeats.hedge(ticket, num_attempts, now_s)
        return actions + self._turns.release_held(now_s)

    def _may_wait_on(self, ticket: Ticket) -> bool:
        """Return whether a request that has waited long goes on waiting while a worker serves: it is of an
        app, or gives way to all others.
        """
        client = self._open.clients[ticket]
        is_served = any(worker.state == "serving" for worker in self._open.eligible.able(client)[0])
        return is_served and (client.request.step is not None or client.request.objective == "offline")

    @property
    def next_due_s(self) -> float | None:
        """Time at which `expire` is to be called; None while nothing waits."""
        opened = self._open
        if not (opened.waiting.queues or opened.room.held or opened.hedges.are_on):
            return None
        due_s = opened.waiting.next_due_s
        for one in (opened.room.due_s(opened.config.max_hold_s), opened.hedges.next_due_s):
            if one is not None and (due_s is None or one < due_s):
                due_s = one
        return None if due_s is None else min(due_s, self._open.rest_ends_s, self._open.offline_due_s)

    def retry_after_s(self, ticket: Ticket, now_s: float) -> float:
        """Return the predicted seconds until there is room for a request that is refused: until what is held
        has room, or until as many have had their turn as wait now. While no worker serves, it is the time
        until one is tried again. While nothing has had its turn lately, it is the age of the oldest request.
        """
        if ticket in self._open.room:
            return self._open.room.wait_s(ticket, now_s)
        able = self._open.eligible.able(self._open.clients[ticket])[0]
        if any(worker.state == "serving" for worker in able):
            oldest_s = next(iter(self._open.clients.values())).arrived_s
            unknown_s = min(_MOST_UNKNOWN_S, max(1.0, now_s - oldest_s))
            return self._open.turn_rate.wait_s(self._open.waiting_tokens, now_s, unknown_s)
        next_s = min((worker.probe_s for worker in able), default=now_s + self._open.config.health_interval_s)
        return max(1.0, next_s - now_s)
