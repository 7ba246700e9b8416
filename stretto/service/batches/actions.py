"""What the state machine of batches tells its driver to do."""

from __future__ import annotations

from typing import TypeAlias

from stretto.model.record import record
from stretto.model.tasks import Objective
from stretto.service.batches.records import BatchRecord, BatchStatus


@record
class OpenBatch:
    """Action: read the input file of a batch and what was answered of it; then call `opened` or `refused`."""

    batch: str


@record
class StartLine:
    """Action: send a line of a batch; then call `sent`, and `answered` or `not_answered`."""

    batch: str
    line: int
    objective: Objective


@record
class WithdrawLine:
    """Action: end a line that has started, if it has no answer yet; then call `not_answered`."""

    batch: str
    line: int


@record
class EndBatch:
    """Action: write the files of a batch, and then call `ended` with them. It has this status afterwards."""

    batch: str
    status: BatchStatus


@record
class CloseBatch:
    """Action: close the files of a batch, which is opened again later."""

    batch: str


@record
class SaveBatch:
    """Action: keep a batch as it is now."""

    batch: BatchRecord


BatchAction: TypeAlias = OpenBatch | StartLine | WithdrawLine | EndBatch | CloseBatch | SaveBatch
