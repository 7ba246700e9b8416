"""Each order against a search through all that waits, written from its definition, on random queues."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.machines import batch_request, llm_request

from benchmarks.baselines import ORDERS
from stretto.model.tasks import Decode, QueryRecord
from stretto.sched.orders.ageing import AgeingClock, aged_key
from stretto.sched.orders.earliest import EVERY
from stretto.sched.orders.order import MAX_ASKED, Hold, OrderConfig, Take
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import QueueEntry, StepRequest

CONFIG = OrderConfig(age_limit_s=4.0, fill_timeout_s=0.5, unit_s=0.125, output_s=0.5)


def since_s(entry: QueueEntry) -> float:
    return min(entry.arrival_s, entry.request.record.arrival_s)


@dataclass
class Model:
    """All entries that are not wholly started, and the items of each that have started."""

    entries: list[QueueEntry] = field(default_factory=list)
    started: dict[QueueEntry, set[int]] = field(default_factory=dict)
    to_pass: int = 0
    clock: AgeingClock = field(default_factory=AgeingClock)
    aged: dict[QueueEntry, float] = field(default_factory=dict)

    def due(self, now_s: float) -> QueueEntry | None:
        oldest = self.waiting()[0]
        is_overdue = oldest.arrival_s < now_s - CONFIG.age_limit_s
        return oldest if is_overdue and not self.to_pass else None

    def take(self, entry: QueueEntry, num_items: int, now_s: float) -> None:
        """Count a choice, before the entry's items are taken."""
        units = entry.units_of(entry.lo, entry.lo + num_items)
        is_due = entry is self.due(now_s)
        self.to_pass = (EVERY - 1) * units if is_due else max(0, self.to_pass - units)

    def waiting(self) -> list[QueueEntry]:
        return sorted((e for e in self.entries if e.lo < e.hi), key=lambda e: (e.arrival_s, e.number))

    def unstarted(self, query: str) -> list[QueueEntry]:
        return [e for e in self.entries if e.query == query and len(self.started[e]) < e.hi]

    def earliest(self, query: str) -> tuple[float, int]:
        return min((e.arrival_s, e.number) for e in self.unstarted(query))

    def waits_since(self, query: str) -> tuple[float, int]:
        return min(((since_s(e) + e.arrival_s) / 2, e.number) for e in self.unstarted(query))

    def seconds(self, query: str) -> float:
        return sum(
            CONFIG.unit_s * e.num_units(item, item + 1) + CONFIG.output_s * e.num_output
            for e in self.unstarted(query)
            for item in range(e.hi)
            if item not in self.started[e]
        )

    def round(self, entry: QueueEntry, level: Callable[[QueueEntry], float]) -> int:
        levels = {level(e) for e in self.unstarted(entry.query)}
        return sum(one > level(entry) for one in levels)


def by_arrival(model: Model) -> list[QueueEntry]:
    return model.waiting()


def least_work(model: Model) -> list[QueueEntry]:
    def key(entry: QueueEntry) -> tuple[float, ...]:
        waits_since_s, number = model.waits_since(entry.query)
        seconds = model.seconds(entry.query) + 0.3 * waits_since_s
        return seconds, number, -entry.path_s, -entry.request.node.depth, entry.arrival_s, entry.number

    return sorted(model.waiting(), key=key)


def programs_first(model: Model) -> list[QueueEntry]:
    """Nothing is learned of the programs here, so their index is the work that waits."""

    def key(entry: QueueEntry) -> tuple[float, ...]:
        aged, number = min((model.aged[e], e.number) for e in model.unstarted(entry.query))
        return (
            aged_key(model.seconds(entry.query), aged),
            number,
            -entry.path_s,
            -entry.request.node.depth,
            entry.arrival_s,
            entry.number,
        )

    return sorted(model.waiting(), key=key)


def oldest_query(model: Model) -> list[QueueEntry]:
    def key(entry: QueueEntry) -> tuple[float, ...]:
        return since_s(entry), -entry.path_s, -entry.request.node.depth, entry.number

    return sorted(model.waiting(), key=key)


def rounds(level: Callable[[QueueEntry], float]) -> Callable[[Model], list[QueueEntry]]:
    def ordered(model: Model) -> list[QueueEntry]:
        def key(entry: QueueEntry) -> tuple[float, ...]:
            return model.round(entry, level), *model.earliest(entry.query), entry.arrival_s, entry.number

        return sorted(model.waiting(), key=key)

    return ordered


