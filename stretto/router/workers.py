"""The states of the workers, with the circuit breaker of each: a state machine without IO.

A worker is an instance of a fleet (`cluster/fleet.py`) that somebody else starts and stops. Rules beyond
those of the fleet:

- A worker is `starting` until it first passes a health check, which tells its models too.
- A lost connection, a timeout or a failed health check makes it `suspect` at once; `max_failures` answers in
  a row with status 5xx do so too. Answers with status 4xx are no failures.
- A suspect worker gets no requests (one at a time if no other worker serves). It is checked after a delay
  that grows with each suspicion. When it passes, it serves *on trial*: one request at a time. A first answer
  ends the trial; a failure makes it suspect again at once.
- A worker that refuses the router's own key with status 401 is suspect at once; status 403, which may be
  about one request alone, counts as status 5xx does.
- A worker that answers with status 429 rests: for some time it gets no requests. If the key is the client's
  own, it gets no requests with that key.
- A worker without a key in its settings *wants a key* from an answer with status 401 or 403 to a request that
  had none, until it answers such a request well. That changes nothing of its state, but it rests for requests
  without a key that another worker takes.
- An answer that refuses a request which another worker answers well counts as status 5xx does.
- A worker that drains gets no requests; with its last request it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from stretto.cluster.fleet import Fleet
from stretto.cluster.transitions import State, delay_s
from stretto.engines.openai_server.server import OpenAIServer
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.router.believable import model_tokens, rest_s
from stretto.router.keys import KeyRests
from stretto.router.learned_slots import LearnedSlots
from stretto.router.messages import WorkerId
from stretto.router.worker_config import WorkerConfig
from stretto.router.worker_url import server_of

_MOST_LISTED = 1000
"""Names of models, as clients give them, of which it is kept who lists them."""
_DEAD_CHECKS = 3
"""Failed health checks in a row after which requests that it has not begun to answer are sent elsewhere."""
KEY_HINT = "check its api_key, api_key_env or headers"
NO_KEY_HINT = "give its key as api_key or api_key_env"
_TAKING: tuple[State, ...] = ("serving", "suspect")
"""States in which a worker may get a request."""
MOST_TOKENS = 2**20
"""Longest prompt and answer of a worker that tells neither its models' length nor the size of its memory."""


@dataclass(slots=True)
class Worker:
    """One server behind the router.

    Attributes:
        server: address by which routers name it to each other.
        models: entries of its list of models, by name; empty until they are known.
        kv_tokens: number of tokens that may be in flight there; None sets no limit.
        num_failures: number of answers with status 5xx since the last good one.
        num_failed_checks: number of health checks that failed since the last that passed.
        on_trial: whether it gets one request at a time, because it was suspect.
        shares_tokenizer: whether its tokenizer is known to be the router's.
        shares_template: whether its chat template is, too.
        num_miscounted: number of chats of which it has counted other tokens than the router.
        slots: what is learned of how many requests it runs at once.
        probe_s: time from which a suspect worker may be tried again.
        rests_until_s: time until which it gets no requests, because it has answered with status 429.
        key_rests: the same for single keys of clients, and for requests without one ("").
        wants_key: whether it has refused the last request without a key that it has answered.
        reason: why it is suspect.
    """

    id: WorkerId
    config: WorkerConfig
    server: str
    state: State = "starting"
    models: Mapping[str, object] = field(default_factory=dict)
    kv_tokens: int | None = None
    num_failures: int = 0
    num_failed_checks: int = 0
    on_trial: bool = False
    shares_tokenizer: bool = False
    shares_template: bool = False
    num_miscounted: int = 0
    slots: LearnedSlots = field(default_factory=LearnedSlots)
    probe_s: float = 0.0
    rests_until_s: float = 0.0
    key_rests: KeyRests = field(default_factory=KeyRests)
    wants_key: bool = False
    reason: str = ""

    @property
    def num_slots(self) -> int:
        """Number of requests that may run there at once: one on trial, else as many as it runs itself, as far
        as is known, and no more than its settings say.
        """
        if self.on_trial:
            return 1
        limit = self.slots.limit
        return self.config.num_slots if limit is None else min(limit, self.config.num_slots)

    @property
    def is_doubted(self) -> bool:
        """Whether the worker has failed and not answered since."""
        return self.on_trial or self.state == "suspect"

    def most_tokens(self, model: str) -> int:
        """Return the longest prompt and answer together that the worker can hold for a model."""
        limit = model_tokens(self.models.get(model)) or MOST_TOKENS
        return limit if self.kv_tokens is None else min(limit, self.kv_tokens)

    def free_s(self, client_key: str) -> float:
        """Return the time from which it gets requests with a client's key; "" stands for no key."""
        if not client_key:
            return self.rests_until_s
        return max(self.rests_until_s, self.key_rests.until_s(client_key))

    def refuses_keyless(self, now_s: float) -> bool:
        """Return whether it has lately refused a request for want of a key, and answered none well since."""
        return self.wants_key and self.key_rests.until_s("") > now_s

    @property
    def takes_requests(self) -> bool:
        """Whether a request may be sent to the worker: it serves, or is suspect and may be tried."""
        return self.state in _TAKING


