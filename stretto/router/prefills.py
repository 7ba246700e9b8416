"""Prompts that workers have computed for others: the events by which a request goes on."""

from __future__ import annotations

from dataclasses import replace

from stretto.router.membership import Membership
from stretto.router.messages import RouterAction, Ticket, WorkerUsage
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.split_requests import note_prefill
from stretto.router.turns import Turns
from stretto.router.workers import Worker


class Prefills:
    """The ends of prefills of requests that are split (`split_requests.py`)."""

    def __init__(self, requests: OpenRequests, turns: Turns, membership: Membership) -> None:
        self._open = requests
        self._turns = turns
        self._membership = membership

    def done(self, ticket: Ticket, usage: WorkerUsage, now_s: float) -> list[RouterAction]:
        """Handle that a worker has computed the prompt of a request: another one is to write the answer.

        Args:
            usage: counts of the answer, whose only token nobody gets.
        """
        running = self._open.clients[ticket].running
        assert running is not None, "the prompt was computed somewhere"
        worker, usage = self._open.release(ticket, replace(usage, num_output=None), now_s, 200)
        note_prefill(self._open.clients[ticket], running, usage, now_s)
        return self._go_on(ticket, worker, 200, now_s)

    def unfit(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle that a worker takes no prompt alone of a request: it goes whole to another one, which tells
        the client what is wrong with it, if that is so.
        """
        worker, _ = self._open.release(ticket, UNKNOWN, now_s, status)
        client = self._open.clients[ticket]
        client.stays_whole = True
        client.num_attempts -= 1
        return self._go_on(ticket, worker, status, now_s)

    def _go_on(self, ticket: Ticket, worker: Worker | None, status: int, now_s: float) -> list[RouterAction]:
        if worker is not None:
            self._open.workers.answered(worker, status, now_s)
        actions = self._turns.queue_or_place(ticket, now_s)
        return actions + self._membership.request_left(worker, now_s)
