"""The committer: it writes what a run finishes to its journal, many results at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry

_BATCH_S = 0.05


class Committer:
    """The writer of a run's journal, used with `async with`. Leaving writes what is left.

    Waiting for the disk blocks neither the run nor its event loop.

    Args:
        batch_s: seconds for which results are collected before they are written together.
    """

    def __init__(self, journal: JournalFile, batch_s: float = _BATCH_S) -> None:
        self._journal = journal
        self._batch_s = batch_s
        self._waiting: list[tuple[JournalEntry, Callable[[], None]]] = []
        self._news = asyncio.Event()
        self._is_leaving = False
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Committer:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._writing is not None
        self._is_leaving = True
        self._news.set()
        await self._writing

    def add(self, entry: JournalEntry, then: Callable[[], None]) -> None:
        """Have an entry written soon; `then` is called when the disk has it.

        Raises:
            NotSaved: the disk did not take an earlier one.
        """
        assert self._writing is not None
        if self._writing.done():
            self._writing.result()
        self._waiting.append((entry, then))
        self._news.set()

    async def save(self, entry: JournalEntry) -> None:
        """Have an entry written, and return when the disk has it. Raises NotSaved if it does not take it."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(entry, lambda: None if saved.done() else saved.set_result(None))
        assert self._writing is not None
        await asyncio.wait((saved, self._writing), return_when=asyncio.FIRST_COMPLETED)
        if not saved.done():
            self._writing.result()

    async def _write(self) -> None:
        while self._waiting or not self._is_leaving:
            await self._news.wait()
            if not self._is_leaving:
                await asyncio.sleep(self._batch_s)
                self._news.clear()
            batch, self._waiting = self._waiting, []
            await asyncio.to_thread(self._journal.write, [entry for entry, _ in batch])
            for _, then in batch:
                then()
