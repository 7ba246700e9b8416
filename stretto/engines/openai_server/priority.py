"""The packing of a rank into the one integer that vLLM orders requests by.

It is a signed number of 64 bits, smaller first:

    40 bits  the first element of the rank in milliseconds, rounded down
    24 bits  the second element, as a number with 15 bits of precision

So ranks whose first elements are a millisecond apart, or equal, keep their order as far as the second
elements differ by more than their precision; later elements are left out.
"""

from __future__ import annotations

import math
import struct

_LEAST_MS, _MOST_MS = -(1 << 39), (1 << 39) - 1


def priority_of(rank: tuple[float, ...]) -> int:
    """Convert a request's rank (place among waiting requests, smaller first) to the priority that vLLM takes.

    A rank is a tuple of numbers, a priority one integer. Priorities are in the order of the ranks, up to
    rounding. Missing elements of a rank count as 0.
    """
    first = rank[0] if rank else 0.0
    first_ms = max(_LEAST_MS, min(_MOST_MS, math.floor(max(-1e12, min(1e12, first)) * 1000)))
    second = rank[1] if len(rank) > 1 else 0.0
    return (first_ms << 24) | _sortable_24(second)


def _sortable_24(value: float) -> int:
    """Return the leading bits of a single-precision number, changed so that they ascend with it."""
    limit = 3.4e38
    packed = struct.pack("<f", max(-limit, min(limit, value)) + 0.0)
    bits = int.from_bytes(packed, "little")
    ascending = ~bits & 0xFFFFFFFF if bits >> 31 else bits | 0x80000000
    return ascending >> 8
