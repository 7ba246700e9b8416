"""`Work`: the requests of one primitive that wait at an engine together.

Engine schedulers see the primitive, not loose requests, so that they know which ones move the same step
of the same query (Teola §5.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.core import Prompt
from stretto.graph.compile import Node
from stretto.tasks import Decode, QueryRecord


@dataclass(slots=True, eq=False)
class Work:
    """Items `lo` to `hi` (half-open) of a mapped primitive, or a single application (0 to 1).

    Mutable: `lo` moves up as the engine scheduler takes items; `attempt`, `alone` and `arrival_s` are
    its own notes.

    Attributes:
        inputs: values by port; ports in `each` hold the items from `base` on.
        step: the primitive to name in errors: the decode, where a prefill carries one along.
        prompts: of LLM work, one per item from `base` on.
        decode: of LLM work that decodes.
        units: work per item from `base` on; None counts 1 each.
        hint: LLM instance that holds a prefix of the prompts, if one is known, of `num_held_tokens`.
        hint_nodes: nodes that compute such a prefix, the longest first, if their value was not there yet.
        attempt: how often it was tried and lost.
        alone: run it in a batch of its own (its last batch failed, perhaps through another's fault).
        record: what holds for all requests of the query.
        is_wanted: whether somebody asks for what comes of it; other work goes first if not.
    """

    query: str
    node: Node
    step: str
    base: int
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
    attempt: int = 0
    alone: bool = False
    arrival_s: float = 0.0
    record: QueryRecord = QueryRecord()
    is_wanted: bool = True

    def units_of(self, lo: int, hi: int) -> int:
        """Work in items `lo` to `hi`."""
        if self.units is None:
            return hi - lo
        return sum(self.units[lo - self.base : hi - self.base])

    def count_within(self, budget: int) -> int:
        """How many items from `lo` on fit `budget` units."""
        if self.units is None:
            return min(self.hi - self.lo, max(budget, 0))
        count = 0
        for unit in self.units[self.lo - self.base : self.hi - self.base]:
            budget -= unit
            if budget < 0:
                break
            count += 1
        return count

    def again(self, lo: int, hi: int, *, attempt: int, alone: bool) -> Work:
        """Items `lo` to `hi` as new work, from the inputs that are still there."""
        return replace(self, lo=lo, hi=hi, attempt=attempt, alone=alone)
