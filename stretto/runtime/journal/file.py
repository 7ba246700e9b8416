"""A journal as a file: it is locked, read, and then appended to.

What `write` has returned from is on the disk. A write that fails is taken back, so the file stays whole.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from stretto.model.errors import JournalError, NotSaved
from stretto.model.private_file import private
from stretto.runtime.journal.lines import JournalEntry, entry_line, header_line, needs_checksums, parse_entry

_MOST_NAMED = 10
_log = logging.getLogger(__name__)


class JournalFile:
    """The journal of a run, in a file that is made if it is missing. Only its owner may read it.

    Args:
        work: hash of the work that it belongs to.
        work_before: returns that hash as journals without checksums have it.

    Attributes:
        num_damaged: number of damaged lines among the entries, once they have been read.

    Raises:
        JournalError: the file cannot be opened, is no journal, belongs to other work, or another run uses
            it.
        NotSaved: the header cannot be written.
    """

    def __init__(self, path: Path, work: str, work_before: Callable[[], str] = str) -> None:
        self._path = path
        self._work_before = work_before
        self._is_checked = True
        self.num_damaged = 0
        try:
            self._file = os.fdopen(private(str(path), os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error
        try:
            self._lock()
            self._begins = self._check(work)
        except BaseException:
            self._file.close()
            raise
        self._end = self._begins

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def entries(self) -> Iterator[JournalEntry]:
        """Yield the entries of earlier runs. To be read to the end before `write`, which cuts off a line that
        was torn. A line that is damaged is named in a warning.
        """
        damaged: list[int] = []
        with self._path.open("rb") as file:
            file.seek(self._begins)
            for number, line in enumerate(file, 2):
                is_whole = line.endswith(b"\n")
                self._end += len(line) if is_whole else 0
                if (entry := parse_entry(line, is_checked=self._is_checked)) is not None:
                    yield entry
                elif is_whole:
                    damaged.append(number)
        self.num_damaged = len(damaged)
        if damaged:
            named = ", ".join(map(str, damaged[:_MOST_NAMED])) + (", …" if damaged[_MOST_NAMED:] else "")
            _log.warning("%s: damaged lines, whose results are made again: %s", self._path, named)

    def write(self, entries: Iterable[JournalEntry]) -> None:
        """Append entries, and return when the disk has them.

        Raises:
            NotSaved: the disk does not take them; none is in the file then.
        """
        self._append(b"".join(map(entry_line, entries)))

    def reread(self) -> Iterator[JournalEntry]:
        """Yield the entries once more, those that were written among them. Lines that are damaged are left
        out.
        """
        with self._path.open("rb") as file:
            file.seek(self._begins)
            for line in file:
                if (entry := parse_entry(line, is_checked=self._is_checked)) is not None:
                    yield entry

    def move(self, path: Path) -> None:
        """Let the file take the place of another one, by one step. Raises OSError."""
        os.replace(self._path, path)
        self._path = path
        with suppress(OSError):  # the file is in its place, whatever the disk says of the folder
            self._sync_folder()

    def _append(self, data: bytes) -> None:
        try:
            self._file.truncate(self._end)
            self._file.seek(self._end)
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise not_saved(self._path, error) from error
        self._end += len(data)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"{self._path} is in use by another run; wait until it has ended") from error

    def _check(self, work: str) -> int:
        """Check the header, or write it if a run was killed before it was whole; return where it ends."""
        wanted = header_line(work)
        self._end = 0
        with self._path.open("rb") as file:
            first = file.readline(2 * len(wanted))
        if first == wanted:
            return len(wanted)
        if wanted.startswith(first):
            self._append(wanted)
            self._sync_folder()
            return len(wanted)
        self._is_checked = needs_checksums(first, work, self._work_before(), self._path)
        return len(first)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def not_saved(path: Path, error: OSError) -> NotSaved:
    """Return the error which says that a file of a run could not be written."""
    return NotSaved(
        f"{path}: {error.strerror}; what was saved is kept: give the same command again when there is room"
    )
