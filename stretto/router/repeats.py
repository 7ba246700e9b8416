"""Further attempts of a request: one after another that failed, or a second one beside one that is slow."""

from __future__ import annotations

from dataclasses import replace

from stretto.router.dispatch import Dispatch
from stretto.router.messages import NO_PROGRAM, Hedge, RouterAction, TakeHedge, Ticket
from stretto.router.open_requests import OpenRequests
from stretto.router.routed_client import Client
from stretto.router.split_requests import forget_prefill


class Repeats:
    """The attempts of a router's requests after their first one.

    - An attempt that fails before its first byte is repeated at a worker that has not been tried, until
      `max_attempts`. One that was suspect and serves again counts as not tried. Where all have been tried, a
      lost connection is followed by another try at any of them, and an answer with status 5xx is passed on.
    - A request that waits much longer for its first byte than others like it may be sent a second time
      (`hedges.py`). The second attempt is a request of its own here, which takes the place of the first if
      its answer begins first, or as soon as the first one fails, however that fails. It is never repeated.
    """

    def __init__(self, requests: OpenRequests, dispatch: Dispatch) -> None:
        self._open = requests
        self._dispatch = dispatch

    def again(
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
        client = self._open.clients[ticket]
        forget_prefill(client)
        client.stays_whole |= client.num_attempts >= self._open.config.max_attempts - 1
        if client.hedge_of is not None:
            return [self._open.refuse(ticket, 502, reason, None, now_s)]
        if client.hedge is not None:
            return [self.take_hedge(ticket)]
        homes = self._open.homes
        if (home := client.home.worker) is not None and not homes.is_there(home):
            return [self._open.refuse(ticket, 404, homes.problem(client.request, home), None, now_s)]
        may_repeat = client.request.is_repeatable or not was_sent
        rest_s = self._open.eligible.rest_s(client, now_s)
        if client.num_attempts >= self._open.config.max_attempts or not may_repeat:
            return [self._open.refuse(ticket, 502, reason, rest_s, now_s)]
        client_key, able = client.request.client_key, self._open.eligible.able(client)[0]
        able_now = [worker.id for worker in able if worker.free_s(client_key) <= now_s]
        if client.has_tried(able_now):
            if not may_return:
                return [self._open.refuse(ticket, 502, reason, rest_s, now_s)]
            client.tried.clear()
        return self._dispatch.place(ticket, now_s)

    def take_hedge(self, ticket: Ticket) -> TakeHedge:
        """Put the second attempt of a request in the place of the first, which is over."""
        client = self._open.clients[ticket]
        hedge, client.hedge = client.hedge, None
        assert hedge is not None, "it has a second attempt"
        client.running = running = self._open.clients.pop(hedge).running
        assert running is not None, "a second attempt never waits"
        del self._open.by_worker[running.worker][hedge]
        self._open.by_worker[running.worker][ticket] = None
        client.num_attempts += 1
        client.tried.add(running.worker)
        self._open.room.sent(ticket, running.worker)
        return TakeHedge(ticket)

    def hedge(self, ticket: Ticket, num_attempts: int, now_s: float) -> list[RouterAction]:
        """Send a request a second time if it still waits for its first byte, at a worker that has room."""
        client = self._open.clients.get(ticket)
        if client is None or client.running is None or client.num_attempts != num_attempts:
            return []
        if client.has_begun or client.has_head or client.hedge is not None:
            return []
        able, client_key = self._open.eligible.able(client)[0], client.request.client_key
        among = [
            worker.id
            for worker in able
            if worker.state == "serving"
            and worker.free_s(client_key) <= now_s
            and worker.id not in client.tried
        ]
        choice = self._open.loads.choose(client.placed, now_s, among) if among else None
        if (
            choice is None
            or not self._dispatch.can_start(choice, client.placed)
            or not self._open.hedges.take()
        ):
            return []
        hedge, first = next(self._open.tickets), client.running.worker
        request = replace(client.request, is_repeatable=False, may_hedge=False, program=NO_PROGRAM)
        self._open.clients[hedge] = Client(request, client.placed, client.arrived_s, now_s, hedge_of=ticket)
        client.hedge = hedge
        reason = f"worker {first} had not begun after {now_s - client.sent_s:.3g} s"
        return [Hedge(ticket, self._open.send(hedge, replace(choice, reason=reason), now_s))]
