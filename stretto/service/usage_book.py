"""What tenants use of models, by day, on the disk.

A journal has a record for each day (in UTC) and tenant: numbers of requests, and of tokens of prompts, of
those that were found in caches, and of answers. It is written every few seconds, so a kill costs what was
counted since then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from stretto.model.errors import JournalError, NotSaved
from stretto.operate.request_metrics import MOST_TOKENS
from stretto.runtime.journal.lines import JournalEntry, parse_entry, work_hash
from stretto.runtime.journal.records import JournalRecords, latest
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace

_WORK = work_hash(["usage of tenants"])
_WRITE_S = 5.0
_log = logging.getLogger(__name__)


class DayUsage(NamedTuple):
    """What a tenant has used in a day."""

    day: str
    tenant: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class UsageBook(Observer):
    """Counts what tenants use. An async context manager: it is written inside, and at the end.

    Args:
        folder: where the journal is.
        today: returns the present day.

    Raises:
        JournalError, NotSaved: the journal cannot be used.
    """

    def __init__(
        self, folder: Path, today: Callable[[], str] = lambda: datetime.now(UTC).date().isoformat()
    ) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"the folder {folder} cannot be made: {error.strerror}") from error
        self._today = today
        self._journal = JournalRecords(_path(folder), _WORK)
        day = today()
        found, self._journal.found = self._journal.found, {}
        self._counts = {
            (key[0], key[1]): DayUsage(key[0], key[1], *counts)
            for key, counts in found.items()
            if key[0] == day
        }
        self._changed: set[tuple[str, str]] = set()
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> UsageBook:
        self._writing = asyncio.create_task(self._write_often())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writing is not None
        self._writing.cancel()
        with suppress(asyncio.CancelledError):
            await self._writing
        await self._write()
        self._journal.close()

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Count a request that has ended."""
        key = (self._today(), trace.tenant)
        before = self._counts.get(key) or DayUsage(*key)
        self._counts[key] = DayUsage(
            *key,
            before.requests + 1,
            before.prompt_tokens + _believed(trace.prompt_tokens),
            before.cached_tokens + _believed(trace.cached_tokens),
            before.output_tokens + _believed(trace.output_tokens),
        )
        self._changed.add(key)

    async def _write_often(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_S)
            await asyncio.shield(self._write())

    async def _write(self) -> None:
        async with self._lock:
            await self._write_changed()

    async def _write_changed(self) -> None:
        changed, self._changed = self._changed, set()
        if not changed:
            return
        try:
            await asyncio.to_thread(self._journal.save, {key: list(self._counts[key][2:]) for key in changed})
        except NotSaved as error:
            self._changed |= changed
            _log.warning("usage is not kept now: %s", error)
            return
        day = self._today()
        for key in changed - self._changed:
            if key[0] != day:
                del self._counts[key]


def read_usage(folder: Path) -> list[DayUsage]:
    """Return what tenants have used, by day and tenant, as far as it is written. Raises JournalError."""
    try:
        with _path(folder).open("rb") as file:
            entries: Iterator[JournalEntry] = (
                entry for line in file if (entry := parse_entry(line)) is not None
            )
            found, _ = latest(entries)
    except FileNotFoundError as error:
        raise JournalError(
            f"{folder}: no usage is kept here; is it the folder of `stretto serve --state`?"
        ) from error
    except OSError as error:
        raise JournalError(f"{_path(folder)}: {error.strerror}") from error
    return sorted(DayUsage(key[0], key[1], *counts) for key, counts in found.items())


def _path(folder: Path) -> Path:
    return folder / "usage.journal"


def _believed(count: int | None) -> int:
    return count if count is not None and 0 <= count <= MOST_TOKENS else 0
