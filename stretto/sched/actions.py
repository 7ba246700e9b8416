"""Actions of the schedulers, which a driver carries out. Those about instances that a router has too are in
`cluster/messages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from stretto.cluster.messages import (
    InstanceId,
    StartInstance,
    StopInstance,
)
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.tasks import (
    Ending,
    LLMTask,
    Reuse,
    Task,
    Usage,
)


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
