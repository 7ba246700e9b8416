"""The worker that a request has to go to, because it keeps what the request names.

The *home* of a request is that worker. What no worker is known to keep, such as what was stored before the
router began, is looked for: each worker that serves is asked, until one does not answer with status 404.
"""

from __future__ import annotations

from stretto.model.record import record
from stretto.router.messages import RoutedRequest, WorkerId
from stretto.router.stored_ids import StoredIds
from stretto.router.workers import Workers


@record
class Home:
    """Where a request has to go.

    Attributes:
        worker: worker that keeps what it names; None if that is not known, or if it names nothing.
        is_sought: whether it names something that no worker is known to keep.
        problem: why what it names cannot be had; "" if it may be.
    """

    worker: WorkerId | None = None
    is_sought: bool = False
    problem: str = ""


def unknown(request: RoutedRequest) -> str:
    """Say that nobody keeps what a request names."""
    return f"no worker keeps {request.stored_id!r}"


ANYWHERE = Home()
_SOUGHT = Home(is_sought=True)


class Homes:
    """The homes of what clients have stored.

    Args:
        most: number of ids that are remembered.
    """

    def __init__(self, workers: Workers, most: int) -> None:
        self._workers = workers
        self._ids = StoredIds(most)
        self._urls: dict[WorkerId, str] = {}

    def learn(self, owner: str, stored_id: str, worker: WorkerId, *, is_made: bool = False) -> None:
        """Note that a worker keeps what has an id; `is_made` is whether its owner has just made it."""
        if (found := self._workers.get(worker)) is not None:
            self._urls[worker] = found.config.url
            self._ids.learn(owner, stored_id, worker, is_made=is_made)

    def of(self, request: RoutedRequest) -> Home:
        """Return where a request has to go.

        A worker that is gone may be back under another number, at the same URL.
        """
        if not request.stored_id:
            return ANYWHERE
        worker = self._ids.find(request.owner, request.stored_id)
        is_tenants = request.tenant is not None  # else the key with which the client comes tells the worker
        if is_tenants and self._ids.is_of_another(request.owner, request.stored_id):
            return Home(problem=unknown(request))
        if worker is None:
            return _SOUGHT
        if self.is_there(worker):
            return Home(worker)
        for other in self._workers:
            if other.config.url == self._urls[worker] and self.is_there(other.id):
                self._ids.learn(request.owner, request.stored_id, other.id)
                self._urls[other.id] = other.config.url
                return Home(other.id)
        return Home(problem=self.problem(request, worker))

    def is_there(self, worker: WorkerId) -> bool:
        """Return whether a worker may still get requests, now or later."""
        found = self._workers.get(worker)
        return found is not None and found.state != "draining"

    def problem(self, request: RoutedRequest, worker: WorkerId) -> str:
        """Say why what a request names cannot be had, as the worker that keeps it leaves or has left."""
        how = "is gone" if self._workers.get(worker) is None else "takes no more requests"
        return f"{request.stored_id!r} is kept by worker {worker} alone, which {how}"

    def check_invariants(self) -> None:
        """Check the table of ids. For tests."""
        self._ids.check_invariants()
