"""Messages of the schedulers: the events that go in, and the actions that come out.

Messages about instances that a router shares with the schedulers stand in `cluster/messages.py`.

The two drivers, `runtime/` (asyncio, real engines) and `sim/` (virtual time), feed the same events to the
same machines and carry out the same actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
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
from stretto.record import record
from stretto.tasks import LLMEvent, LLMTask, Objective, QueryRecord, Task


@record
class Submit:
    """Event: a new query of `tenant` that runs one graph and then ends; all outputs of the graph are wanted.

    `deadline_s` is a point in the driver's time. `passes` are the passes for the graphs it expands to.
    """

    query: str
    egraph: ExecutionGraph
    inputs: Mapping[str, object]
    deadline_s: float | None = None
    passes: tuple[str, ...] = ()
    tenant: str = ""
    objective: Objective = "throughput"


@record
class Cancel:
    """Event: the caller gives the query up. Unknown or ended queries are ignored."""

    query: str


@record
class Open:
    """Event: a new session, a query that ends only when it is closed.

    `passes` are the passes for the graphs that its graphs expand to.
    """

    query: str
    record: QueryRecord = QueryRecord()
    passes: tuple[str, ...] = ()


@record
class Extend:
    """Event: one more graph for a session.

    `bind` maps names of the graph's inputs and outputs to the session's variables, where these differ.
    """

    query: str
    egraph: ExecutionGraph
    bind: Mapping[str, str] = field(default_factory=dict)


@record
class Provide:
    """Event: a variable of a session has got its value, perhaps a `Failure`. Graphs may already read it."""

    query: str
    name: str
    value: object


@record
class Want:
    """Event: a caller starts to wait for a variable. All that it comes of is done for that reader.

    Attributes:
        criteria: what the reader asks of queues and instances; None for what the session asks.
        deadline_s: point in the driver's time by which the reader needs it, and when the reader leaves.
    """

    query: str
    name: str
    criteria: Objective | None = None
    deadline_s: float | None = None


@record
class Unwant:
    """Event: a caller that waited for a variable with these criteria and this deadline has left."""

    query: str
    name: str
    criteria: Objective | None = None
    deadline_s: float | None = None


@record
class Drop:
    """Event: a variable is no longer needed and will not be asked for again."""

    query: str
    name: str


@record
class Close:
    """Event: a session ends. Unknown or ended sessions are ignored."""

    query: str


SessionEvent: TypeAlias = Extend | Provide | Want | Unwant | Drop | Close


@record
class BatchDone:
    """Event: an instance has answered a batch, with one result per task, in order."""

    engine: str
    instance: InstanceId
    batch: int
    results: Sequence[object]


@record
class BatchFailed:
    """Event: an instance has failed a batch as a whole; the instance itself goes on."""

    engine: str
    instance: InstanceId
    batch: int
    error: StrettoError


@record
class LLMReport:
    """Event: an LLM instance reports on one of its tasks."""

    engine: str
    instance: InstanceId
    event: LLMEvent


@record
class AddInstance:
    """Event: one more replica of an engine is to run."""

    engine: str
    replica: Replica


@record
class Drain:
    """Event: an instance is to get no more work and then to end: "finish" when it is idle, "suspend" at once.

    Suspended tasks go on at another instance, from the tokens that they have. An instance that drains or is
    gone already is left alone.
    """

    engine: str
    instance: InstanceId
    how: DrainHow = "finish"


@record
class InstanceReady:
    """Event: an instance can take work: it has started, or it has answered again."""

    engine: str
    instance: InstanceId


@record
class InstanceSuspected:
    """Event: an instance refused or was silent, and may be down."""

    engine: str
    instance: InstanceId
    reason: str


@record
class InstanceLost:
    """Event: an instance died with all that it was running, or could not be started."""

    engine: str
    instance: InstanceId
    error: StrettoError


@record
class InstanceStopped:
    """Event: an instance has ended, as it was told to."""

    engine: str
    instance: InstanceId


@record
class Suspended:
    """Event: a task was taken off an instance that is being suspended, with the tokens it has generated."""

    engine: str
    instance: InstanceId
    task: int
    token_ids: tuple[int, ...]


@record
class Wake:
    """Event: the time asked for by `WakeAt` has come."""


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


@record
class StartBatch:
    """Action: run `tasks`, `num_units` of work in all, as one batch on an idle instance of a batch engine."""

    engine: str
    instance: InstanceId
    batch: int
    tasks: tuple[Task, ...]
    num_units: int


@record
class Admit:
    """Action: hand a task to an LLM instance, which starts tasks by rank (smaller first).

    `terms` are the predicted seconds, by name, for which this instance was chosen; `reason` says it in words.
    """

    engine: str
    instance: InstanceId
    task: LLMTask
    rank: tuple[float, ...]
    terms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@record
class Reprioritise:
    """Action: change the rank of a task at an LLM instance that, as far as is known, has not started it.

    Instances that cannot do so, such as those behind servers, ignore it.
    """

    engine: str
    instance: InstanceId
    task: int
    rank: tuple[float, ...]


@record
class CancelTask:
    """Action: stop a task at an LLM instance; its output is no longer wanted."""

    engine: str
    instance: InstanceId
    task: int


@record
class Release:
    """Action: forget what an instance keeps for `query`, which has ended and runs nothing more there."""

    engine: str
    instance: InstanceId
    query: str


@record
class WakeAt:
    """Action: send `Wake` at that time, or a little later. Replaces any earlier `WakeAt`."""

    time_s: float


@record
class Emit:
    """Action: show more text of an output that is still being decoded."""

    query: str
    output: str
    text: str


@record
class Settled:
    """Action: deliver a variable of a session, once: its value, `ABSENT`, or a `Failure`."""

    query: str
    name: str
    value: object


@record
class Reply:
    """Action: end a query, once: with its outputs by name, or with an error. A session has no outputs
    here.
    """

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
