"""Messages between the schedulers and a driver: events go in, actions come out.

A driver feeds the schedulers events and carries out their actions (what they decide).
There are two, with the same schedulers: `runtime/` (asyncio, real engines) and `sim/` (virtual time).
Messages about instances that a router shares with the schedulers stand in `cluster/messages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from stretto.cluster.messages import (
    DrainHow,
    InstanceId,
    KVReport,
    StartInstance,
    StopInstance,
)
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Replica
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.tasks import (
    Criteria,
    Ending,
    LLMEvent,
    LLMTask,
    Objective,
    QueryRecord,
    Reuse,
    Task,
    Usage,
)


@record
class Submit:
    """Event to the schedulers: a caller has submitted a new query.

    It runs one graph and ends when all outputs of the graph have come.

    `deadline_s` is a time by the clock of the driver. `passes` are the
    rewriting passes for the subgraphs that its `expand` steps produce while it
    runs. `is_streamed` says whether the caller may read texts before their end. `program` names the program
    that the query is a part of (`QueryRecord.program`).
    """

    query: str
    egraph: ExecutionGraph
    inputs: Mapping[str, object]
    deadline_s: float | None = None
    passes: tuple[str, ...] = ()
    tenant: str = ""
    objective: Objective = "throughput"
    is_streamed: bool = True
    program: str = ""


@record
class Cancel:
    """Event to the schedulers: the caller cancels a query, or the driver ends it with an error.

    Unknown or ended queries are ignored.
    """

    query: str
    error: StrettoError | None = None


@record
class EndProgram:
    """Event to the schedulers: a program (`QueryRecord.program`) of a tenant makes no more queries.

    It frees room for others sooner, and need not be sent. Queries of the program that still run go on.
    """

    program: str
    tenant: str = ""


@record
class Open:
    """Event to the schedulers: a caller has opened a session, a query that takes further graphs until it is
    closed.

    `record` has its tenant, objective and deadline. `passes` are the rewriting passes for the
    subgraphs that `expand` steps of its graphs produce.
    """

    query: str
    record: QueryRecord = QueryRecord()
    passes: tuple[str, ...] = ()


@record
class Extend:
    """Event to the schedulers: a caller adds one more graph (app) to a session.

    `bind` maps names of the graph's inputs and outputs to names of the session's variables, where these
    differ. `values` are the values of inputs that are no variables, by the names of the inputs.
    """

    query: str
    egraph: ExecutionGraph
    bind: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)


@record
class Provide:
    """Event to the schedulers: the caller sets a variable of a session to a value, which may be a `Failure`.

    Graphs that read the variable may have been added before.
    """

    query: str
    name: str
    value: object


@record
class Want:
    """Event to the schedulers: a caller starts to wait for a variable of a session.

    All steps that produce the variable are then scheduled as urgently as this caller asks.

    Attributes:
        criteria: what the caller asks of queues and instances (`Criteria`); None takes the session's own.
        deadline_s: time by the driver's clock by which the caller needs the value, and at which it stops
            waiting.
    """

    query: str
    name: str
    criteria: Criteria | None = None
    deadline_s: float | None = None


@record
class Unwant:
    """Event to the schedulers: a caller that waited for a variable of a session, with these criteria
    and this deadline, waits no longer.

    No work is cancelled.
    """

    query: str
    name: str
    criteria: Criteria | None = None
    deadline_s: float | None = None


@record
class Drop:
    """Event to the schedulers: a caller gives up a variable of a session.

    Nobody will ask for it again, and work that only serves it is cancelled.
    """

    query: str
    name: str


@record
class Close:
    """Event to the schedulers: a session is closed by its caller. Unknown or ended sessions are ignored."""

    query: str


SessionEvent: TypeAlias = Extend | Provide | Want | Unwant | Drop | Close


@record
class BatchDone:
    """Event to the schedulers: an instance of a batch engine has answered a batch, with one result per task,
    in order. References may stand in place of large values.
    """

    engine: str
    instance: InstanceId
    batch: int
    results: Sequence[object]


@record
class BatchFailed:
    """Event to the schedulers: an instance has failed a batch as a whole; the instance itself can still take
    work.
    """

    engine: str
    instance: InstanceId
    batch: int
    error: StrettoError


@record
class LLMReport:
    """Event to the schedulers: an LLM instance reports that one of its tasks has started, produced output,
    ended or failed.
    """

    engine: str
    instance: InstanceId
    event: LLMEvent


@record
class AddInstance:
    """Event to the schedulers: an engine is to get one more instance, which runs `replica` (a way to run the
    engine).
    """

    engine: str
    replica: Replica


@record
class Drain:
    """Event to the schedulers: an instance is to get no more work and to stop.

    "finish" stops it when it is idle. "suspend" stops it at once, and its tasks go on at other instances from
    the tokens that they have generated. An instance that is draining or gone already is left alone.
    """

    engine: str
    instance: InstanceId
    how: DrainHow = "finish"


@record
class InstanceReady:
    """Event to the schedulers: an instance can take work, because it has started, or answers again after it
    was suspected to be down.
    """

    engine: str
    instance: InstanceId


@record
class InstanceSuspected:
    """Event to the schedulers: an instance refused a request or did not answer, so it may be down.

    `reason` says what happened. `rest_s` is for how many seconds it has asked to be left alone.
    """

    engine: str
    instance: InstanceId
    reason: str
    rest_s: float = 0.0


@record
class InstanceLost:
    """Event to the schedulers: an instance died with all that it was running, or could not be started."""

    engine: str
    instance: InstanceId
    error: StrettoError


@record
class InstanceStopped:
    """Event to the schedulers: an instance has ended, as the schedulers had asked with `StopInstance`."""

    engine: str
    instance: InstanceId


@record
class Suspended:
    """Event to the schedulers: a task was taken off an instance that is being suspended.

    It will go on at another one from `token_ids`, the tokens that it has generated.
    """

    engine: str
    instance: InstanceId
    task: int
    token_ids: tuple[int, ...]


@record
class AllSuspended:
    """Event to the runtime: an instance that is being suspended runs no task any more; a `Suspended` for each
    came before. The runtime closes the instance then. Schedulers get no such event.
    """

    engine: str
    instance: InstanceId


@record
class Wake:
    """Event to the schedulers: the time for which they asked with `WakeAt` has come, so they check timeouts
    and deadlines.
    """


EngineEvent: TypeAlias = (
    BatchDone
    | BatchFailed
    | LLMReport
    | AddInstance
    | Drain
    | InstanceReady
    | InstanceSuspected
    | InstanceLost
    | InstanceStopped
    | Suspended
    | AllSuspended
    | KVReport
)
"""What concerns an engine: its instances, and what they report."""

Event: TypeAlias = Submit | Cancel | EndProgram | Open | SessionEvent | EngineEvent | Wake


@record
class StartBatch:
    """Action of the schedulers: run `tasks` as one batch on an idle instance of a batch engine.

    `num_units` is the size of the batch, in the units of work (texts, pairs, rows) in which the engine's
    profile has its costs. `num_tokens` is the estimated tokens of its texts; None where the profile does not
    depend on them.
    """

    engine: str
    instance: InstanceId
    batch: int
    tasks: tuple[Task, ...]
    num_units: int
    num_tokens: int | None = None


@record
class Admit:
    """Action of the schedulers: hand a task to an LLM instance.

    `rank` is its place among the tasks that wait there (smaller goes first).

    `terms` are predicted seconds by name, from which the placement policy chose this instance; `reason` gives
    the choice in words. `held_tokens` is how many tokens of the prompt the instance is believed to hold.
    `held_s` is for how many seconds the request was held, because its program had no room in KV memory.
    """

    engine: str
    instance: InstanceId
    task: LLMTask
    rank: tuple[float, ...]
    terms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    held_tokens: int = 0
    held_s: float = 0.0


@record
class Reprioritise:
    """Action of the schedulers: change the rank of a
    task at an LLM instance that has probably not started it.

    Instances that cannot do so, such as those behind servers, ignore it.
    """

    engine: str
    instance: InstanceId
    task: int
    rank: tuple[float, ...]


@record
class CancelTask:
    """Action of the schedulers: stop a task at an instance, because its output is no longer wanted.

    An LLM instance sends nothing more about it. An instance of a batch engine may leave it out of the batch
    that runs, and answers the batch all the same.
    """

    engine: str
    instance: InstanceId
    task: int


@record
class Release:
    """Action of the schedulers: let an instance free what it keeps for a query.

    The query has ended and runs nothing more there.
    """

    engine: str
    instance: InstanceId
    query: str


@record
class Retain:
    """Action of the schedulers: tell an LLM instance when a query will need prefixes
    again that the instance has cached.

    It is a hint for the order of evictions. Instances that cannot use it, such as those behind servers,
    ignore it.
    """

    engine: str
    instance: InstanceId
    reuse: Reuse


@record
class WakeAt:
    """Action of the schedulers: ask the driver to send them a `Wake` event at `time_s`, or a little later.

    Replaces any earlier `WakeAt`.
    """

    time_s: float


@record
class Emit:
    """Action of the schedulers: pass more text of an output of a query to the caller, while
    the output is still being generated.
    """

    query: str
    output: str
    text: str


@record
class Settled:
    """Action of the schedulers: tell the callers that wait for a variable of a session its value, `ABSENT`
    (there is none), or a `Failure`; sent once. `usage` counts the tokens of the LLM requests that have made
    it, since the variables that they read.
    """

    query: str
    name: str
    value: object
    usage: Usage = field(default=Usage(), compare=False)


@record
class Reply:
    """Action of the schedulers: tell the caller that a query has ended, with its outputs
    by name or with an error; sent once.

    A session has no outputs here, as `Settled` has delivered its variables. `usage` counts the tokens of the
    LLM requests that have ended, as engines report them. `endings` are the ends of those that did not end by
    themselves, for a query that has outputs.
    """

    query: str
    outputs: Mapping[str, object] | None
    error: StrettoError | None = None
    usage: Usage = field(default=Usage(), compare=False)
    endings: tuple[Ending, ...] = field(default=(), compare=False)


Action: TypeAlias = (
    StartBatch
    | Admit
    | Reprioritise
    | CancelTask
    | StartInstance
    | StopInstance
    | Release
    | Retain
    | WakeAt
    | Emit
    | Settled
    | Reply
)
