"""Workers of a router that come, pass and fail checks, and leave; and what that does to requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stretto.cluster.held_blocks import loading_shares
from stretto.model.errors import ConfigError
from stretto.router.held_blocks import HeldByWorkers
from stretto.router.learned_slots import JUST_SENT_S
from stretto.router.messages import Check, Cut, RouterAction, Stop, WorkerGone, WorkerId
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.repeats import Repeats
from stretto.router.turns import Turns
from stretto.router.worker_config import WorkerConfig
from stretto.router.workers import Worker


class Membership:
    """The workers that come to a router and leave it.

    Methods are events, as those of `RouterState` are.
    """

    def __init__(self, requests: OpenRequests, turns: Turns, repeats: Repeats, caches: HeldByWorkers) -> None:
        self._open = requests
        self._turns = turns
        self._repeats = repeats
        self._caches = caches
        self._away: set[WorkerId] = set()

    def add(self, config: WorkerConfig) -> Worker:
        """Add a worker, which gets requests after its first passed health check.

        Raises:
            ConfigError: there is a worker with this address.
        """
        worker = self._open.workers.add(config)
        self._caches.set_loading(worker.id, loading_shares(config.profile))
        return worker

    def check_passed(
        self, worker: WorkerId, models: Mapping[str, object], kv_tokens: int | None, now_s: float
    ) -> list[RouterAction]:
        """Handle a health check that a worker passed, with the models that it lists, by name, which are not
        changed any more, and the size of its KV memory if it tells.
        """
        if (found := self._open.workers.get(worker)) is None or found.state == "draining":
            return []
        found.kv_tokens = found.config.kv_tokens or kv_tokens
        self._open.workers.passed(found, models, now_s)
        self._open.loads.join(found)
        self._open.room.join(found)
        self.refresh(found)
        actions = [self._next_check(found, now_s), *self._turns.fill(worker, now_s)]
        return actions + self._turns.release_held(now_s)

    def check_failed(
        self, worker: WorkerId, reason: str, now_s: float, *, is_gone: bool = False
    ) -> list[RouterAction]:
        """Handle a failed health check. After several in a row, requests that the worker has not begun to
        answer are sent elsewhere.

        `is_gone` is whether nothing listens at its address: the process has ended, and with it what its cache
        held.
        """
        if (found := self._open.workers.get(worker)) is None:
            return []
        if is_gone:
            self._open.loads.forget(found)
            self._open.room.leave(worker)
        is_dead = self._open.workers.check_failed(found, reason, now_s)
        self.refresh(found)
        next_s = min(found.probe_s, now_s + self._open.config.health_interval_s)
        actions = [Check(worker, next_s), *self._turns.unbind(worker, now_s)]
        if is_dead:
            actions += self._move_unanswered(worker, reason, now_s)
        return actions + self._turns.release_held(now_s)

    def looked_at(
        self, worker: WorkerId, num_running: int, num_waiting: int, now_s: float
    ) -> list[RouterAction]:
        """Handle how many requests run and wait at a worker, as it tells itself. Of those that wait, the ones
        that it has just got tell nothing.
        """
        if (found := self._open.workers.get(worker)) is None or found.state != "serving":
            return []
        sent_s = [self._open.clients[ticket].sent_s for ticket in self._open.at(worker)]
        num_queued = max(0, num_waiting - sum(now_s - one_s < JUST_SENT_S for one_s in sent_s))
        if not found.slots.look(num_running, num_queued, are_held=bool(self._open.waiting)):
            return []
        self._open.loads.refresh(found)
        return self._turns.fill(worker, now_s) if self._open.waiting.queues else []

    def resize(self, worker: WorkerId, num_slots: int, now_s: float) -> list[RouterAction]:
        """Let at most `num_slots` requests run at a worker at once; those that run go on.

        Raises:
            ConfigError: there is no such worker, or it is no number of requests.
        """
        found = self._known(worker)
        found.config = replace(found.config, num_slots=num_slots)
        self._open.loads.refresh(found)
        return self._turns.fill(worker, now_s)

    def drain(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Give a worker no more requests; it is gone when it has answered those that it has.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        actions = self._leave(found, now_s)
        actions += [*self._turns.fill(worker, now_s), *self._retire(found, now_s)]
        return actions + self._turns.release_held(now_s)

    def remove(self, worker: WorkerId, now_s: float) -> list[RouterAction]:
        """Remove a worker at once: requests that it has not begun to answer are sent elsewhere, answers that
        have begun are cut.

        Raises:
            ConfigError: there is no such worker.
        """
        found = self._known(worker)
        actions = self._leave(found, now_s)
        actions += self._move_unanswered(worker, "the worker was removed", now_s)
        for ticket in self._open.at(worker):
            self._open.release(ticket, UNKNOWN, now_s)
            self._open.forget(ticket, now_s)
            actions.append(Cut(ticket, "the worker was removed"))
        actions += [*self._turns.release_held(now_s), *self._turns.fill(worker, now_s)]
        return actions + self._retire(found, now_s)

    def _leave(self, worker: Worker, now_s: float) -> list[RouterAction]:
        """Give a worker no more requests. Refuse what waits for it because it alone keeps what is named, and
        place the others that wait for it again.
        """
        self._open.workers.drain(worker, now_s)
        self._open.loads.leave(worker.id)
        self._open.room.leave(worker.id)
        refused: list[RouterAction] = [
            self._open.refuse(ticket, 404, self._open.homes.problem(client.request, worker.id), None, now_s)
            for ticket, client in list(self._open.clients.items())
            if client.home.worker == worker.id and client.running is None
        ]
        return refused + self._turns.unbind(worker.id, now_s)

    def request_left(self, worker: Worker | None, now_s: float) -> list[RouterAction]:
        """Do what follows when a request has left a worker."""
        actions: list[RouterAction] = []
        if worker is not None:
            self.refresh(worker)
            if worker.state == "draining":
                actions = self._retire(worker, now_s)
            elif worker.state == "suspect":
                next_s = min(worker.probe_s, now_s + self._open.config.health_interval_s)
                actions = [Check(worker.id, next_s), *self._turns.unbind(worker.id, now_s)]
            elif worker.state == "serving" and worker.rests_until_s > now_s:
                actions = [self._next_check(worker, now_s), *self._turns.unbind(worker.id, now_s)]
            elif self._open.waiting.queues:
                actions = self._turns.fill(worker.id, now_s)
        return actions + self._turns.release_held(now_s)

    def _next_check(self, worker: Worker, now_s: float) -> Check:
        """Return the check of a worker that serves, at the end of its rest if that comes first: then it gets
        what waits.
        """
        at_s = now_s + self._open.config.health_interval_s
        return Check(worker.id, min(at_s, worker.rests_until_s) if worker.rests_until_s > now_s else at_s)

    def _retire(self, worker: Worker, now_s: float) -> list[RouterAction]:
        if self._open.at(worker.id):
            return []
        self._open.by_worker.pop(worker.id, None)
        self._caches.forget(worker.id)
        self._open.workers.gone(worker, now_s)
        return [WorkerGone(worker.id)]

    def _move_unanswered(self, worker: WorkerId, reason: str, now_s: float) -> list[RouterAction]:
        actions: list[RouterAction] = []
        for ticket in self._open.at(worker):
            if not self._open.clients[ticket].has_begun:
                self._open.release(ticket, UNKNOWN, now_s)
                actions.append(Stop(ticket, reason))
                actions += self._repeats.again(ticket, reason, now_s)
        return actions

    def _known(self, worker: WorkerId) -> Worker:
        if (found := self._open.workers.get(worker)) is None:
            known = ", ".join(str(one.id) for one in self._open.workers) or "none"
            raise ConfigError(f"there is no worker {worker}; the numbers of the workers are: {known}")
        return found

    def refresh(self, worker: Worker) -> None:
        """Bring loads and room in step with the state of a worker. One that serves again counts as not tried
        by requests that have failed there before.
        """
        self._open.loads.refresh(worker)
        if worker.state == "suspect":
            self._away.add(worker.id)
            self._open.room.suspend(worker.id)
        elif worker.state == "serving":
            if worker.id in self._away:
                self._away.remove(worker.id)
                for client in self._open.clients.values():
                    if client.running is None or client.running.worker != worker.id:
                        client.tried.discard(worker.id)
            if not self._open.room.is_serving(worker.id):
                self._open.room.join(worker)
