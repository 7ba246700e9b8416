"""The choice of results that are large, and so are left where they were made."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from itertools import accumulate

from stretto.model.errors import BadReply, StrettoError
from stretto.model.foreign import check_nesting, described
from stretto.model.references import Reference, ValueMemory

LEAST_VALUE_BYTES = 512
"""Least bytes, when pickled, of a value that is left. A reference to one takes about 15."""

_STAYS = (bool, int, float, Sequence, Mapping, StrettoError, type(None))
"""Types of values that are always sent: small ones, those whose items the schedulers take, and texts, which
mostly stand in prompts next.
"""


def set_apart(
    results: Sequence[object], source: ValueMemory, ends: list[int], least_bytes: int
) -> tuple[Sequence[object], bytes]:
    """Return a batch's results with references for its large values, and those values, pickled one behind the
    other.

    If the large values have less than `least_bytes` together, the results are returned as they are, and no
    bytes.

    Args:
        source: what the references refer to.
        ends: list to which the end of each value is added, in bytes.

    Raises:
        BadReply: a value is nested too deep, or holds itself.
        Exception: a value does not pickle.
    """
    check_nesting(results)
    parts: list[bytes] = []
    left = _left(results, source, parts)
    ends += accumulate(map(len, parts))
    return (left, b"".join(parts)) if parts and ends[-1] >= least_bytes else (results, b"")


def bounds(ends: Sequence[int], index: int) -> tuple[int, int]:
    """Return where value number `index` begins and ends, in bytes."""
    return ends[index - 1] if index else 0, ends[index]


def unpickled(data: bytes | bytearray | memoryview) -> object:
    """Return the value of a pickle that an engine has left. Raises BadReply if it does not unpickle here."""
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling raises whatever an object's own code raises
        raise BadReply(f"a large value cannot be read: {described(error)}") from error


def _left(values: Sequence[object], source: ValueMemory, parts: list[bytes]) -> list[object]:
    """Return values with references for the large ones, whose pickles are added to `parts`."""
    left: list[object] = []
    for value in values:
        if isinstance(value, list):
            value = _left(value, source, parts)
        elif not isinstance(value, _STAYS):
            data = pickle.dumps(value)
            if len(data) >= LEAST_VALUE_BYTES:
                value = Reference(source, len(parts))
                parts.append(data)
        left.append(value)
    return left
