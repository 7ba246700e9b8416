"""Large results of a batch that ran in a Ray worker. They lie in Ray's object store on the worker's node.

The object belongs to our process, so that it outlives the worker. A worker that needs its values gets them
from the node where they lie. Ray frees the object when our last reference to it is gone.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from stretto.model.errors import BadReply, EngineFailure, StrettoError
from stretto.model.foreign import check_nesting, described
from stretto.model.references import Reference, ValueMemory
from stretto.sched.messages import Event

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


LEAST_ANSWER_BYTES = 100 * 1024
"""Least total of a batch's large values that are left in the object store. Ray sends smaller results to
their owner anyway.
"""


class RayValues:
    """Large results of one batch: an object of Ray with their pickles, one behind the other.

    Attributes:
        ends: end of each value, in bytes.
        object: reference of Ray to the object. It is set by our process, which owns it.
    """

    def __init__(self, ends: list[int]) -> None:
        self.ends = ends
        self.object: Any = None
        self._data: Any = None

    def __getstate__(self) -> tuple[list[int], Any]:
        return self.ends, self.object

    def __setstate__(self, state: tuple[list[int], Any]) -> None:
        self.ends, self.object = state
        self._data = None

    def load(self, index: int) -> object:
        """Return a copy of value number `index`. The first call waits until this node has the object.

        Raises:
            EngineFailure: all nodes that had the object are lost.
            BadReply: the value does not unpickle here.
        """
        if self._data is None:
            self._data = _object(self.object)
        lo, hi = bounds(self.ends, index)
        return unpickled(self._data[lo:hi])


@dataclass(frozen=True, slots=True)
class RayAnswer:
    """The answer of a Ray worker to a batch: the event that reports it, and the source of the references in
    it; None if there are none.
    """

    event: Event
    stored: RayValues | None = None


def _object(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise EngineFailure(f"a large value is lost: {error}") from error
