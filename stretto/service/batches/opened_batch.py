"""The files of a batch that is open: its input, and the journal of its answers. All of it blocks."""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from itertools import islice
from pathlib import Path

from stretto.model.private_file import private
from stretto.runtime.journal.file import JournalFile, not_saved
from stretto.runtime.journal.lines import JournalEntry, work_hash
from stretto.service.batches.input_lines import (
    InputLine,
    LineIndex,
    index_lines,
    read_at,
    read_line,
)
from stretto.service.batches.line_answers import error_entry, expired_line, output_lines, saved_lines
from stretto.service.batches.records import BatchRecord, BatchStatus, SpentTokens
from stretto.wire.batch_lines import LineRefused

_WRITTEN_TOGETHER = 1000


class OpenedBatch:
    """The files of a batch, which are read through here.

    Args:
        source: input file of the batch.
        journal: journal of its answers, which is made if it is missing.

    Attributes:
        journal: journal of its answers.
        sizes: bytes of each line.
        is_done: whether each line has an answer or an error in the journal.
        num_failed: number of lines that have an error.
        spent: tokens of the answers.

    Raises:
        InputRefused: the input file is wrong as a whole.
        OSError, NotSaved, JournalError: a file cannot be read or written.
    """

    def __init__(self, record: BatchRecord, source: Path, journal: Path, max_line_bytes: int) -> None:
        self._record = record
        self._index: LineIndex = index_lines(source, record.endpoint, max_line_bytes)
        num_lines = len(self._index.starts)
        self.sizes: array[int] = self._index.sizes
        self.is_done = bytearray(num_lines)
        self.num_failed, self.spent = 0, SpentTokens()
        self._source = os.open(source, os.O_RDONLY)
        try:
            self.journal = JournalFile(journal, work_hash([record.id, record.endpoint]))
        except BaseException:
            os.close(self._source)
            raise
        try:
            for saved in saved_lines(self.journal.entries(), num_lines):
                self.is_done[saved.line] = True
                self.num_failed += not saved.is_well
                self.spent = self.spent.plus(saved.spent)
            self._refuse_wrong()
        except BaseException:
            self.close()
            raise

    def read(self, line: int) -> InputLine:
        """Return a line that can be run."""
        return read_line(read_at(self._source, self._index, line), self._record.endpoint)

    def write_files(self, output: Path, errors: Path, status: BatchStatus) -> tuple[int, int]:
        """Write the file of answers and the file of errors anew; return their numbers of bytes. One without
        lines is not kept.

        Args:
            status: how the batch ends. If it expires, lines without an answer become errors.

        Raises:
            NotSaved: the disk does not take them.
        """
        files: list[_Writing] = []
        try:
            for path in (output, errors):
                files.append(_Writing(path))
            for is_well, text in output_lines(self._record.id, self.journal.entries(), len(self.is_done)):
                files[not is_well].write(text)
            if status == "expired":
                for line in range(len(self.is_done)):
                    if not self.is_done[line]:
                        files[1].write(expired_line(self._record.id, line, self.read(line).custom_id))
            written, failed = (file.finish() for file in files)
            return written, failed
        except OSError as error:
            raise not_saved(output.parent, error) from error
        finally:
            for file in files:
                file.close()

    def close(self) -> None:
        """Close the files."""
        os.close(self._source)
        self.journal.__exit__(None, None, None)

    def _refuse_wrong(self) -> None:
        """Write the errors of lines that cannot be run to the journal, unless they stand there."""
        left = iter((line, error) for line, error in self._index.wrong.items() if not self.is_done[line])
        while some := list(islice(left, _WRITTEN_TOGETHER)):
            self.journal.write([_refusal(line, error) for line, error in some])
            for line, _ in some:
                self.is_done[line] = True
            self.num_failed += len(some)


def _refusal(line: int, error: LineRefused) -> JournalEntry:
    return error_entry(line, error.custom_id, error.code, error.message)


class _Writing:
    """A file that is written under another name, and gets its own when it is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file = open(self._part, "wb", opener=private)  # noqa: SIM115 (closed by `close`)
        self._num_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._num_bytes += len(data)

    def finish(self) -> int:
        """Put the file in its place, or remove it if it is empty; return its number of bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if not self._num_bytes:
            self._part.unlink()
            return 0
        os.replace(self._part, self._path)
        return self._num_bytes

    def close(self) -> None:
        """Close the file. One that is not in its place is removed, to take no room on a full disk."""
        with suppress(OSError):  # of what was not written, which is known
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)