class Workers:
    """The servers behind a router, each with its state and its circuit breaker.

    Args:
        max_failures: answers with status 5xx in a row that make a worker suspect.

    Attributes:
        has_roles: whether one has been there that takes parts of requests alone.
        cuts_priority: whether one knows no field `priority`.
        rests_until_s: time from which none rests any more, for all requests or for a key.
    """

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._fleet = Fleet("router", count())
        self._workers: dict[WorkerId, Worker] = {}
        self.has_roles = self.cuts_priority = False
        self.rests_until_s = 0.0
        self._taking: list[Worker] | None = None
        self._listing: dict[str, list[Worker]] = {}

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers that are not gone, in the order in which they were added."""
        return iter(self._workers.values())

    def taking(self) -> Sequence[Worker]:
        """Return the workers to which a request may be sent: they serve, or are suspect and may be tried."""
        if self._taking is None:
            self._taking = [worker for worker in self._workers.values() if worker.state in _TAKING]
            self._listing.clear()
        return self._taking

    def listing(self, model: str) -> Sequence[Worker]:
        """Return those of them that list a model."""
        if self._taking is None:
            self.taking()
        found = self._listing.get(model)
        if found is None:
            found = [worker for worker in self.taking() if model in worker.models]
            if len(self._listing) >= _MOST_LISTED:
                self._listing.clear()
            self._listing[model] = found
        return found

    def get(self, worker: WorkerId) -> Worker | None:
        """Return a worker; None if it is gone or never was."""
        return self._workers.get(worker)

    def add(self, config: WorkerConfig) -> Worker:
        """Add a server, which serves after its first passed health check.

        Raises:
            ConfigError: there is a worker with this address.
        """
        for other in self:
            if server_of(other.config.url) == server_of(config.url) and other.state != "draining":
                raise ConfigError(f"worker {config.url} is there already, as worker {other.id}")
        replica = Replica(OpenAIServer, config, runs_in="loop", profile=config.profile)
        self._fleet.add(replica, 0.0)
        server = server_of(config.url)[0]
        worker = Worker(self._fleet.live[-1], config, server, kv_tokens=config.kv_tokens)
        self._workers[worker.id] = worker
        self.has_roles |= config.role != "mixed"
        self._changed()
        return worker

    def passed(self, worker: Worker, models: Mapping[str, object], now_s: float) -> None:
        """Handle a health check that a worker passed, with the models that it lists: it serves, on trial if
        it was suspect.
        """
        worker.models, self._taking = models, None
        worker.num_failed_checks = 0
        if worker.state == "suspect":
            worker.on_trial = True
        self._fleet.ready(worker.id, now_s, on_trial=worker.on_trial)
        self._note_state(worker)

    def check_failed(self, worker: Worker, reason: str, now_s: float) -> bool:
        """Handle a failed health check; return whether the worker counts as dead, so that requests that it
        has not begun to answer are to be sent elsewhere.
        """
        worker.num_failed_checks += 1
        self.suspect(worker, reason, now_s)
        return worker.num_failed_checks >= _DEAD_CHECKS

    def answered(
        self,
        worker: Worker,
        status: int,
        now_s: float,
        retry_after_s: float | None = None,
        client_key: str = "",
    ) -> None:
        """Handle an answer with a status: a good one, 4xx included, closes the circuit breaker. After status
        429 the worker rests, for as long as it says, within a limit, and for `client_key` alone if that is
        not "".
        """
        if status == 429:
            until_s = now_s + rest_s(retry_after_s)
            if client_key:
                self.rest(worker, client_key, until_s)
            else:
                worker.rests_until_s = max(worker.rests_until_s, until_s)
                self.rests_until_s = max(self.rests_until_s, until_s)
        if status >= 500:
            self.failed(worker, f"it answered with status {status}", now_s)
        else:
            worker.wants_key &= bool(client_key) or status >= 400
            worker.num_failures = 0
            worker.on_trial = False
            if worker.state == "suspect":
                self._fleet.ready(worker.id, now_s)
            self._fleet.answered(worker.id)
            self._note_state(worker)

    def rest(self, worker: Worker, client_key: str, until_s: float) -> None:
        """Give a worker nothing with a client's key, or nothing without one (""), before a time."""
        worker.key_rests.rest(client_key, until_s)
        self.rests_until_s = max(self.rests_until_s, until_s)

    def failed(self, worker: Worker, reason: str, now_s: float) -> None:
        """Count an answer that tells of a failure; several in a row make a worker suspect."""
        worker.num_failures += 1
        if worker.num_failures >= self._max_failures or worker.is_doubted:
            self.suspect(worker, reason, now_s)

    def suspect(self, worker: Worker, reason: str, now_s: float) -> None:
        """Make a worker suspect, because it may be down; a worker that has not started stays so."""
        worker.reason = reason
        worker.on_trial = False
        worker.slots = LearnedSlots()
        if worker.state == "starting":
            worker.probe_s = now_s + delay_s(worker.num_failed_checks)
        else:
            self._fleet.suspected(worker.id, reason, now_s)
            self._note_state(worker)

    def drain(self, worker: Worker, now_s: float) -> None:
        """Give a worker no more requests. One that has not started is gone."""
        if worker.state != "draining":
            self._fleet.drain(worker.id, "finish", now_s)
            self._note_state(worker)

    def gone(self, worker: Worker, now_s: float) -> None:
        """Forget a worker that drains and has no more requests."""
        self._fleet.idle(worker.id)
        self._fleet.stopped(worker.id, now_s)
        del self._workers[worker.id]
        self._changed()

    def check_invariants(self) -> None:
        """Check that states are those of the fleet. For tests."""
        self._fleet.check_invariants()
        assert [*self._workers] == [*self._fleet.live]
        assert all(one.state == self._fleet.state[one.id] for one in self)

    def _changed(self) -> None:
        """Note that there are other workers than before."""
        self._taking = None
        self.cuts_priority = any(not worker.config.takes_priority for worker in self)

    def _note_state(self, worker: Worker) -> None:
        state = self._fleet.state[worker.id]
        if state == "suspect":
            worker.probe_s = self._fleet.probe_s(worker.id)
        if state != worker.state:
            worker.state, self._taking = state, None
