"""The requests of one step to an engine, which wait in its queue together.

Engine schedulers see the step (primitive), not loose requests, so that they know which ones move the same
step of the same query (Teola §5.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import field
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeAlias

from stretto.graph.execution_graph import Node
from stretto.model.errors import BadServer, EngineBusy, StrettoError
from stretto.model.record import record
from stretto.model.tasks import Decode, QueryRecord
from stretto.model.values import Prompt
from stretto.sched.queries.demand import Demand

ProgramKey: TypeAlias = str | tuple[str, str]
"""A query that is a program by itself, or a tenant and its name of a program of several queries."""


@record(eq=False)
class StepRequest:
    """A request of a step to an engine: apply the step's operation to items `lo` to `hi` (half-open) of its
    input lists, or once. All its inputs are known.

    Attributes:
        step: name of the step in errors: the decode, where a prefill carries one along.
        inputs: values by port; ports in `each` hold the items from `lo` on.
        record: what holds for all requests of the query.
        demand: how urgently its result was needed when it became ready.
        units: units of work of each item, for an LLM tokens of its prompt; None counts 1 for each.
        prompts: prompts of LLM requests, one per item.
        decode: how the answers of LLM requests are decoded; None for prefills.
        hint: LLM instance that holds the first `num_held_tokens` of the prompts, if one is known.
        hint_nodes: nodes that compute a beginning of the prompts, the longest first, if they had not
            ended yet.
        shows: whether parts of its answer are passed on, to the caller or to other steps, before its end.
        is_alone: whether its query makes no other request, ever.
        is_continued: whether a later prompt goes on from its answer.
        program_key: name of the program that it is a part of, which no other one has, of whatever tenant.
        source: what it resembles in work: the kind of its program, the template of its step, and the step
            without the number that tells steps of one name apart.
        group_source: the same with the depth of its step, for what arrives at once with it.
        asked: what the account of programs of its engine knows of it (`sched/orders/program_account.py`).
    """

    query: str
    node: Node
    step: str
    lo: int
    hi: int
    inputs: Mapping[str, object]
    each: tuple[str, ...] = ()
    record: QueryRecord = QueryRecord()
    demand: Demand = Demand("throughput")
    units: tuple[int, ...] | None = None
    prompts: tuple[Prompt, ...] = ()
    decode: Decode | None = None
    hint: int | None = None
    num_held_tokens: int = 0
    hint_nodes: tuple[int, ...] = ()
    shows: bool = False
    is_alone: bool = False
    is_continued: bool = False
    program_key: ProgramKey = field(init=False)
    source: tuple[str, str, str] = field(init=False)
    group_source: tuple[str, str, str, str] = field(init=False)
    asked: Any = field(init=False)

    def __post_init__(self) -> None:
        record = self.record
        self.program_key = (record.tenant, record.program) if record.program else self.query  # type: ignore[misc]
        node = self.node
        self.source, self.group_source = _sources(record.kind, node.template, self.step, node.depth)  # type: ignore[misc]
        self.asked = None  # type: ignore[misc]


_NOWHERE: frozenset[int] = frozenset()


class QueueEntry:
    """A queue entry: the part of a request that waits, items `lo` to `hi`
    (half-open; at first all of them). `lo` moves up as items are taken.

    Written by hand, not a dataclass, because one is made for every step.

    Attributes:
        query: id of the query whose request it is.
        attempt: number of times that these items were tried and lost.
        alone: whether they run in a batch of their own, because their last batch failed, perhaps through the
            fault of other work in it.
        arrival_s: when the request became ready.
        number: given by the queue, one more for each entry, so that it breaks ties.
        num_output: output tokens expected of each item, when the entry was queued.
        fresh: share of the tokens of its prompts that is expected not to be cached.
        demand: how urgently its result is needed now.
        sorted_as: how urgently its result was needed when it was queued. Orders sort by that, so it never
            changes.
        generated: tokens that the one item of the entry has generated, if it was suspended.
        said_by: key of the model and dtype (`Replica.output_key`) that has begun the answer of the item; None
            if none has.
        is_shown: whether a part of that answer has been passed on, so that only a replica of the same model
            and dtype may continue it.
        is_suspected: whether it was lost with an LLM instance, which it may have killed.
        moved_from: LLM instance in whose queue it waited until that one no longer served.
        avoids: slots of the instances at which it failed, perhaps through their fault (`Fleet.slot`). It goes
            there again only while no other one serves that could take it.
        wrong_at: slots of the instances that answer nobody well, as it found (`BadServer`). It does not go
            there again while another one may answer it, be it one that does not serve yet.
        refused_s: time from which all instances that it was sent to have refused it without beginning it;
            None if none has since it was last begun.
        held_s: seconds for which it was held, because its program had no room.
        room_at: LLM instance where its program has room, at which it should run; None for any.
        sorted_under: name under which its order sorts it, such as its query or its program. The order sets it
            when the entry is added.
    """

    __slots__ = (
        "alone",
        "arrival_s",
        "attempt",
        "avoids",
        "demand",
        "fresh",
        "generated",
        "held_s",
        "hi",
        "is_shown",
        "is_suspected",
        "lo",
        "moved_from",
        "num_output",
        "number",
        "query",
        "refused_s",
        "request",
        "room_at",
        "said_by",
        "sorted_as",
        "sorted_under",
        "wrong_at",
    )

    def __init__(self, request: StepRequest, arrival_s: float = 0.0, num_output: int = 0) -> None:
        self.request = request
        self.query = request.query
        self.lo = request.lo
        self.hi = request.hi
        self.attempt = 0
        self.alone = False
        self.arrival_s = arrival_s
        self.number = 0
        self.num_output = num_output
        self.fresh = 1.0
        self.demand = self.sorted_as = request.demand
        self.generated: tuple[int, ...] = ()
        self.said_by: object = None
        self.is_shown = False
        self.is_suspected = False
        self.moved_from: int | None = None
        self.avoids = self.wrong_at = _NOWHERE
        self.refused_s: float | None = None
        self.room_at: int | None = None
        self.held_s = 0.0
        self.sorted_under: ProgramKey = ""

    @property
    def path_s(self) -> float:
        """Predicted seconds from the start of this work until the last value that somebody waited for when it
        was queued.
        """
        return self.sorted_as.path_s

    @property
    def since_s(self) -> float:
        """Time from which this work ages: when its query arrived, or in a session when it became ready."""
        return min(self.request.record.arrival_s, self.arrival_s)

    @property
    def job(self) -> str:
        """Name of the job that orders sort it under: what one caller waits for in a session, or a one-shot
        query as a whole.
        """
        job = self.sorted_as.job
        return f"{self.query} {job}" if job else self.query

    @property
    def program(self) -> str:
        """Id of the program that this work is a part of: its query, unless the query is one of several."""
        return self.request.record.program or self.query

    @property
    def arrival(self) -> tuple[float, int]:
        """Sort key by arrival of this queue entry: its time, then its number in the queue."""
        return self.arrival_s, self.number

    @property
    def like(self) -> object:
        """Key of the model and dtype of the replicas that may continue the answer, if a part of the answer
        was shown already; None if nothing was shown, so that any replica may.
        """
        return self.said_by if self.is_shown else None

    def num_units(self, lo: int, hi: int) -> int:
        """Return the units of work of items `lo` to `hi`, without their expected outputs; for an LLM, tokens
        of their prompts.
        """
        units, first = self.request.units, self.request.lo
        if units is None:
            return hi - lo
        return units[lo - first] if hi == lo + 1 else sum(units[lo - first : hi - first])

    def units_of(self, lo: int, hi: int) -> int:
        """Return the units of work of items `lo` to `hi`; for an LLM, tokens of their prompts and expected
        outputs.
        """
        if self.request.units is None:
            return (1 + self.num_output) * (hi - lo)
        return self.num_units(lo, hi) + self.num_output * (hi - lo)

    def count_within(self, budget: int) -> int:
        """Return how many items, from `lo` on, fit together into `budget` units of work (for an LLM,
        tokens).
        """
        if self.request.units is None and not self.num_output:
            return min(self.hi - self.lo, max(budget, 0))
        count = 0
        for item in range(self.lo, self.hi):
            budget -= self.units_of(item, item + 1)
            if budget < 0:
                break
            count += 1
        return count

    def again(self, lo: int, hi: int, *, attempt: int, alone: bool) -> QueueEntry:
        """Return a new queue entry for items `lo` to `hi`, which are to be tried again; it keeps the arrival
        time.
        """
        entry = QueueEntry(self.request, self.arrival_s, self.num_output)
        entry.lo, entry.hi = lo, hi
        entry.fresh = self.fresh
        entry.attempt, entry.alone = attempt, alone
        entry.demand = entry.sorted_as = self.demand
        entry.generated, entry.said_by, entry.is_shown = self.generated, self.said_by, self.is_shown
        entry.is_suspected = self.is_suspected
        entry.avoids, entry.wrong_at, entry.refused_s = self.avoids, self.wrong_at, self.refused_s
        entry.room_at, entry.held_s = self.room_at, self.held_s
        return entry

    def after(self, error: StrettoError, avoids: Set[int], now_s: float, *, was_attempt: bool) -> None:
        """Note that it is queued again after a failure, at which slots, and whether that was an attempt."""
        self.avoids |= avoids
        if isinstance(error, BadServer):
            self.wrong_at |= avoids
        if was_attempt:
            self.refused_s = None
        elif isinstance(error, EngineBusy | BadServer) and self.refused_s is None:
            self.refused_s = now_s

    def is_refused_too_long(self, limit_s: float, now_s: float) -> bool:
        """Return whether it has been refused for `limit_s` seconds; never if its query has a deadline."""
        has_deadline = self.request.record.deadline_s is not None
        return self.refused_s is not None and not has_deadline and now_s >= self.refused_s + limit_s

    def resumed(self, item: int, generated: tuple[int, ...]) -> QueueEntry:
        """Return a new queue entry for one item that was interrupted: another instance is to continue after
        the tokens `generated`.
        """
        entry = self.again(item, item + 1, attempt=self.attempt, alone=False)
        entry.generated = generated
        return entry


@lru_cache(maxsize=4096)
def _sources(
    kind: str, template: str, step: str, depth: int
) -> tuple[tuple[str, str, str], tuple[str, str, str, str]]:
    name, _, number = step.rpartition(".")
    source = kind, template, name if name and number.isdecimal() else step
    return source, (*source, str(depth))


def runs_of(items: Iterable[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of consecutive numbers among some distinct numbers."""
    numbered = enumerate(sorted(items))
    groups = ([item for _, item in group] for _, group in groupby(numbered, lambda pair: pair[1] - pair[0]))
    return [(group[0], group[-1] + 1) for group in groups]
