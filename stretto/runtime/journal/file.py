"""A journal as a file: it is locked, read, and then appended to.

What `write` has returned from is on the disk. A write that fails is taken back, so the file stays whole.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from stretto.errors import JournalError, NotSaved
from stretto.runtime.journal.lines import Entry, check_header, entry_line, header_line, parse_entry


class JournalFile:
    """The journal of a run, in a file that is made if it is missing. Only its owner may read it.

    Args:
        work: hash of the work that it belongs to.

    Raises:
        JournalError: the file cannot be opened, is no journal, belongs to other work, or another run uses
            it.
        NotSaved: the header cannot be written.
    """

    def __init__(self, path: Path, work: str) -> None:
        self._path = path
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
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

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of earlier runs. To be read to the end before `write`, which cuts off a line that
        was torn.
        """
        with self._path.open("rb") as file:
            file.seek(self._begins)
            for line in file:
                if line.endswith(b"\n"):
                    self._end += len(line)
                if (entry := parse_entry(line)) is not None:
                    yield entry

    def write(self, entries: Iterable[Entry]) -> None:
        """Append entries, and return when the disk has them.

        Raises:
            NotSaved: the disk does not take them; none is in the file then.
        """
        self._append(b"".join(map(entry_line, entries)))

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
        if first != wanted and wanted.startswith(first):
            self._append(wanted)
            self._sync_folder()
        else:
            check_header(first, work, self._path)
        return len(wanted)

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
