"""What waits at an engine: the requests of one primitive, together.

Engine schedulers see the primitive, not loose requests, so that they know which ones move the same step
of the same query (Teola §5.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core import Prompt
from stretto.graph.compile import Node
from stretto.tasks import Decode, QueryRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """Items `lo` to `hi` (half-open) of a mapped primitive, or a single application (0 to 1).

    Attributes:
        step: name of the primitive in errors: the decode, where a prefill carries one along.
        inputs: values by port; ports in `each` hold the items from `lo` on.
        prompts: prompts of LLM requests, one per item.
        decode: how the answers of LLM requests are decoded; None for prefills.
        units: work per item, for an LLM tokens of the prompt; None counts 1 each.
        hint: LLM instance that holds a prefix of the prompts, if one is known, of `num_held_tokens`.
        hint_nodes: nodes that compute such a prefix, the longest first, if their value was not there yet.
        record: what holds for all requests of the query.
        is_wanted: whether somebody asked for what comes of it when it became ready.
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
    is_wanted: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """Items `lo` to `hi` of a request that wait in a queue. `lo` moves up as items are taken.

    Attributes:
        attempt: how often these items were tried and lost.
        alone: run them in a batch of their own: their last batch failed, perhaps through another's fault.
        arrival_s: when the request became ready.
        number: given by the queue, one more for each entry, so that it breaks ties.
        num_output: output tokens expected of each item, when the entry was queued.
        group: sequence group that the request belongs to, or "".
        slack_s: seconds until the group needs the request's answer.
        path_s: predicted seconds from here to the end of the query.
        is_wanted: whether somebody asks for what comes of it; other requests go first if not.
        generated: tokens that the one item of the entry has generated, if it was suspended.
        moved_from: LLM instance in whose queue it waited until that one no longer served.
        first: the first item, whatever has been taken.
    """

    request: Request
    lo: int
    hi: int
    attempt: int = 0
    alone: bool = False
    arrival_s: float = 0.0
    number: int = 0
    num_output: int = 0
    group: str = ""
    slack_s: float = math.inf
    path_s: float = 0.0
    is_wanted: bool = True
    generated: tuple[int, ...] = ()
    moved_from: int | None = None
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.lo

    @property
    def query(self) -> str:
        """Query that the items are of."""
        return self.request.query

    @property
    def arrival(self) -> tuple[float, int]:
        """Key by which the first come goes first."""
        return self.arrival_s, self.number

    def num_units(self, lo: int, hi: int) -> int:
        """Units of items `lo` to `hi`, without what they generate."""
        units, first = self.request.units, self.request.lo
        if units is None:
            return hi - lo
        return units[lo - first] if hi == lo + 1 else sum(units[lo - first : hi - first])

    def units_of(self, lo: int, hi: int) -> int:
        """Units of items `lo` to `hi`, with the output expected of them."""
        return self.num_units(lo, hi) + self.num_output * (hi - lo)

    def count_within(self, budget: int) -> int:
        """How many items from `lo` on fit `budget` units."""
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
        """Items `lo` to `hi` as a new entry that has waited since then, from the inputs still there."""
        return Entry(
            request=self.request,
            lo=lo,
            hi=hi,
            attempt=attempt,
            alone=alone,
            arrival_s=self.arrival_s,
            num_output=self.num_output,
            group=self.group,
            slack_s=self.slack_s,
            path_s=self.path_s,
            is_wanted=self.is_wanted,
            generated=self.generated,
        )

    def resumed(self, item: int, generated: tuple[int, ...]) -> Entry:
        """Return one item as a new entry that goes on from the tokens it has generated."""
        entry = self.again(item, item + 1, attempt=self.attempt, alone=False)
        entry.generated = generated
        return entry


def queue_entry(request: Request, *, arrival_s: float = 0.0, num_output: int = 0) -> Entry:
    """All items of a request that became ready at `arrival_s`."""
    return Entry(
        request=request,
        lo=request.lo,
        hi=request.hi,
        arrival_s=arrival_s,
        num_output=num_output,
        path_s=request.node.path_s,
        is_wanted=request.is_wanted,
    )
