"""The tokens of a batch's texts, for engines whose times depend on them."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.model.foreign import raised
from stretto.model.references import load_inputs
from stretto.sched.queries.request import QueueEntry


def num_batch_tokens(parts: Iterable[tuple[QueueEntry, int, int]]) -> int | None:
    """Return the estimated tokens of the texts of a batch, whose parts are items `lo` to `hi` of entries.

    None if the time of a part's op does not depend on texts, or if its inputs are no texts or lost, as its
    engine will say.
    """
    num_tokens = 0
    for entry, lo, hi in parts:
        request = entry.request
        tokens_of = request.node.spec.tokens
        if tokens_of is None:
            return None
        for item in range(lo - request.lo, hi - request.lo):
            row = {
                port: value[item] if port in request.each else value  # type: ignore[index]
                for port, value in request.inputs.items()
            }
            try:
                num_tokens += tokens_of(load_inputs(row))
            except raised():
                return None
    return num_tokens
