"""Answers of workers that may refuse whoever asks: whose fault is it, and where does the request go?

- A worker that *refuses whoever asks* (status 401, 403, 404, 405 or a redirection), as far as can be said, is
  left for each other worker that serves; no attempt is counted. When none is left, the last answer is passed
  on. If another one answers well and the worker lists the request's model, that counts as a failure of the
  worker.
- Status 401 and 403 are about a key. If the client has brought it, the answer is passed on. If it is the
  router's own, the worker is left as after a failure, and its answer, which may show the key, is not passed
  on. If there is none, requests without a key go there for some time only if no other worker is left.
"""

from __future__ import annotations

import logging

from stretto.router.homes import unknown
from stretto.router.membership import Membership
from stretto.router.messages import Check, RouterAction, Ticket
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.repeats import Repeats
from stretto.router.routed_client import Client
from stretto.router.turns import PAUSE
from stretto.router.workers import KEY_HINT, NO_KEY_HINT, Worker
from stretto.wire.errors import REFUSING_ALL

_log = logging.getLogger(__name__)
_ABOUT_KEYS = (401, 403)
_KEYLESS_REST_S = 10.0
"""Time for which a worker that wants a key gets no requests without one while others take them."""


class RefusingWorkers:
    """What follows when workers refuse requests in a way that may be about the workers."""

    def __init__(self, requests: OpenRequests, membership: Membership, repeats: Repeats) -> None:
        self._open = requests
        self._membership = membership
        self._repeats = repeats

    def is_of_worker(self, ticket: Ticket, status: int) -> bool:
        """Return whether a status with which a request's worker answers may be about the worker, so that
        another one may answer well: not about the client's own key, nor about what the worker alone keeps.
        """
        client = self._open.clients.get(ticket)
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
        running = self._open.clients[ticket].running
        assert running is not None, "a worker has answered it"
        worker = self._open.workers.get(running.worker)
        return worker is not None and worker.config.has_key

    def refused(self, ticket: Ticket, status: int, now_s: float) -> list[RouterAction]:
        """Handle that a worker refuses a request in a way that is about the worker, and so has not begun it.

        Each other worker that serves is asked once. If none is left, the last answer is passed on. That of a
        worker in doubt counts less: then those that are suspect are left too.
        """
        client = self._open.clients[ticket]
        is_own = self.is_about_own_key(ticket, status)
        client.num_attempts -= 1
        worker, _ = self._open.release(ticket, UNKNOWN, now_s, status)
        states = {"serving"}
        if worker is not None:
            if worker.is_doubted:
                states.add("suspect")
            client.refused_by[worker.id] = status
            if status in _ABOUT_KEYS:
                self._refused_key(worker, status, now_s, is_own=is_own)
            self._membership.refresh(worker)
        left = [one for one in self._open.eligible.left(client, now_s) if one.state in states]
        actions = self._go_elsewhere(ticket, status, is_own, bool(left), now_s)
        actions += self._membership.request_left(worker, now_s)
        if is_own and worker is not None and worker.state == "serving":
            actions.append(Check(worker.id, now_s))
        return actions

    def _refused_key(self, worker: Worker, status: int, now_s: float, *, is_own: bool) -> None:
        """Handle an answer with status 401 or 403 to a request with the router's own key, or without one."""
        workers = self._open.workers
        if is_own:
            reason = f"it refuses the router's key (status {status}); {KEY_HINT}"
            (workers.suspect if status == 401 else workers.failed)(worker, reason, now_s)
            return
        workers.answered(worker, status, now_s)
        workers.rest(worker, "", now_s + _KEYLESS_REST_S)
        if not worker.wants_key:
            worker.wants_key = True
            _log.warning("worker %s wants a key (status %d); %s", worker.config.url, status, NO_KEY_HINT)

    def _go_elsewhere(
        self, ticket: Ticket, status: int, is_own: bool, is_left: bool, now_s: float
    ) -> list[RouterAction]:
        """Send a request that a worker refuses elsewhere, or let it wait for a worker that `is_left`."""
        client = self._open.clients[ticket]
        if client.hedge is not None or client.hedge_of is not None:
            return self._repeats.again(ticket, f"the worker answered with status {status}", now_s)
        reason = f"all workers refuse it (status {status})"
        if is_left:
            rest_s = None if client.request.step is not None else self._open.eligible.rest_s(client, now_s)
            if rest_s is not None:
                return [self._open.refuse(ticket, 429, PAUSE, rest_s, now_s)]
            return self._repeats.again(ticket, reason, now_s, was_sent=False)
        if is_own:
            reason, status = f"no worker is left that accepts the router's key (status {status})", 502
        elif client.home.is_sought:
            reason = unknown(client.request)
        return [
            self._open.refuse(ticket, status, reason, None, now_s),
            *self.judge(client, now_s, is_well=False),
        ]

    def judge(self, client: Client, now_s: float, *, is_well: bool) -> list[RouterAction]:
        """Handle the end of a request that workers have refused: those that list its model have failed if
        another worker has answered it well (`is_well`); other answers were proper ones.
        """
        actions: list[RouterAction] = []
        refused_by, client.refused_by = client.refused_by, {}
        model, is_stored = client.request.model, bool(client.request.stored_id)
        for one, status in refused_by.items():
            worker = self._open.workers.get(one)
            if worker is None or status in _ABOUT_KEYS:
                continue
            if not is_well or is_stored or (model and model not in worker.models):
                self._open.workers.answered(worker, status, now_s)
            else:
                reason = (
                    f"it answered with status {status} to a request that another worker has answered well"
                )
                self._open.workers.failed(worker, reason, now_s)
            actions += self._membership.request_left(worker, now_s)
        return actions
