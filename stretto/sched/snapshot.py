"""An immutable snapshot of what the schedulers are doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.cluster.transitions import State


@dataclass(frozen=True, slots=True)
class QueryPicture:
    """A snapshot of one query: a session, or a query that runs a single graph.

    `num_nodes` is the number of steps that have not ended; `open_variables` are the outputs and variables
    that have not come.
    """

    query: str
    tenant: str
    is_session: bool
    num_nodes: int
    open_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldPicture:
    """A snapshot of a request that is held: its program has no room in KV memory.

    Attributes:
        since_s: time from which it has been held, by the clock of the runtime or simulator.
        reason: why, in words, with the tokens that its program needs.
    """

    query: str
    tenant: str
    program: str
    step: str
    since_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class InstancePicture:
    """A snapshot of one instance of an engine that is not gone, with the number of tasks that it runs.

    `loading_s` is how many seconds the last start of its replica took; before the first, what was predicted,
    None if nothing was. `claimed_tokens` is what the contexts of programs take of its KV memory, as far as
    that is followed.
    """

    instance: InstanceId
    state: State
    num_running: int
    loading_s: float | None = None
    claimed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """A snapshot of one engine: the number of items that wait in its queue or for room, its instances, and
    the requests that are held because there is no room for their programs.
    """

    engine: str
    num_waiting: int
    instances: tuple[InstancePicture, ...]
    held: tuple[HeldPicture, ...] = ()


def engine_picture(
    fleet: Fleet,
    num_waiting: int,
    running: Mapping[InstanceId, int],
    claimed: Mapping[InstanceId, int] = MappingProxyType({}),
    held: tuple[HeldPicture, ...] = (),
) -> EnginePicture:
    """Return the snapshot of an engine; `running` has the number of tasks of each instance that is not
    gone, and `claimed` the tokens of its memory that programs take.
    """
    instances = tuple(
        InstancePicture(i, fleet.state[i], running[i], fleet.loading_s(fleet.replica(i)), claimed.get(i, 0))
        for i in fleet.live
    )
    return EnginePicture(fleet.engine, num_waiting, instances, held)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of what the runtime is doing: all queries, in order of arrival, and all engines."""

    queries: tuple[QueryPicture, ...]
    engines: tuple[EnginePicture, ...]
