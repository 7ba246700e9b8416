"""Events that go into the schedulers, and the actions that come out.

Drivers see nothing else of each other: `runtime/` (asyncio, real engines) and `sim/` (virtual time)
feed the same events to the same machines and carry out the same actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stretto.errors import StrettoError
from stretto.graph.compile import ExecutionGraph
from stretto.tasks import LLMEvent, LLMTask, Objective, Task


@dataclass(frozen=True, slots=True)
class Submit:
    """A new query of `tenant`.

    `deadline_s` is a point in the driver's time; `passes` are for what it expands to.
    """

    query: str
    egraph: ExecutionGraph
    inputs: Mapping[str, object]
    deadline_s: float | None = None
    passes: tuple[str, ...] = ()
    tenant: str = ""
    objective: Objective = "throughput"


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller gives the query up. Unknown or ended queries are ignored."""

    query: str


@dataclass(frozen=True, slots=True)
class BatchDone:
    """An instance has answered a batch: one result per task, in order."""

    engine: str
    instance: int
    batch: int
    results: Sequence[object]


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """An instance has failed a batch as a whole; the instance itself goes on."""

    engine: str
    instance: int
    batch: int
    error: StrettoError


@dataclass(frozen=True, slots=True)
class LLMReport:
    """An LLM instance says something about one of its tasks."""

    engine: str
    instance: int
    event: LLMEvent


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """An instance died with all it was running. It can be used again at once (the driver restarts it)."""

    engine: str
    instance: int
    error: StrettoError


@dataclass(frozen=True, slots=True)
class Wake:
    """A time asked for by `WakeAt` has come."""


Event: TypeAlias = Submit | Cancel | BatchDone | BatchFailed | LLMReport | InstanceLost | Wake


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Run `tasks`, `num_units` of work in all, as one batch on an idle instance of a batch engine."""

    engine: str
    instance: int
    batch: int
    tasks: tuple[Task, ...]
    num_units: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Hand a task to an LLM instance, which starts tasks by rank (smaller first)."""

    engine: str
    instance: int
    task: LLMTask
    rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Give a task that was handed to an LLM instance, and is not started as far as is known, a new rank.

    Instances that cannot do so, as those behind servers, ignore it.
    """

    engine: str
    instance: int
    task: int
    rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task that an LLM instance has; nothing more is wanted of it."""

    engine: str
    instance: int
    task: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Give an instance up that does not answer, and start it anew."""

    engine: str
    instance: int


@dataclass(frozen=True, slots=True)
class Release:
    """`query` has ended and runs nothing more on this instance: forget what was kept for it."""

    engine: str
    instance: int
    query: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Wake` at that time, or a little later. Takes the place of any earlier `WakeAt`."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Emit:
    """More text of an output that is still being decoded."""

    query: str
    output: str
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The query's one and only end: its outputs by name, or what went wrong."""

    query: str
    outputs: Mapping[str, object] | None
    error: StrettoError | None = None


Action: TypeAlias = StartBatch | Admit | Reprioritise | CancelTask | Restart | Release | WakeAt | Emit | Reply
