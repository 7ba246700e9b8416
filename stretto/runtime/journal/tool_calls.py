"""The calls of agents' tools in a journal: a run that is started again calls nothing twice.

A run has a name. The journal has its question, and of each of its turns the calls that the LLM wrote, for
each call with effects that it has begun, and what came of each call. When the run is started again, the LLM
is asked again, but a turn that is in the journal goes on with the calls that stand there. An effect that had
begun and has no result is in doubt, and is not repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from reprlib import repr as short
from typing import Any

from stretto.model.errors import JournalError
from stretto.model.tools import ToolResult
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry, work_hash

_ASKED, _CALLS, _BEGUN, _RESULT = "asked", "calls", "begun", "result"
_WORK = work_hash(["calls of tools"])


class ToolJournal:
    """A journal of the calls of agents' tools, in a file that is made if it is missing:

        tools_engine(tools, records=ToolJournal("orders.journal"))

    A tenant uses the name of a run for one question only. What is recorded is on the disk before the run goes
    on.

    Args:
        path: the file, which only its owner may read, and one process at a time may use.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._num_users = 0
        self._file: JournalFile | None = None
        self._known: dict[tuple[str, ...], Any] = {}

    def open(self) -> None:
        """Open the file and read it, unless that is done already. Each `open` needs a `close`.

        Raises:
            JournalError: the file cannot be opened, is another journal, or another process uses it.
        """
        with self._lock:
            if self._file is None:
                self._file = JournalFile(self._path, _WORK)
                self._known = {entry.key: entry.value for entry in self._file.entries()}
            self._num_users += 1

    def close(self) -> None:
        """Close the file when all who have opened it have closed it."""
        with self._lock:
            self._num_users -= 1
            if not self._num_users and self._file is not None:
                self._file.__exit__(None, None, None)
                self._file = None

    def turn(self, run: tuple[str, ...], calls: Sequence[str], question: str | None = None) -> list[str]:
        """Return the calls of a turn: those that are recorded, or else `calls`, which are recorded now.

        Raises:
            JournalError: the run of this name has another question.
            NotSaved: the disk does not take them.
        """
        with self._lock:
            if question is not None:
                self._note_question(run[:-1], question)
            key = (*run, _CALLS)
            if key not in self._known:
                self._write(key, list(calls))
            return list(self._known[key])

    def result(self, run: tuple[str, ...], place: int) -> ToolResult | None:
        """Return what came of a call of a turn; None if that is not recorded.

        Raises:
            JournalError: the entry has another form.
        """
        with self._lock:
            found = self._known.get((*run, str(place), _RESULT))
        try:
            return None if found is None else ToolResult(**found)
        except TypeError as error:
            raise JournalError(f"{self._path}: the result of a call has another form: {error}") from error

    def begin(self, run: tuple[str, ...], place: int) -> bool:
        """Record that an effect begins. Return False if that is recorded already.

        Raises:
            NotSaved: the disk does not take it.
        """
        with self._lock:
            key = (*run, str(place), _BEGUN)
            if key in self._known:
                return False
            self._write(key, True)
            return True

    def end(self, run: tuple[str, ...], place: int, result: ToolResult) -> None:
        """Record what came of a call.

        Raises:
            NotSaved: the disk does not take it.
        """
        with self._lock:
            self._write((*run, str(place), _RESULT), asdict(result))

    def _note_question(self, run: tuple[str, ...], question: str) -> None:
        """Record the question of a run, or check it. A run of an earlier version has none: this is taken."""
        key = (*run, _ASKED)
        if key not in self._known:
            self._write(key, question)
        elif (before := self._known[key]) != question:
            raise JournalError(
                f"{self._path}: run_name {run[-1]!r} names a run with another question: {short(before)}, and "
                f"not {short(question)}; give each question a name of its own"
            )

    def _write(self, key: tuple[str, ...], value: object) -> None:
        if self._file is None:
            raise JournalError(f"{self._path}: the journal is not open")
        self._file.write([JournalEntry(key, value)])
        self._known[key] = value
