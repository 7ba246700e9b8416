"""The requests of other routers, counted as if they were this router's own: in the loads of the workers, in
the index of what these hold, and in the room of their KV memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import count

from stretto.cluster.placement import Choice, Dispatched, Ended
from stretto.cluster.placement_request import PlacementRequest, PromptKey, Purpose
from stretto.cluster.prefix_hashes import PackedHashes
from stretto.cluster.prompt_keys import BYTES
from stretto.model.tasks import Usage
from stretto.router.announcing.wire import (
    MOST_RUNNING,
    EndedRecord,
    LeftRecord,
    PastPrompt,
    SentRecord,
    WaitingRecord,
)
from stretto.router.loads import RunningAtWorker
from stretto.router.messages import BY_CLIENT, NamedProgram, RoutedRequest, Ticket, WorkerId, WorkerUsage
from stretto.router.open_requests import UNKNOWN, OpenRequests
from stretto.router.peers.shares import Waiting, kept, parts
from stretto.router.workers import Worker


class PeerRequests:
    """Counts the requests of other routers at the workers of this one.

    Their tickets are negative, so that they are never taken for requests of this router.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self._open = requests
        self._tickets = count(-1, -1)
        self._known: dict[tuple[str, int], tuple[Ticket, RoutedRequest]] = {}
        """The requests that the account of room knows, by router and number."""
        self._latest: dict[tuple[str, str], tuple[str, int]] = {}
        """The latest of them of each program that its client names, by owner and name."""
        self._workers: dict[str, WorkerId] = {}

    def start(self, origin: str, record: SentRecord, now_s: float) -> RunningAtWorker | None:
        """Count a request as running; return it, or None if its worker is not known here."""
        worker = self._worker(record.worker)
        if worker is None or self._open.loads.table.get(worker.id) is None:
            self._leave((origin, record.request), None, now_s, was_refused=False)  # held nowhere any more
            return None
        ticket: Ticket = next(self._tickets)
        key = _key_of(record.blocks)
        placed = PlacementRequest(
            record.num_tokens,
            record.num_output,
            keys={} if key is None else {BYTES.name: key},
            purpose=Purpose(record.objective),
        )
        choice = Choice(worker.id, min(record.held_tokens, record.num_tokens))
        model = record.model if record.model in worker.models else ""
        if record.room != "unknown":
            request = self._request(origin, record, now_s)
            self._open.room.follow(*request, record.num_output, record.room, worker.id, now_s)
        return self._open.loads.start(ticket, placed, choice, now_s, model)

    def wait(self, origin: str, record: WaitingRecord, now_s: float) -> None:
        """Let a request that another router holds have its turn among those held here, so that neither lets a
        worse one enter. The context of one that waits for its turn is not silent.
        """
        if len(self._known) < MOST_RUNNING:
            request = self._request(origin, record, now_s)
            self._open.room.follow(*request, record.num_output, record.room, None, now_s)

    def end(self, running: RunningAtWorker, record: EndedRecord | None, now_s: float) -> None:
        """Count a request as ended; `record` is None if nothing is known of how."""
        if record is None:
            self._open.loads.end(running, UNKNOWN, now_s, is_timed=False)
            return
        usage = WorkerUsage(record.num_prompt, record.num_output, record.num_cached, record.is_older_api)
        self._open.loads.end(running, usage, now_s, is_timed=record.is_timed, was_refused=record.was_refused)

    def leave(self, origin: str, record: LeftRecord, now_s: float) -> None:
        """Note that a request has left its router."""
        usage = None
        if record.num_prompt is not None:
            usage = Usage(max(record.num_prompt, record.num_cached), record.num_cached, record.num_output)
        self._leave((origin, record.request), usage, now_s, was_refused=record.was_refused)

    def came_back(self, request: RoutedRequest, now_s: float) -> None:
        """Take the last request of a program elsewhere for ended, if the program goes on from its prompt with
        a request that comes now: its client has the answer, though the other router has not told so yet.
        """
        name = self._latest.get((request.owner, request.program.shared))
        if name is None or request.key is None:
            return
        before, blocks = self._known[name][1].key, request.key.blocks
        num = 0 if before is None else len(before.blocks)
        if before is not None and 0 < num <= len(blocks) and before.blocks[-1] == blocks[num - 1]:
            self._leave(name, None, now_s, was_refused=False)

    def keep_only(self, origin: str, requests: Collection[int], now_s: float) -> None:
        """Note that all requests of a router have left it but some."""
        gone = [one for one in self._known if one[0] == origin and one[1] not in requests]
        for one in gone:
            self._leave(one, None, now_s, was_refused=False)

    def believe(self, prompt: PastPrompt, now_s: float) -> None:
        """Believe that a worker holds a prompt that it has got at some time."""
        worker, key = self._worker(prompt.worker), _key_of(prompt.blocks)
        if worker is None or key is None or self._open.loads.table.get(worker.id) is None:
            return
        placed = PlacementRequest(len(key.blocks) * key.block_tokens, keys={BYTES.name: key})
        self._open.placement.observe(Dispatched(worker.id, placed, now_s))
        self._open.placement.observe(Ended(worker.id, placed))

    def charge(self, served: Iterable[tuple[str, float]]) -> None:
        """Charge owners for seconds of work that they have got of another router."""
        for owner, seconds in served:
            self._open.account.now.served_elsewhere(owner, seconds)

    def keep_free(
        self, own: Waiting, waits: Sequence[Waiting], running: Sequence[Sequence[RunningAtWorker]]
    ) -> list[WorkerId]:
        """Keep free what other routers are due of each worker; return those where less is kept than before.

        Args:
            own: requests that wait here.
            waits, running: requests that wait, and that run, at each of the others.
        """
        freed: list[WorkerId] = []
        weight = self._open.account.now.tenants.weight
        for worker in self._open.workers:
            if (view := self._open.loads.table.get(worker.id)) is None:
                continue
            due = parts([own, *waits], worker.server, weight)[1:]
            num_slots = num_tokens = num_theirs = 0
            for part, of_peer in zip(due, running, strict=True):
                here = [one.placed.all_tokens for one in of_peer if one.worker == worker.id]
                num_theirs += len(here)
                num_slots += kept(part, view.num_slots, len(here))
                num_tokens += kept(part, view.capacity_tokens, sum(here))
            if view.num_running <= num_theirs:
                num_tokens = 0  # a request of ours that needs nearly all of it may run alone
            before = view.kept_slots, view.kept_tokens
            if (num_slots, num_tokens) != before:
                view.kept_slots, view.kept_tokens = num_slots, num_tokens
                self._open.loads.table.changed(worker.id)
                if num_slots < before[0] or num_tokens < before[1]:
                    freed.append(worker.id)
        return freed

    def check_invariants(self, running: Iterable[RunningAtWorker]) -> None:
        """Check that no others count than those that run. For tests."""
        tickets = [one.ticket for one in running]
        assert len({*tickets}) == len(tickets)
        assert all(ticket < 0 for ticket in tickets)
        assert self._known.keys() >= {*self._latest.values()}

    def _request(self, origin: str, record: WaitingRecord, now_s: float) -> tuple[Ticket, RoutedRequest]:
        """Return a request as the account of room knows it, under a new ticket if it is new."""
        if (known := self._known.get((origin, record.request))) is not None:
            return known
        name, is_shared = record.program, record.program.startswith(BY_CLIENT)
        request = RoutedRequest(
            model=record.model,
            num_tokens=record.num_tokens,
            key=_key_of(record.blocks),
            tenant=record.owner,
            program=NamedProgram(
                f"{origin}/{name}" if name else "",
                record.is_final,
                record.has_returned,
                name if is_shared else "",
            ),
        )
        self.came_back(request, now_s)
        known = self._known[origin, record.request] = next(self._tickets), request
        if is_shared:
            self._latest[record.owner, name] = origin, record.request
        return known

    def _leave(self, name: tuple[str, int], usage: Usage | None, now_s: float, *, was_refused: bool) -> None:
        if (known := self._known.pop(name, None)) is not None:
            program = known[1].owner, known[1].program.shared
            if self._latest.get(program) == name:
                del self._latest[program]
            self._open.room.ended(*known, usage, now_s, was_refused=was_refused)

    def _worker(self, server: str) -> Worker | None:
        """Return the worker of an address; None if there is none."""
        worker = self._open.workers.get(self._workers.get(server, -1))
        if worker is None:
            self._workers = {one.server: one.id for one in self._open.workers}
            worker = self._open.workers.get(self._workers.get(server, -1))
        return worker


def _key_of(blocks: bytes) -> PromptKey | None:
    return PromptKey(PackedHashes(blocks), BYTES.block_tokens) if blocks else None