SEARCHES = {
    "per_invocation": by_arrival,
    "throughput": by_arrival,
    "least_work": least_work,
    "programs_first": programs_first,
    "oldest_query": oldest_query,
    "topology_aware": rounds(lambda entry: entry.request.node.depth),
    "critical_path": rounds(lambda entry: entry.path_s),
}


def search(
    policy: str, model: Model, to_fill: int, fits: Callable[[QueueEntry], int], now_s: float
) -> object:
    """Return what `take` should answer, found by a search."""
    waiting = model.waiting()
    if not waiting:
        return None
    oldest = waiting[0]
    considered: Sequence[QueueEntry] = SEARCHES[policy](model)[:MAX_ASKED]
    if policy == "throughput":
        due_s = oldest.arrival_s + CONFIG.fill_timeout_s
        if sum(entry.units_of(entry.lo, entry.hi) for entry in waiting) < to_fill and now_s < due_s:
            return Hold(due_s)
    if policy in ("per_invocation", "throughput") or model.due(now_s) is not None:
        considered = [oldest]
    for entry in considered:
        if count := fits(entry):
            return Take(entry, count, ends_batch=policy == "per_invocation")
    return None


def random_request(draw: random.Random) -> StepRequest:
    query, step = f"q{draw.randrange(6)}", f"s{draw.randrange(4)}"
    depth, path_s = draw.randrange(4), draw.randrange(4) / 2
    is_session = query == "q5"
    record = QueryRecord() if is_session else QueryRecord(arrival_s=int(query[1:]) % 4 / 4)
    if draw.random() < 0.5:
        units = tuple(draw.randint(1, 6) for _ in range(draw.randint(1, 5)))
        return batch_request(
            query, step, "x" * len(units), depth=depth, path_s=path_s, units=units, record=record
        )
    decode = Decode(draw.randint(1, 8))
    tokens = decode.max_tokens + draw.randint(1, 8)
    return llm_request(
        query,
        step,
        tokens,
        depth=depth,
        path_s=path_s,
        num=draw.randint(1, 4),
        decode=decode,
        record=record,
    )


@pytest.mark.parametrize("policy", ORDERS)
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 12))]
)
def test_the_choice_is_that_of_a_search(policy: str, seed: int) -> None:
    draw = random.Random(f"{policy}/{seed}")
    config = replace(CONFIG, account=ProgramAccount())  # whose clock begins anew
    order, model, now_s, number = ORDERS[policy](config), Model(), 0.0, 0
    for _ in range(400):
        now_s += draw.choice((0.0, 0.0, 0.25, 0.5, 1.0))
        act = draw.random()
        if act < 0.4:
            request = random_request(draw)
            num_output = request.decode.max_tokens if request.decode else 0
            entry = QueueEntry(request, arrival_s=now_s - draw.choice((0, 0, 0.5)), num_output=num_output)
            entry.number, number = number, number + 1
            order.add(entry)
            model.entries.append(entry)
            model.started[entry] = set()
            model.aged[entry] = model.clock.add(entry.arrival_s)
        elif act < 0.8:
            room = draw.choice((0, 1, 4, 9, 30))
            to_fill = draw.choice((0, room))

            def fits(entry: QueueEntry, room: int = room) -> int:
                return entry.count_within(room)

            if model.waiting():
                model.clock.advance(now_s)
            chosen = order.take(to_fill, fits, now_s)
            assert chosen == search(policy, model, to_fill, fits, now_s)
            if isinstance(chosen, Take):
                model.take(chosen.entry, chosen.num_items, now_s)
                order.taken(chosen.entry, chosen.num_items)
                if chosen.entry.lo == chosen.entry.hi:
                    model.clock.remove(chosen.entry.arrival_s)
        elif act < 0.97:
            taken = [(e, i) for e in model.entries for i in range(e.lo) if i not in model.started[e]]
            for entry, item in draw.sample(taken, min(len(taken), draw.randint(1, 4))):
                order.started(entry, item, item + 1)
                model.started[entry].add(item)
        else:
            gone = f"q{draw.randrange(6)}"
            for entry in [e for e in model.entries if e.query == gone]:
                for item in range(entry.lo):
                    if item not in model.started[entry]:
                        order.started(entry, item, item + 1)
                if entry.lo < entry.hi:
                    model.clock.remove(entry.arrival_s)
                    order.remove(entry)
            model.entries = [e for e in model.entries if e.query != gone]
        model.entries = [e for e in model.entries if len(model.started[e]) < e.hi]
        if policy == "programs_first" and not model.entries:
            model.to_pass = 0  # a tenant that comes again begins anew
