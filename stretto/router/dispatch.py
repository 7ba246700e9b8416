"""Where a request goes: to a worker that the placement policy chooses, or into a queue."""

from __future__ import annotations

from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest
from stretto.router.loads import has_room
from stretto.router.messages import RouterAction, Ticket
from stretto.router.offline_at_workers import is_offline_request
from stretto.router.open_requests import OpenRequests
from stretto.router.routed_client import Client
from stretto.router.split_requests import describe_part


class Dispatch:
    """Choices of workers for the requests of a router."""

    def __init__(self, requests: OpenRequests) -> None:
        self._open = requests

    def place(self, ticket: Ticket, now_s: float) -> list[RouterAction]:
        """Send a request to a worker, or let it wait."""
        client = self._open.clients[ticket]
        describe_part(client, self._open.workers)
        choice = self.choose(client, client.placed, now_s)
        if choice is None:
            self._open.wait(ticket, self._open.eligible.queue_name(client, now_s))
            self._open.note_rest(client, now_s)
            self._open.note_offline(now_s)
            return []
        return self.take(ticket, choice, now_s)

    def choose(self, client: Client, placed: PlacementRequest, now_s: float) -> Choice | None:
        """Return the worker of a request, described as `placed`; None if it has to wait.

        While there are offline requests, others leave some workers to them, but not those that hold most of
        their prompt.
        """
        among = self._open.eligible.among(client, now_s)
        choice = self._open.loads.choose(placed, now_s, among)
        if choice is None or not self.has_offline or is_offline_request(placed):
            return choice
        used = self._open.loads.offline.used_by_others(among, now_s)
        if used is None or choice.instance in used or 2 * choice.held_tokens > placed.num_tokens:
            return choice
        return self._open.loads.choose(placed, now_s, used) or choice

    @property
    def has_offline(self) -> bool:
        """Whether offline requests wait or run."""
        return self._open.num_offline_waiting > 0 or self._open.loads.has_offline

    def take(self, ticket: Ticket, choice: Choice, now_s: float) -> list[RouterAction]:
        """Send a request to the worker that was chosen for it, or let it wait there."""
        placed = self._open.clients[ticket].placed
        if (
            self._open.placement.binds == "late"
            or self.can_start(choice, placed)
            or is_offline_request(placed)  # goes where it begins, or waits
        ):
            return [self._open.send(ticket, choice, now_s)]
        self._open.bind(ticket, choice)
        self._open.note_rest(self._open.clients[ticket], now_s)
        return []

    def can_start(self, choice: Choice, placed: PlacementRequest) -> bool:
        """Return whether a request can run at once at the worker that was chosen for it."""
        view = self._open.loads.table.get(choice.instance)
        return view is not None and not view.num_waiting and has_room(view, placed)
