"""Which workers may take a request, of those that a placement policy chooses from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stretto.router.messages import RoutedRequest, WorkerId
from stretto.router.routed_client import Client
from stretto.router.split_requests import able_for_part
from stretto.router.workers import Worker, Workers


class Eligible:
    """The workers that may take a request: its home, those that list its model, those that do not rest for
    its client's key, and those where it has not failed.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def able(self, client: Client) -> tuple[Sequence[Worker], int]:
        """Return the workers that take a request, also those that rest, and how many take any: its home, or
        those that list its model, or all if none does. Those that have refused it are left out while others
        remain.
        """
        model = client.request.model
        taking = self._workers.taking()
        if (home := client.home.worker) is not None:
            return [worker for worker in taking if worker.id == home], len(taking)
        able = (self._workers.listing(model) if model else taking) or taking
        if self._workers.has_roles:
            able = able_for_part(able, client)
        if refused_by := client.refused_by:
            able = [worker for worker in able if worker.id not in refused_by] or able
        return able, len(taking)

    def left(self, client: Client, now_s: float) -> list[Worker]:
        """Return the workers that take a request, have not refused it, and are not known to want a key that
        it lacks.
        """
        able, has_key = self.able(client)[0], bool(client.request.client_key)
        left = [worker for worker in able if worker.id not in client.refused_by]
        return [worker for worker in left if has_key or not worker.refuses_keyless(now_s)]

    def rest_s(self, client: Client, now_s: float) -> float | None:
        """Return the seconds until the first of the workers that take a request ends its rest; None if one
        does not rest, or if there is none.
        """
        ends_s = [worker.free_s(client.request.client_key) for worker in self.able(client)[0]]
        return min(ends_s) - now_s if ends_s and min(ends_s) > now_s else None

    def among(self, client: Client, now_s: float) -> Collection[WorkerId] | None:
        """Return the workers among which a request's worker is chosen; None stands for all.

        Workers where it has failed, or that want a key that it lacks, are among them only if no other is
        left.
        """
        able, num_taking = self.able(client)
        if now_s >= self._workers.rests_until_s and client.room_at is None and not client.tried:
            return None if len(able) == num_taking else [worker.id for worker in able]
        client_key = client.request.client_key
        among = [
            worker.id
            for worker in able
            if worker.rests_until_s <= now_s
            and not (client_key and worker.key_rests.until_s(client_key) > now_s)
        ]
        if not client_key and (wanting := [one.id for one in able if one.refuses_keyless(now_s)]):
            among = [worker for worker in among if worker not in wanting] or among
        if client.room_at is not None and self._has_room_at(client, among):
            return [client.room_at]
        if tried := client.tried:
            among = [worker for worker in among if worker not in tried] or among
        return None if len(among) == num_taking else among

    def takers(self, client: Client, now_s: float) -> Sequence[str]:
        """Return the addresses of the workers that serve and may take a request now; "" stands for all."""
        among, workers = self.among(client, now_s), [*self._workers]
        able = [one for one in workers if one.state == "serving" and (among is None or one.id in among)]
        return ("",) if len(able) == len(workers) else [one.server for one in able]

    def reporting(self, request: RoutedRequest) -> list[WorkerId]:
        """Return the workers in whose reports a request's token ids may be looked up.

        Reports are of the model itself, so that those who ask for an adapter find nothing there.
        """
        found = []
        for worker in self._workers:
            card = worker.models.get(request.model)
            is_same = worker.shares_template if request.chat else worker.shares_tokenizer or not request.text
            if is_same and isinstance(card, dict) and not card.get("parent"):
                found.append(worker.id)
        return found

    def queue_name(self, client: Client, now_s: float) -> str:
        """Return the name of the queue of a request that is bound to no worker: one for each listed model.

        Requests that are repeated, and those for whose key (or lack of one) a worker rests, have queues of
        their own, because fewer workers can take them; and those that are offline, because they keep nobody
        else waiting.
        """
        model, client_key = client.request.model, client.request.client_key
        is_listed = any(model in worker.models for worker in self._workers)
        is_limited = any(worker.key_rests.until_s(client_key) > now_s for worker in self._workers)
        name = f"{model if is_listed else ''}{'/again' if client.tried else ''}"
        if self._workers.has_roles:
            may_split = client.request.may_split and not client.stays_whole
            name = f"{name}/{'answer' if client.prefilled else 'split' if may_split else 'whole'}"
        if client.room_at is not None:
            name = f"{name}@{client.room_at}"
        if client.home.worker is not None:
            name = f"{name}/home {client.home.worker}"
        if client.placed.purpose.preference == "offline":
            name = f"{name}/offline"
        return f"{name}/limited" if is_limited else name

    def is_listed(self, model: str) -> bool:
        """Return whether a worker that takes requests lists a model."""
        return bool(self._workers.listing(model))

    def _has_room_at(self, client: Client, among: Collection[WorkerId]) -> bool:
        """Return whether the worker where the program of a request has room can take the request."""
        assert client.room_at is not None
        worker = self._workers.get(client.room_at)
        is_tried = client.room_at in client.tried
        return worker is not None and worker.state == "serving" and worker.id in among and not is_tried
