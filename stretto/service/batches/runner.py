"""The driver of the state machine of batches: it has lines answered, and keeps what came of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import time
from typing import Any, TypeVar

from stretto.model.errors import JournalError, NotSaved
from stretto.model.foreign import bug_of
from stretto.runtime.journal.committer import Committer
from stretto.service.app import ServiceApp
from stretto.service.batches.actions import (
    BatchAction,
    CloseBatch,
    EndBatch,
    OpenBatch,
    SaveBatch,
    StartLine,
    WithdrawLine,
)
from stretto.service.batches.input_lines import InputRefused
from stretto.service.batches.line_caller import EndedLine, end_line
from stretto.service.batches.open_batches import OpenBatches
from stretto.service.batches.opened_batch import OpenedBatch
from stretto.service.batches.records import ENDED, BatchProblem, BatchRecord, StoredFile
from stretto.service.batches.store import BatchStore
from stretto.wire.batch_lines import LineRefused

_TICK_S = 0.25
_CLEAN_S = 60.0
_AGAIN_S = 15.0
"""Seconds after which what the disk has not taken is written again."""
_log = logging.getLogger(__name__)


T = TypeVar("T")


class BatchRunner:
    """Runs the batches of a store. An async context manager: lines run inside it.

    Args:
        kept_s: seconds after which files are removed that say nothing else, and batches that have ended.

    Attributes:
        machine: the state machine.
        now: returns the seconds of Unix time.
    """

    def __init__(
        self,
        app: ServiceApp,
        store: BatchStore,
        max_line_bytes: int,
        kept_s: float = math.inf,
        now: Callable[[], float] = time,
    ) -> None:
        self.machine = OpenBatches()
        self._app = app
        self._store = store
        self._max_line_bytes = max_line_bytes
        self._kept_s = kept_s
        self.now = now
        self._opened: dict[str, tuple[OpenedBatch, Committer]] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[EndedLine | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cleaned_s = 0.0

    async def __aenter__(self) -> BatchRunner:
        for record in self._store.kept.unended():
            self._act(self.machine.add(record, self.now()))
        self._run(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for batch in list(self._opened):
            await self._close(batch)
        self._store.close()

    async def stop(self) -> None:
        """Start no more lines, and give up those that run. What they have been answered is kept."""
        self._act(self.machine.stop())
        await asyncio.sleep(0)

    async def create(self, record: BatchRecord) -> None:
        """Take a new batch. Raises NotSaved if the disk does not take it."""
        await self._store.save(record)
        self._act(self.machine.add(record, self.now()))

    def cancel(self, record: BatchRecord) -> BatchRecord:
        """Begin to end a batch that has not ended; return it as it is then. One that has ended, and is about
        to be kept so, stays as it is.
        """
        if self.machine.get(record.id) is not None:
            self._act(self.machine.cancel(record.id, self.now()))
        return self.machine.get(record.id) or record

    # --- actions

    def _act(self, actions: list[BatchAction]) -> None:
        for action in actions:
            match action:
                case OpenBatch(batch):
                    self._run(self._open(batch))
                case StartLine(batch, line):
                    self._asking[batch, line] = asking = asyncio.create_task(self._ask(action))
                    self._run(self._answer_line(action, asking))
                case WithdrawLine(batch, line):
                    if (task := self._asking.get((batch, line))) is not None:
                        task.cancel()
                case SaveBatch(record):
                    self._run(self._save(record))
                case EndBatch():
                    self._run(self._end(action))
                case CloseBatch(batch):
                    self._run(self._close(batch))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("a batch cannot go on: %s", error, exc_info=error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self.now()
            self._act(self.machine.wake(now_s))
            if abs(now_s - self._cleaned_s) <= _CLEAN_S:  # the clock may be set back
                continue
            self._cleaned_s = now_s
            for one in list(self._store.kept.expired(now_s, self._kept_s)):
                if isinstance(one, StoredFile) and self.machine.uses(one.id):
                    continue
                with suppress(NotSaved):  # tried again later
                    await self._store.remove(one)

    async def _open(self, batch: str) -> None:
        record = self.machine.get(batch)
        assert record is not None, "only batches that have not ended are opened"
        source, journal = self._store.path(record.input_file_id), self._store.journal_path(batch)
        try:
            opened = await asyncio.to_thread(OpenedBatch, record, source, journal, self._max_line_bytes)
        except InputRefused as error:
            self._act(self.machine.refused(batch, error.problems, self.now()))
            return
        except FileNotFoundError:
            problem = BatchProblem("file_not_found", "the input file is there no more", param="input_file_id")
            self._act(self.machine.refused(batch, [problem], self.now()))
            return
        except (OSError, NotSaved, JournalError) as error:
            _log.warning("batch %s cannot be opened now: %s", batch, error)
            self._act(self.machine.broke(batch, self.now()))
            return
        except Exception as error:
            _log.error("batch %s: %s", batch, error, exc_info=error)
            problem = BatchProblem("internal_error", bug_of(error).message)
            self._act(self.machine.refused(batch, [problem], self.now()))
            return
        committer = Committer(opened.journal)
        await committer.__aenter__()
        self._opened[batch] = opened, committer
        self._act(
            self.machine.opened(
                batch, opened.sizes, opened.is_done, opened.num_failed, opened.spent, self.now()
            )
        )

    async def _close(self, batch: str) -> None:
        if (found := self._opened.pop(batch, None)) is None:
            return
        opened, committer = found
        with suppress(NotSaved):  # told where it was written
            await committer.__aexit__(None, None, None)
        opened.close()

    async def _save(self, record: BatchRecord) -> None:
        """Keep a batch as it is, unless it has ended meanwhile: `_end` keeps it then."""

        async def save() -> None:
            now = self.machine.get(record.id)
            if now is not None or record.status in ENDED:
                await self._store.save(now or record)

        await _until_saved(save)

    async def _end(self, action: EndBatch) -> None:
        batch = action.batch
        opened, _ = self._opened[batch]
        record = self.machine.get(batch)
        assert record is not None, "the batch ends here"
        ids = [f"file-{batch.removeprefix('batch_')}{ending}" for ending in ("out", "err")]
        output, errors = map(self._store.path, ids)
        written = await _until_saved(
            lambda: asyncio.to_thread(opened.write_files, output, errors, action.status)
        )
        now_s = self.now()
        kept_until = None if record.output_kept_s is None else record.created_at + record.output_kept_s
        files = [
            StoredFile(
                id, record.tenant, f"{batch}_{kind}.jsonl", "batch_output", num_bytes, int(now_s), kept_until
            )
            for id, kind, num_bytes in zip(ids, ("output", "error"), written, strict=True)
            if num_bytes
        ]
        output_id, error_id = (id if num_bytes else None for id, num_bytes in zip(ids, written, strict=True))
        ended = self.machine.ended(batch, action.status, output_id, error_id, now_s)
        await _until_saved(lambda: self._store.save(*files, ended))
        await self._close(batch)
        await self._store.forget_answers(batch)
        self._act(self.machine.wake(self.now()))

    # --- lines

    async def _answer_line(self, action: StartLine, asking: asyncio.Task[EndedLine | None]) -> None:
        """Keep the answer of a line when it is there."""
        batch, line = action.batch, action.line
        try:
            await asyncio.wait((asking,))
        finally:
            del self._asking[batch, line]
            asking.cancel()
        if asking.cancelled():
            self._act(self.machine.not_answered(batch, line, self.now(), is_refused=False))
            return
        try:
            if (ended := asking.result()) is not None:
                await self._opened[batch][1].save(ended.entry)
        except (OSError, NotSaved, LineRefused) as error:
            _log.warning("batch %s: %s", batch, error)
            self._act(self.machine.broke(batch, self.now()))
            ended = None
        if ended is None:
            self._act(self.machine.not_answered(batch, line, self.now(), is_refused=True))
        else:
            self._act(
                self.machine.answered(batch, line, self.now(), is_well=ended.is_well, spent=ended.spent)
            )

    async def _ask(self, action: StartLine) -> EndedLine | None:
        """Return what came of a line; None if engines are busy or away."""
        batch, line = action.batch, action.line
        record = self.machine.get(batch)
        assert record is not None, "lines of batches that have not ended run"
        read = await asyncio.to_thread(self._opened[batch][0].read, line)
        if (tenant := self._app.tenants.named(record.tenant)) is None:
            return None

        def sent(is_sent: bool) -> None:
            self._act(self.machine.sent(batch, line, self.now(), is_sent=is_sent))

        return await end_line(self._app, tenant, record.endpoint, line, read, action.objective, sent)


async def _until_saved(save: Callable[[], Awaitable[T]]) -> T:
    """Return what `save` returns, which is tried again as long as the disk takes nothing."""
    while True:
        try:
            return await save()
        except NotSaved as error:
            _log.warning("batches are not kept now: %s", error)
            await asyncio.sleep(_AGAIN_S)
