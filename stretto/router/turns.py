"""Turns of the requests that wait: which go to a worker that has room, and which move to another queue."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from stretto.cluster.placement import Choice
from stretto.router.dispatch import Dispatch
from stretto.router.loads import has_room
from stretto.router.messages import RouterAction, Ticket, Withdraw, WorkerId
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.split_requests import describe_part
from stretto.router.waiting import QueueName, ticket_of
from stretto.router.workers import Worker

PAUSE = "the workers ask for a pause (status 429)"
_MAX_ASKED = 8
"""Waiting requests about which the policy is asked again after one event."""


class Turns:
    """The turns of the requests at a router."""

    def __init__(self, requests: OpenRequests, dispatch: Dispatch) -> None:
        self._open = requests
        self._dispatch = dispatch

    def queue_or_place(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Send a request that has come, or let it wait: behind others like it, if there are any."""
        client = self._open.clients[ticket]
        name = self._open.eligible.queue_name(client, now_s) if self._open.waiting.queues else ""
        if name not in self._open.waiting.queues:
            return self._dispatch.place(ticket, now_s)
        describe_part(client, self._open.workers)
        self._open.wait(ticket, name)
        self._open.note_rest(client, now_s)
        return []

    def release_held(self, now_s: float) -> list[RouterAction]:
        """Let what was held and has room now wait for its turn."""
        actions: list[RouterAction] = []
        for entered in self._open.room.released(now_s) if self._open.room.held else ():
            ticket: Ticket = entered.key  # type: ignore[assignment]
            client = self._open.clients[ticket]
            client.room_at, client.since_s = entered.instance, now_s
            actions += self.queue_or_place(ticket, now_s)
            if client.running is None:
                self._open.announce_waiting(ticket)
        return actions

    def fill(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Send what waits and fits now, when a worker has room."""
        actions = self.fill_unbound(now_s)
        if self._open.placement.binds != "late":
            actions += self._admit(worker, now_s)
            if self._open.placement.binds == "early":
                actions += self._attract(worker, now_s)
        return actions

    def fill_unbound(self, now_s: float) -> list[RouterAction]:
        """Send what waits at no worker and fits now."""
        actions: list[RouterAction] = []
        names = [name for name in self._open.waiting.queues if isinstance(name, str)]
        firsts = {name: self._open.waiting.first(name, now_s) for name in names}
        while firsts:
            name = min(firsts, key=firsts.__getitem__)  # type: ignore[arg-type]
            del firsts[name]
            if (chosen := self._choose_of(name, now_s)) is not None:
                self._open.dequeue(chosen[0], is_its_turn=True)
                actions += self._dispatch.take(*chosen, now_s)
                if (first := self._open.waiting.first(name, now_s)) is not None:
                    firsts[name] = first
        self._open.note_offline(now_s)
        return actions

    def freed(self, workers: Collection[WorkerId], now_s: float) -> list[RouterAction]:
        """Send what waits and fits now, when other routers' requests have ended at some workers; take offline
        requests off workers where theirs have come.
        """
        actions: list[RouterAction] = []
        for worker in dict.fromkeys(workers) if self._open.waiting.queues else ():
            actions += self.fill(worker, now_s)
        return actions + self.release_held(now_s) + self.withdraw_offline(now_s)

    def withdraw_offline(self, now_s: float) -> list[RouterAction]:
        """Take offline requests off workers where others have come; they wait again, and begin anew."""
        actions: list[RouterAction] = []
        if not self._open.loads.has_offline:
            return actions
        for ticket in self._open.loads.offline.in_the_way(now_s):
            client = self._open.clients.get(ticket)
            if client is None or client.has_begun or not client.request.is_repeatable:
                continue  # or another router withdraws it
            assert client.running is not None
            client.num_attempts -= 1
            client.tried.discard(client.running.worker)
            self._open.release(ticket, UNKNOWN, now_s)
            actions.append(Withdraw(ticket))
            self._open.wait(ticket, self._open.eligible.queue_name(client, now_s))
        if actions:
            self._open.note_offline(now_s)
        return actions

    def _choose_of(self, name: QueueName, now_s: float) -> tuple[Ticket, Choice] | None:
        """Return the request of a queue that goes next, and the worker that was chosen for it."""
        choice: Choice | None = None
        num_asked = 0

        def fits(ticket: Ticket) -> bool:
            nonlocal choice, num_asked
            num_asked += 1
            client = self._open.clients[ticket]
            if num_asked > _MAX_ASKED:
                return False
            choice = self._dispatch.choose(client, client.placed, now_s)
            return choice is not None

        ticket = self._open.waiting.choose(name, fits, now_s)
        return None if ticket is None or choice is None else (ticket, choice)

    def _admit(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Send what waits for a worker and fits there now."""
        view = self._open.loads.table.get(worker)

        def fits(ticket: Ticket) -> bool:
            return has_room(view, self._open.clients[ticket].placed)

        actions: list[RouterAction] = []
        while (ticket := self._open.waiting.choose(worker, fits, now_s)) is not None:
            bound = self._open.clients[ticket].bound
            assert bound is not None
            self._open.dequeue(ticket, is_its_turn=True)
            actions.append(self._open.send(ticket, bound[0], now_s))
        return actions

    def _attract(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Ask again about the heads of the longest queues, if a worker has room and an empty queue."""
        actions: list[RouterAction] = []
        view, num_asked = self._open.loads.table.get(worker), 0
        queues = self._open.waiting.queues
        bound = [name for name in queues if isinstance(name, int)]
        for name in sorted(bound, key=lambda name: -len(queues[name])):
            ahead_s = 0.0
            for ticket in self._open.waiting.heads(name, _MAX_ASKED - num_asked, now_s):
                if view is None or view.num_waiting or not view.room_tokens:
                    return actions
                num_asked += 1
                client = self._open.clients[ticket]
                assert client.bound is not None
                bound_to, seconds = client.bound[0].instance, client.bound[1]
                asked = replace(client.placed, bound_to=bound_to, ahead_s=ahead_s)
                choice = self._dispatch.choose(client, asked, now_s)
                if choice is None or choice.instance == bound_to:
                    ahead_s += seconds
                    continue
                self._open.dequeue(ticket)
                actions += self._dispatch.take(ticket, choice, now_s)
        return actions

    def unbind(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Place what waits for a worker again."""
        actions: list[RouterAction] = []
        for ticket in sorted(map(ticket_of, self._open.waiting.queues.get(worker, ()))):
            self._open.dequeue(ticket)
            actions += self._dispatch.place(ticket, now_s)
        return actions

    def limit_key(self, client_key: str, worker: Worker | None, now_s: float) -> list[RouterAction]:
        """Move what waits with a key for which a worker has just begun to rest, so that it keeps no other
        request waiting; refuse what all workers rest for.
        """
        actions: list[RouterAction] = []
        if not client_key or worker is None:
            return actions
        for ticket, name in [
            *dict.fromkeys(self._open.room, "").items(),
            *self._open.waiting.names().items(),
        ]:
            client = self._open.clients[ticket]
            if client.request.client_key != client_key:
                continue
            is_bound = client.bound is not None
            if (rest_s := self._open.eligible.rest_s(client, now_s)) is not None:
                actions.append(self._open.refuse(ticket, 429, PAUSE, rest_s, now_s))
            elif ticket in self._open.room:
                self._open.note_rest(client, now_s)
            elif name == worker.id if is_bound else name != self._open.eligible.queue_name(client, now_s):
                self._open.dequeue(ticket)
                actions += self._dispatch.place(ticket, now_s)
        return actions

    def end_key_rests(self, now_s: float) -> list[RouterAction]:
        """Send what waits and fits now, when the rest of a worker for a key has ended."""
        self._open.rest_ends_s = math.inf
        actions: list[RouterAction] = []
        for worker in self._open.workers:
            if worker.state == "serving":
                actions += self.fill(worker.id, now_s)
        for ticket in self._open.waiting.names():
            self._open.note_rest(self._open.clients[ticket], now_s)
        return actions
