"""The folder in which a service keeps files and batches.

    files/ID              content of a file; ID.part while it comes or is written
    answers/ID.journal    answers of a batch that has not ended
    batches.journal       what files and batches there are

What `save` and `take_in` have returned from is on the disk. A file without a record is nobody's, and is
removed when the folder is opened; but not if its record may have been lost, because `batches.journal` is
damaged, or has been removed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stretto.model.errors import JournalError, NotSaved
from stretto.runtime.journal.file import not_saved
from stretto.runtime.journal.lines import work_hash
from stretto.runtime.journal.records import JournalRecords
from stretto.service.batches.kept_records import KeptRecords
from stretto.service.batches.records import BatchRecord, StoredFile

_WORK = work_hash(["files and batches"])
_FILE, _BATCH = "file", "batch"
_ID_BYTES = 12


class BatchStore:
    """Files and batches by their tenants. It belongs to one event loop, and to one process at a time.

    Args:
        folder: the folder, which is made if it is missing. Only its owner may read what it holds.

    Attributes:
        kept: what files and batches there are.

    Raises:
        JournalError, NotSaved: the folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        self._files_folder, self._answers_folder = folder / "files", folder / "answers"
        try:
            for one in (folder, self._files_folder, self._answers_folder):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"the folder {folder} cannot be made: {error.strerror}") from error
        self._journal = JournalRecords(folder / "batches.journal", _WORK)
        self._writing = asyncio.Lock()
        self.kept = KeptRecords()
        for (kind, _), value in self._journal.found.items():
            found: type[StoredFile | BatchRecord] = StoredFile if kind == _FILE else BatchRecord
            self.kept.put(msgspec.convert(value, found))
        is_whole = bool(self._journal.found) and not self._journal.is_damaged
        self._journal.found = {}
        self._remove_orphans(is_whole=is_whole)

    def close(self) -> None:
        """Close the folder."""
        self._journal.close()

    def path(self, file: str) -> Path:
        """Return where the content of a file is."""
        return self._files_folder / file

    def journal_path(self, batch: str) -> Path:
        """Return where the journal of a batch's answers is."""
        return self._answers_folder / f"{batch}.journal"

    async def save(self, *records: StoredFile | BatchRecord) -> None:
        """Keep files and batches, all of them or none. Raises NotSaved if the disk does not take them."""
        entries = {_key(one): msgspec.to_builtins(one) for one in records}
        await self._write(entries)
        for one in records:
            self.kept.put(one)

    async def take_in(self, file: StoredFile, content: Path) -> None:
        """Keep a file whose content has come. Raises NotSaved if the disk does not take it."""
        path = self.path(file.id)
        self.kept.num_bytes[file.tenant] += file.num_bytes
        try:
            await asyncio.to_thread(_move, content, path)
            await self.save(file)
        except NotSaved:
            _remove([path])
            raise
        finally:
            self.kept.num_bytes[file.tenant] -= file.num_bytes

    async def remove(self, one: StoredFile | BatchRecord) -> None:
        """Remove a file, or a batch that has ended. Raises NotSaved if the disk does not take that."""
        await self._write({_key(one): None})
        if self.kept.drop(one) and isinstance(one, StoredFile):
            await asyncio.to_thread(_remove, [self.path(one.id)])

    async def forget_answers(self, batch: str) -> None:
        """Remove the journal of a batch that has ended."""
        await asyncio.to_thread(_remove, [self.journal_path(batch)])

    async def _write(self, entries: Mapping[tuple[str, ...], Any]) -> None:
        async with self._writing:
            await asyncio.to_thread(self._journal.save, entries)

    def _remove_orphans(self, *, is_whole: bool) -> None:
        files = {file for own in self.kept.all_files.values() for file in own}
        journals = {self.journal_path(batch.id).name for batch in self.kept.unended()}
        found = [one for one in self._files_folder.iterdir() if one.name not in files]
        _remove(one for one in found if is_whole or one.suffix == ".part")
        if not is_whole:
            journals |= {one.name for one in self._answers_folder.iterdir()}
        _remove(one for one in self._answers_folder.iterdir() if one.name not in journals)


def new_id(kind: str) -> str:
    """Return an id that nobody can guess, such as "file-9f…" for "file-"."""
    return f"{kind}{secrets.token_hex(_ID_BYTES)}"


def _move(content: Path, path: Path) -> None:
    try:
        os.replace(content, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise not_saved(path, error) from error


def _key(one: StoredFile | BatchRecord) -> tuple[str, ...]:
    return (_FILE if isinstance(one, StoredFile) else _BATCH, one.id)


def _remove(paths: Iterable[Path]) -> None:
    """Remove files, as far as the system lets them go; what is left is tried again at the next start."""
    for path in list(paths):
        with suppress(OSError):
            path.unlink(missing_ok=True)
