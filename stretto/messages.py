"""Events that go into the schedulers, and the actions that come out.

Messages about instances that a router shares with the schedulers stand in `cluster/messages.py`.

Drivers see nothing else of each other: `runtime/` (asyncio, real engines) and `sim/` (virtual time)
feed the same events to the same machines and carry out the same actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.cluster.messages import (
    DrainHow,
    InstanceId,
    KVReport,
    LoadReport,
    StartInstance,
    StopInstance,
)
from stretto.deployment import Replica
from stretto.errors import StrettoError
from stretto.graph.compile import ExecutionGraph
from stretto.tasks import LLMEvent, LLMTask, Objective, QueryRecord, Task


@dataclass(frozen=True, slots=True)
class Submit:
    """A new query of `tenant` that runs one graph and ends: all its outputs are wanted.

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
class Open:
    """A new query that ends when it is closed: a session. `passes` are for what its graphs expand to."""

    query: str
    record: QueryRecord = QueryRecord()
    passes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extend:
    """One more graph for a session.

    `bind` names the variables of those inputs and outputs of the graph that are called otherwise.
    """

    query: str
    egraph: ExecutionGraph
    bind: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provide:
    """A variable of a session has got its value, perhaps a `Failure`. It may be read by graphs already."""

    query: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Want:
    """Somebody waits for a variable. All that it comes of is done for that reader.

    Attributes:
        criteria: what the reader asks of queues and instances; None for what the session asks.
        deadline_s: point in the driver's time by which the reader needs it, and when the reader leaves.
    """

    query: str
    name: str
    criteria: Objective | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unwant:
    """One of those who waited for a variable has left: one who asked with these criteria and deadline."""

    query: str
    name: str
    criteria: Objective | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody will ask for a variable again."""

    query: str
    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """The end of a session. Unknown or ended ones are ignored."""

    query: str


SessionEvent: TypeAlias = Extend | Provide | Want | Unwant | Drop | Close


@dataclass(frozen=True, slots=True)
class BatchDone:
    """An instance has answered a batch: one result per task, in order."""

    engine: str
    instance: InstanceId
    batch: int
    results: Sequence[object]


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """An instance has failed a batch as a whole; the instance itself goes on."""

    engine: str
    instance: InstanceId
    batch: int
    error: StrettoError


@dataclass(frozen=True, slots=True)
class LLMReport:
    """An LLM instance says something about one of its tasks."""

    engine: str
    instance: InstanceId
    event: LLMEvent


@dataclass(frozen=True, slots=True)
class AddInstance:
    """Run one more replica of an engine."""

    engine: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class Drain:
    """Give an instance no more work and then end it: "finish" when it is idle, "suspend" at once.

    Suspended tasks go on at another instance, from the tokens that they have. An instance that drains or is
    gone already is left alone.
    """

    engine: str
    instance: InstanceId
    how: DrainHow = "finish"


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """An instance can take work: it has started, or it has answered again."""

    engine: str
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceSuspected:
    """An instance refused or was silent, and may be down."""

    engine: str
    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """An instance died with all that it was running, or could not be started."""

    engine: str
    instance: InstanceId
    error: StrettoError


@dataclass(frozen=True, slots=True)
class InstanceStopped:
    """An instance has ended, as it was told to."""

    engine: str
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Suspended:
    """A task was taken off an instance that is being suspended, with the tokens it has generated."""

    engine: str
    instance: InstanceId
    task: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """A time asked for by `WakeAt` has come."""


Event: TypeAlias = (
    Submit
    | Cancel
    | Open
    | SessionEvent
    | BatchDone
    | BatchFailed
    | LLMReport
    | AddInstance
    | Drain
    | InstanceReady
    | InstanceSuspected
    | InstanceLost
    | InstanceStopped
    | Suspended
    | KVReport
    | LoadReport
    | Wake
)


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Run `tasks`, `num_units` of work in all, as one batch on an idle instance of a batch engine."""

    engine: str
    instance: InstanceId
    batch: int
    tasks: tuple[Task, ...]
    num_units: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Hand a task to an LLM instance, which starts tasks by rank (smaller first).

    `terms` are the predicted seconds, by name, for which this instance was chosen; `reason` says it in words.
    """

    engine: str
    instance: InstanceId
    task: LLMTask
    rank: tuple[float, ...]
    terms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reprioritise:
    """Give a task that was handed to an LLM instance, and is not started as far as is known, a new rank.

    Instances that cannot do so, as those behind servers, ignore it.
    """

    engine: str
    instance: InstanceId
    task: int
    rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task that an LLM instance has; nothing more is wanted of it."""

    engine: str
    instance: InstanceId
    task: int


@dataclass(frozen=True, slots=True)
class Release:
    """`query` has ended and runs nothing more on this instance: forget what was kept for it."""

    engine: str
    instance: InstanceId
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
class Settled:
    """A variable of a session has come, once: its value, `ABSENT`, or a `Failure`."""

    query: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Reply:
    """The query's one and only end: its outputs by name, or what went wrong. A session has none then."""

    query: str
    outputs: Mapping[str, object] | None
    error: StrettoError | None = None


Action: TypeAlias = (
    StartBatch
    | Admit
    | Reprioritise
    | CancelTask
    | StartInstance
    | StopInstance
    | Release
    | WakeAt
    | Emit
    | Settled
    | Reply
)
