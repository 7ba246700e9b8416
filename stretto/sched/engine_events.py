"""Events of engines and their instances, which a driver tells the schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stretto.cluster.messages import (
    DrainHow,
    InstanceId,
    KVReport,
)
from stretto.model.errors import StrettoError
from stretto.model.record import record
from stretto.model.replica import Replica
from stretto.model.tasks import (
    LLMEvent,
)


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
