"""Records in a journal: the last entry of a key is its record, and one without a value removes it.

When the file is opened, it is written anew if most of its entries no longer count, unless lines are damaged.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stretto.runtime.journal.file import JournalFile, not_saved
from stretto.runtime.journal.lines import JournalEntry

_SPARE_ENTRIES = 1000
"""Entries that no longer count for which a file is not written anew."""

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
        self._file = JournalFile(path, work)
        try:
            self.found, num_entries = latest(self._file.entries())
            self.is_damaged = self._file.num_damaged > 0
            if not self.is_damaged and num_entries > 2 * len(self.found) + _SPARE_ENTRIES:
                self._file = self._rewritten(path, work)
        except BaseException:
            self.close()
            raise

    def save(self, records: Mapping[RecordKey, object]) -> None:
        """Write records, and return when the disk has all of them. A value None removes a record.

        Raises:
            NotSaved: the disk does not take them; nothing is changed then.
        """
        self._file.write([JournalEntry(key, value) for key, value in records.items()])

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def _rewritten(self, path: Path, work: str) -> JournalFile:
        """Write the records alone to a new file, which takes the place of the old one."""
        fresh = path.with_name(f"{path.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            with JournalFile(fresh, work) as file:
                file.write([JournalEntry(key, value) for key, value in self.found.items()])
            os.replace(fresh, path)
        except OSError as error:
            raise not_saved(path, error) from error
        self.close()
        file = JournalFile(path, work)
        deque(file.entries(), maxlen=0)  # a journal is written behind the entries that were read
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
