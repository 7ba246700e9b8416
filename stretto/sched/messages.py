"""Events that callers tell the schedulers, and all events together.

A driver feeds the schedulers events and carries out their actions (`actions.py`). There are two drivers, with
the same schedulers: `runtime/` (asyncio, real engines) and `sim/` (virtual time). What engines report is in
`engine_events.py`; messages about instances that a router has too are in `cluster/messages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.tasks import (
    Criteria,
    Objective,
    QueryRecord,
)
from stretto.sched.engine_events import EngineEvent


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
class Wake:
    """Event to the schedulers: the time for which they asked with `WakeAt` has come, so they check timeouts
    and deadlines.
    """


Event: TypeAlias = Submit | Cancel | EndProgram | Open | SessionEvent | EngineEvent | Wake
