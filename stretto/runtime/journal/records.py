"""Records in a journal: the last entry of a key is its record, and one without a value removes it.

The file is written anew when most of its entries no longer count, unless lines are damaged: when it is
opened, and while it is in use. Where there is no room for that, it grows on, and it is tried again later.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stretto.model.errors import NotSaved
from stretto.runtime.journal.file import JournalFile, not_saved
from stretto.runtime.journal.lines import JournalEntry

_SPARE_ENTRIES = 1000
"""Entries that no longer count for which a file is not written anew."""

_log = logging.getLogger(__name__)

RecordKey = tuple[str, ...]


class JournalRecords:
    """The records of a journal, in a file that is made if it is missing. Only one process may use it.

    Args:
        work: hash of what the records are, which tells them from other journals.

    Attributes:
        found: the records of earlier runs, in the order in which their keys came.
        is_damaged: whether some of them may be missing, because lines are damaged.

    Raises:
        JournalError, NotSaved: as `JournalFile`.
    """

    def __init__(self, path: Path, work: str) -> None:
        self._path, self._work = path, work
        self._file = JournalFile(path, work)
        try:
            self.found, self._num_entries = latest(self._file.entries())
            self._keys = set(self.found)
            self.is_damaged = self._file.num_damaged > 0
            self._most_entries = 0
            self._set_most()
            if self._num_entries > self._most_entries:
                self._file = self._rewritten(self.found)
        except BaseException:
            self.close()
            raise

    def save(self, records: Mapping[RecordKey, object]) -> None:
        """Write records, and return when the disk has all of them. A value None removes a record.

        Raises:
            NotSaved: the disk does not take them; nothing is changed then.
        """
        self._file.write([JournalEntry(key, value) for key, value in records.items()])
        self._num_entries += len(records)
        for key, value in records.items():
            if value is None:
                self._keys.discard(key)
            else:
                self._keys.add(key)
        if self._num_entries > self._most_entries:
            self._compact()

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def _set_most(self) -> None:
        """Set the number of entries beyond which the file is written anew."""
        is_kept = self.is_damaged  # what is damaged may be wanted by somebody
        self._most_entries = sys.maxsize if is_kept else 2 * len(self._keys) + _SPARE_ENTRIES

    def _compact(self) -> None:
        """Write the file anew, unless it has become shorter than was thought, or there is no room."""
        self._set_most()
        if self._num_entries <= self._most_entries:
            return
        try:
            self._file = self._rewritten(latest(self._file.reread())[0])
            self._set_most()
        except (NotSaved, OSError) as error:
            _log.warning("%s is not made shorter now: %s", self._path, error)
            self._most_entries = self._num_entries + _SPARE_ENTRIES

    def _rewritten(self, found: Mapping[RecordKey, object]) -> JournalFile:
        """Write the records alone to a new file, which takes the place of the old one."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            file = JournalFile(fresh, self._work)
            try:
                file.write([JournalEntry(key, value) for key, value in found.items()])
                file.move(self._path)
            except BaseException:
                file.__exit__(None, None, None)
                fresh.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise not_saved(self._path, error) from error
        self.close()
        self._num_entries = len(found)
        return file


def latest(entries: Iterable[JournalEntry]) -> tuple[dict[RecordKey, Any], int]:
    """Return the records that entries hold, and the number of entries."""
    values: dict[RecordKey, Any] = {}
    num_entries = 0
    for entry in entries:
        num_entries += 1
        if entry.value is None:
            values.pop(entry.key, None)
        else:
            values[entry.key] = entry.value
    return values, num_entries
