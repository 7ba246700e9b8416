"""The requests of one step to an engine, which wait in its queue together.

Engine schedulers see the step (primitive), not loose requests, so that they know which ones move the same
step of the same query (Teola §5.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core import Prompt
from stretto.graph.compile import Node
from stretto.record import record
from stretto.sched.demand import Demand
from stretto.tasks import Decode, QueryRecord


@record(kw_only=True, eq=False)
class Request:
    """A request to an engine, made by a step whose inputs have come: to apply its op to items `lo` to `hi`
    (half-open) of lists, or once.

    Attributes:
        step: name of the step in errors: the decode, where a prefill carries one along.
        inputs: values by port; ports in `each` hold the items from `lo` on.
        prompts: prompts of LLM requests, one per item.
        decode: how the answers of LLM requests are decoded; None for prefills.
        units: units of work per item, for an LLM tokens of the prompt; None counts 1 each.
        hint: LLM instance that holds the first `num_held_tokens` of the prompts, if one is known.
        hint_nodes: nodes (steps) that compute a beginning of the prompts, the longest first, if they had not
            ended yet.
        record: what holds for all requests of the query.
        demand: how urgently its result was needed when it became ready.
        shows: whether parts of its answer are passed on, to the caller or to other steps, before its end.
    """

    query: str
    node: Node
    step: str
    lo: int
    hi: int
    inputs: Mapping[str, object]
    each: tuple[str, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    decode: Decode | None = None
    units: tuple[int, ...] | None = None
    hint: int | None = None
    num_held_tokens: int = 0
    hint_nodes: tuple[int, ...] = ()
    record: QueryRecord = QueryRecord()
    demand: Demand = Demand("throughput")
    shows: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """A queue entry: the part of a request that waits, items `lo` to `hi`. `lo` moves up as items are taken.

    Attributes:
        attempt: number of times that these items were tried and lost.
        alone: run them in a batch of their own: their last batch failed, perhaps through another's fault.
        arrival_s: when the request became ready.
        number: given by the queue, one more for each entry, so that it breaks ties.
        num_output: output tokens expected of each item, when the entry was queued.
        demand: how urgently its result is needed now.
        sorted_as: how urgently its result was needed when it was queued. Orders sort by that, so it never
            changes.
        generated: tokens that the one item of the entry has generated, if it was suspended.
        said_by: key of the model and dtype (`Replica.output_key`) that has generated or said something for
            the item.
        is_shown: whether some of that has been passed on, so that only a replica of the same model and dtype
            may go on.
        moved_from: LLM instance in whose queue it waited until that one no longer served.
    """

    request: Request
    lo: int
    hi: int
    attempt: int = 0
    alone: bool = False
    arrival_s: float = 0.0
    number: int = 0
    num_output: int = 0
    demand: Demand = Demand("throughput")
    sorted_as: Demand = field(init=False)
    generated: tuple[int, ...] = ()
    said_by: object = None
    is_shown: bool = False
    moved_from: int | None = None
    query: str = field(init=False)

    def __post_init__(self) -> None:
        self.sorted_as = self.demand
        self.query = self.request.query

    @property
    def path_s(self) -> float:
        """Predicted seconds from its start until the last value that somebody waited for when it was
        queued.
        """
        return self.sorted_as.path_s

    @property
    def arrival(self) -> tuple[float, int]:
        """Sort key by arrival: the time, then the number of the entry in the queue."""
        return self.arrival_s, self.number

    @property
    def like(self) -> object:
        """Key of the model and dtype of the replicas that may continue the answer, a part of which was shown
        already; None if nothing was shown, so that any replica may.
        """
        return self.said_by if self.is_shown else None

    def num_units(self, lo: int, hi: int) -> int:
        """Return the units of work of items `lo` to `hi`, without their outputs; for an LLM, tokens of their
        prompts.
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

    def again(self, lo: int, hi: int, *, attempt: int, alone: bool) -> Entry:
        """Return items `lo` to `hi` as a new entry with the same arrival time, to be queued again."""
        return Entry(
            request=self.request,
            lo=lo,
            hi=hi,
            attempt=attempt,
            alone=alone,
            arrival_s=self.arrival_s,
            num_output=self.num_output,
            demand=self.demand,
            generated=self.generated,
            said_by=self.said_by,
            is_shown=self.is_shown,
        )

    def resumed(self, item: int, generated: tuple[int, ...]) -> Entry:
        """Return one item as a new entry, which is to go on from the tokens `generated` at another
        instance.
        """
        entry = self.again(item, item + 1, attempt=self.attempt, alone=False)
        entry.generated = generated
        return entry


def queue_entry(request: Request, *, arrival_s: float = 0.0, num_output: int = 0) -> Entry:
    """Return a queue entry with all items of a request, whose inputs had come at `arrival_s`.

    `num_output` is the number of tokens expected of each item.
    """
    return Entry(
        request=request,
        lo=request.lo,
        hi=request.hi,
        arrival_s=arrival_s,
        num_output=num_output,
        demand=request.demand,
    )
