"""Large results of a batch that ran in a Ray worker. They lie in Ray's object store on the worker's node.

The object belongs to our process, so that it outlives the worker. A worker that needs its values gets them
from the node where they lie. Ray frees the object when our last reference to it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.model.errors import EngineFailure
from stretto.runtime.large_values import bounds, unpickled
from stretto.sched.messages import Event

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
