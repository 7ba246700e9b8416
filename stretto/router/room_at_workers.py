"""The gate before the router's queues: it holds requests of programs that have no room in the KV memory of
the workers (`cluster/room/room.py`).

Workers that list a model in common are one *pool*, with one account of who has room there. A worker that
lists models of several pools is in one of them. Requests whose model no worker lists are not held, unless
there is only one pool.

Prompts are counted here as the router estimates them, by their bytes. So the memory of a worker, and what it
counts in its answers, are divided by the tokens that its pool's prompts have for each estimated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from stretto.cluster.room.contexts import RoomRequest
from stretto.cluster.room.room import Entered, Room
from stretto.cluster.room.silences import Returns
from stretto.model.profile import UNKNOWN_LLM
from stretto.model.tasks import Usage
from stretto.router.announcing.wire import RoomThere
from stretto.router.messages import RoutedRequest, Ticket, WorkerId
from stretto.router.workers import Worker

_MOST_NAMES = 1000
"""Models of a worker by which its pool is found."""
_MOST_COUNTED = 1e6
"""Estimated tokens from which on all counts are halved, so that new prompts tell more than old ones."""
_LEAST_COUNTED = 1000
_LEAST_CHANGE = 0.02
"""Change of the tokens for each estimated one after which memories are counted anew."""
_WATCHED = 8
"""Number of programs of which the first request of one is made known in any case."""
_RATIOS = (0.1, 10.0)
"""Range of the tokens for each estimated one."""
_GIVEN_S = 3.0
"""Seconds for which a request of another router has room here before that router has said that it goes out.
Accounts may differ: two routers could wait for ever for each other's requests.
"""


@dataclass(slots=True, eq=False)
class _Pool:
    """Workers that list a model in common.

    Attributes:
        workers: the tokens that fit into the memory of each, as it says; None if it does not.
        is_sized: whether one of them says so.
        has_hits: whether an answer has said that its prompt was found in a cache.
        num_requests: requests that the room knows.
        ratio: tokens of prompts for each estimated one, by which the memories are counted.
        num_tokens, num_estimated: tokens of the prompts from which it is learned.
    """

    room: Room = field(default_factory=Room)
    models: dict[str, None] = field(default_factory=dict)
    workers: dict[WorkerId, int | None] = field(default_factory=dict)
    num_requests: int = 0
    ratio: float = 1.0
    num_tokens: float = 0.0
    num_estimated: float = 0.0
    is_sized: bool = False
    has_hits: bool = False

    def scaled(self, num_tokens: int) -> int:
        """Return how many estimated tokens stand for so many."""
        return max(1, round(num_tokens / self.ratio)) if num_tokens else 0

    def learn(self, num_tokens: int, num_estimated: int) -> None:
        """Learn from the length of a prompt, and count the memories anew if that changes much."""
        self.num_tokens += num_tokens
        self.num_estimated += num_estimated
        if self.num_estimated > _MOST_COUNTED:
            self.num_tokens /= 2
            self.num_estimated /= 2
        if self.num_estimated < _LEAST_COUNTED:
            return
        least, most = _RATIOS
        ratio = min(most, max(least, self.num_tokens / self.num_estimated))
        if abs(ratio / self.ratio - 1.0) > _LEAST_CHANGE:
            self.ratio = ratio
            for worker, size in self.workers.items():
                if size is not None:
                    self.room.resize(worker, self.scaled(size))


class RoomAtWorkers:
    """Who has room at the workers, and the requests that are held.

    Args:
        holds: whether requests are held at all.

    Attributes:
        shares_names: whether other routers tell of programs too, so that these go by names that all know.
        held: the requests that are held.
    """

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self.shares_names = False
        self._pools: list[_Pool] = []
        self._by_model: dict[str, _Pool] = {}
        self._of_worker: dict[WorkerId, _Pool] = {}
        self._serving: set[WorkerId] = set()
        self._of_ticket: dict[Ticket, _Pool] = {}
        self.held: dict[Ticket, RoomRequest] = {}
        self._plain_since_s: dict[Ticket, float] = {}  # of those held, in order
        self._given_s: dict[Ticket, float] = {}  # when room was given to what other routers hold, in order

    def __len__(self) -> int:
        """Return how many requests are held."""
        return len(self.held)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self.held

    def __iter__(self) -> Iterator[Ticket]:
        """Iterate over the requests that are held."""
        return iter(self.held)

    @property
    def wants_keys(self) -> bool:
        """Whether requests should tell the keys of their prompts, because memory is short somewhere."""
        return any(pool.room.wants_blocks for pool in self._pools)

    # --- workers

    def join(self, worker: Worker) -> None:
        """Let programs enter at a worker, which serves now."""
        if not self._holds or worker.config.role == "prefill":  # which keeps nothing of programs
            return
        pool = self._of_worker.get(worker.id) or self._new_pool_of(worker)
        if pool.workers.get(worker.id, worker.kv_tokens) != worker.kv_tokens:  # another process
            pool.room.leave(worker.id)
        self._of_worker[worker.id] = pool
        pool.workers[worker.id] = size = worker.kv_tokens
        pool.is_sized = any(one is not None for one in pool.workers.values())
        for name in islice(worker.models, _MOST_NAMES):
            if self._by_model.setdefault(name, pool) is pool:
                pool.models[name] = None
        prefill_s = worker.config.profile.per_unit_s or UNKNOWN_LLM.per_unit_s
        pool.room.join(worker.id, None if size is None else pool.scaled(size), prefill_s)
        self._serving.add(worker.id)

    def is_serving(self, worker: WorkerId) -> bool:
        """Return whether programs may enter at a worker."""
        return worker in self._serving or not self._holds

    def suspend(self, worker: WorkerId) -> None:
        """Let nothing enter at a worker that may be down."""
        self._serving.discard(worker)
        if (pool := self._of_worker.get(worker)) is not None:
            pool.room.suspend(worker)

    def leave(self, worker: WorkerId) -> None:
        """Forget what has room at a worker that takes no more requests, or whose cache is empty."""
        if (pool := self._of_worker.pop(worker, None)) is None:
            return
        self._serving.discard(worker)
        pool.room.leave(worker)
        del pool.workers[worker]
        pool.is_sized = any(one is not None for one in pool.workers.values())
        self._drop_empty(pool)

    # --- requests

    def arrive(self, ticket: Ticket, request: RoutedRequest, num_output: int, now_s: float) -> Entered | None:
        """Take note of a request that arrives. Return it if it may go out now; if not, it is held.

        What is offline is never held: it gives way to others anyway. Where workers tell neither how much they
        hold nor what prompts have found there, nothing limits their memory, and nothing is followed. While
        nothing is held and nothing has room, what belongs to no program is not made known to the room.
        Neither are first requests of programs that are not likely to go on, but for one of `_WATCHED`, by
        which it is noticed when that changes.
        """
        pool = self._pool_of(request.model)
        if pool is None or request.objective == "offline":
            return Entered(ticket)
        if not pool.is_sized and (request.key is None or not pool.has_hits):
            return Entered(ticket)
        if _is_left_out(ticket, request, pool.room):
            return Entered(ticket)
        described = self._described(pool, ticket, request, num_output)
        entered = pool.room.arrive(described, now_s)
        if entered is None:
            self.held[ticket] = described
            if request.step is None:
                self._plain_since_s[ticket] = now_s
        return entered

    def follow(
        self,
        ticket: Ticket,
        request: RoutedRequest,
        num_output: int,
        there: RoomThere,
        worker: WorkerId | None,
        now_s: float,
    ) -> None:
        """Take note of a request that another router has sent to a worker, or that waits there if that is
        None, and of the room of its program by the account `there`.
        """
        self._given_s.pop(ticket, None)
        if (pool := self._of_ticket.get(ticket)) is None:  # else it may go to a worker of another pool
            pool = self._pool_of(request.model) if worker is None else self._of_worker.get(worker)
            if pool is None or not pool.workers:
                return
        described = self._described(pool, ticket, request, num_output)
        if there == "held":
            pool.room.follow_held(described, now_s)
        else:
            pool.room.follow(described, worker, now_s, is_inside=there == "inside")

    def _described(self, pool: _Pool, ticket: Ticket, request: RoutedRequest, num_output: int) -> RoomRequest:
        """Return a request as the room of a pool knows it, which counts it from now on."""
        key, program = request.key, request.program.name
        if pool.is_sized and not pool.room.wants_blocks:
            key = None  # the program that it names is believed
        pool.num_requests += ticket not in self._of_ticket
        self._of_ticket[ticket] = pool
        return RoomRequest(
            ticket,
            self._name_of(request) if program else ticket,
            request.model,
            request.num_tokens,
            () if key is None else key.blocks,
            1 if key is None else key.block_tokens,
            pool.scaled(num_output),
            _returns(request),
            not program or request.program.is_final,
        )

    def _name_of(self, request: RoutedRequest) -> tuple[str, str]:
        """Return the name of a request's program in rooms."""
        program = request.program
        return request.owner, (program.shared if self.shares_names else "") or program.name

    def place_of(self, ticket: Ticket) -> RoomThere:
        """Return whether the program of a request has room at a worker, or whether nothing is known of it."""
        pool = self._of_ticket.get(ticket)
        if pool is None:
            return "unknown"
        if ticket in self.held:
            return "held"
        return "inside" if pool.room.is_inside(ticket) else "outside"

    def released(self, now_s: float) -> Iterator[Entered]:
        """Yield the requests that were held and may go out now."""
        if not self.held:
            return
        self._take_back(now_s)
        for pool in self._pools:
            if pool.room.held:
                for entered in pool.room.admit(now_s):
                    ticket: Ticket = entered.key  # type: ignore[assignment]
                    if self.held.pop(ticket, None) is None:
                        self._given_s[ticket] = now_s  # what another router holds, that one sends
                        continue
                    self._plain_since_s.pop(ticket, None)
                    yield entered

    def _take_back(self, now_s: float) -> None:
        """Take room back that was given to requests which their routers have not sent for too long."""
        while self._given_s:
            ticket, given_s = next(iter(self._given_s.items()))
            if now_s < given_s + _GIVEN_S:
                return
            del self._given_s[ticket]
            self._of_ticket[ticket].room.hold_again(ticket, now_s)

    def sent(self, ticket: Ticket, worker: WorkerId) -> None:
        """Note that a request was sent to a worker."""
        if (pool := self._of_ticket.get(ticket)) is not None:
            pool.room.sent(ticket, worker)

    def ended(
        self,
        ticket: Ticket,
        request: RoutedRequest,
        usage: Usage | None,
        now_s: float,
        *,
        was_refused: bool = False,
    ) -> None:
        """Note that a request has left the router; `usage` is given with an answer, and `was_refused` if that
        is an error.
        """
        self.held.pop(ticket, None)
        self._plain_since_s.pop(ticket, None)
        self._given_s.pop(ticket, None)
        if (pool := self._of_ticket.pop(ticket, None)) is None:
            if usage is not None and usage.num_cached_tokens and (pool := self._pool_of(request.model)):
                pool.has_hits = True
            return
        pool.num_requests -= 1
        if usage is not None:
            pool.learn(usage.num_prompt_tokens, request.num_tokens)
            counts = usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens
            usage = Usage(*map(pool.scaled, counts))
        pool.room.ended(ticket, now_s, usage, was_refused=was_refused)
        if request.program.is_final:
            pool.room.finished(self._name_of(request))
        self._drop_empty(pool)

    def finished(self, tenant: str, program: str) -> None:
        """Note that a program of a tenant makes no more requests, where somebody says so."""
        for pool in self._pools:
            pool.room.finished((tenant, program))

    def reason(self, ticket: Ticket) -> str:
        """Say why a request is held."""
        room = self._of_ticket[ticket].room
        holding = room.held.get(ticket)
        assert holding is not None
        return f"its program needs {holding.need:.0f} tokens of KV memory; {room.reason()}"

    def wait_s(self, ticket: Ticket, now_s: float) -> float:
        """Return the predicted seconds until a request that is held has room."""
        return self._of_ticket[ticket].room.wait_s(now_s)

    def overdue(self, limit_s: float, now_s: float) -> list[Ticket]:
        """Return the plain requests that have been held for too long."""
        late: list[Ticket] = []
        for ticket, since_s in self._plain_since_s.items():
            if now_s < since_s + limit_s:
                break
            late.append(ticket)
        return late

    def due_s(self, limit_s: float) -> float | None:
        """Return the time at which `released` or `overdue` should be asked though nothing happens."""
        if not self.held:
            return None
        dues = [pool.room.due_s() for pool in self._pools]
        dues += [since_s + limit_s for since_s in islice(self._plain_since_s.values(), 1)]
        dues += [given_s + _GIVEN_S for given_s in islice(self._given_s.values(), 1)]
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def claimed(self, worker: WorkerId, now_s: float) -> tuple[int, int | None]:
        """Return how many tokens programs take of a worker's memory, and how many it is believed to hold;
        None if that is not known.
        """
        pool = self._of_worker.get(worker)
        room = None if pool is None else pool.room.instances.get(worker)
        if pool is None or room is None:
            return 0, None
        pool.room.look(now_s)
        size = room.belief.tokens * pool.ratio
        return round(pool.room.claimed()[worker] * pool.ratio), None if size > 1e15 else round(size)

    def check_invariants(self) -> None:
        """Check all rooms, and that what they hold is held here. For tests."""
        for pool in self._pools:
            pool.room.check_invariants()
            assert pool.room.instances.keys() == pool.workers.keys()
            assert pool.num_requests == sum(one is pool for one in self._of_ticket.values())
            assert all(self._by_model[name] is pool for name in pool.models)
        held = {one.key for pool in self._pools for one in pool.room.held}
        assert self.held.keys() <= held
        assert all(one in self.held or one in self._of_ticket for one in held)
        assert self.held.keys() <= self._of_ticket.keys()
        assert self._plain_since_s.keys() <= self.held.keys()
        assert self._given_s.keys() <= self._of_ticket.keys() - held

    # --- inside

    def _pool_of(self, model: str) -> _Pool | None:
        """Return the pool of the workers that list a model; if it is no name that a worker lists, the only
        pool there is.
        """
        found = self._by_model.get(model)
        return self._pools[0] if found is None and len(self._pools) == 1 else found

    def _new_pool_of(self, worker: Worker) -> _Pool:
        """Return the pool of a worker that joins: that of a model that it lists, or a new one."""
        for name in islice(worker.models, _MOST_NAMES):
            if (pool := self._by_model.get(name)) is not None:
                return pool
        pool = _Pool()
        self._pools.append(pool)
        return pool

    def _drop_empty(self, pool: _Pool) -> None:
        """Forget a pool without workers, when the last of its requests has left."""
        if not pool.workers and not pool.num_requests and pool in self._pools:
            self._pools.remove(pool)
            for name in pool.models:
                del self._by_model[name]


def _is_left_out(ticket: Ticket, request: RoutedRequest, room: Room) -> bool:
    """Return whether a request need not be made known to a room."""
    program = request.program
    if room.is_guarded:
        return False
    if not program.name:
        return True
    is_watched = program.has_returned or ticket % _WATCHED == 0
    return not is_watched and room.is_known_to_stay_away(request.model, _returns(request))


def _returns(request: RoutedRequest) -> Returns:
    """Return whether a request's program is expected to come back while nothing is known of its kind.

    Of a first request of a plain client nobody knows. If many agents began at once and none was held, the
    workers would compute their prompts for long, and nothing of them would be left in the memory. If they are
    chats instead, that is learned from the first answers, and until then the memory is full all the same.
    """
    program = request.program
    if program.name and program.has_returned:
        return "likely"
    return "perhaps" if program.name and request.step is None else "unlikely"
