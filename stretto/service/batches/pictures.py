"""What the live page shows of batches that have not ended."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.model.wording import counted
from stretto.operate.live import BatchPicture
from stretto.service.batches.unended_batch import UnendedBatch


def pictures(batches: Iterable[UnendedBatch], now_s: float) -> list[BatchPicture]:
    """Return what is shown of batches, at a time in seconds of Unix time."""
    return [_picture(one, now_s) for one in batches]


def _picture(one: UnendedBatch, now_s: float) -> BatchPicture:
    record = one.record
    waiting = sum(not line.is_sent for line in one.started.values())
    return BatchPicture(
        record.id,
        record.tenant,
        record.status,
        record.num_completed,
        record.num_failed,
        record.total,
        len(one.started) - waiting,
        max(0.0, record.expires_at - now_s),
        _why(one, waiting, now_s),
    )


def _why(one: UnendedBatch, num_waiting: int, now_s: float) -> str:
    """Return what a batch waits for; "" if its lines run, or it ends."""
    if one.is_broken:
        return "its answers cannot be written, or its files not read"
    if one.stage == "closed":
        return "a place among the open batches"
    if one.stage != "open" or one.ends_as is not None:
        return ""
    if now_s < one.rests_until_s:
        return f"engines are busy or away; again in {one.rests_until_s - now_s:.0f} s"
    if one.pace.is_raised:
        return "raised, to keep its window"
    return f"{counted(num_waiting, 'line')} waiting for what others leave" if num_waiting else ""
