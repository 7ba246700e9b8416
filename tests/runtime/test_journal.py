"""Journals: whatever happens to a run, its journal is whole, and only its own work reads it."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model.errors import JournalError, NotSaved
from stretto.runtime.journal.committer import Committer
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry, entry_line, header_line, parse_entry, work_hash

WORK = work_hash(["app", {"custom_id": "1"}])
ENTRIES = [JournalEntry((str(at), "node", "0"), {"text": f"answer {at}\u2028\n"}) for at in range(4)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def written(path: Path, entries: list[JournalEntry], work: str = WORK) -> list[JournalEntry]:
    """Add entries to a journal; return those it had before."""
    with JournalFile(path, work) as journal:
        before = list(journal.entries())
        journal.write(entries)
    return before


@given(st.lists(st.builds(JournalEntry, st.lists(st.text(), min_size=1).map(tuple), VALUES)))
def test_every_entry_is_read_as_it_was_written(entries: list[JournalEntry]) -> None:
    lines = b"".join(map(entry_line, entries)).splitlines(keepends=True)
    assert [parse_entry(line) for line in lines] == entries


def test_a_journal_that_was_cut_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    """A run writes what the journal does not have: in the end all entries are there, each once."""
    whole, path = tmp_path / "whole", tmp_path / "cut"
    written(whole, ENTRIES)
    data = whole.read_bytes()
    for num_bytes in range(len(data) + 1):
        path.write_bytes(data[:num_bytes])
        before = written(path, [])
        assert before == ENTRIES[: len(before)]
        assert len(before) == max(0, data[:num_bytes].count(b"\n") - 1)
        written(path, ENTRIES[len(before) :])
        assert path.read_bytes() == data


def test_a_line_that_the_disk_has_lost_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:9] + bytes(len(lines[2]) - 10) + b"\n"
    path.write_bytes(b"".join(lines))
    assert written(path, []) == [ENTRIES[0], *ENTRIES[2:]]


@given(st.builds(JournalEntry, st.lists(st.text(), min_size=1).map(tuple), VALUES), st.integers(min_value=0))
def test_no_flipped_bit_comes_out_as_a_result(entry: JournalEntry, bit: int) -> None:
    line = bytearray(entry_line(entry))
    place, of_byte = divmod(bit % (8 * len(line)), 8)
    line[place] ^= 1 << of_byte
    assert [parse_entry(part) for part in bytes(line).splitlines(keepends=True)].count(None) > 0
    assert parse_entry(bytes(line)) is None


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    data = bytearray(path.read_bytes())
    data[data.index(WORK.encode())] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match="first line is damaged"):
        JournalFile(path, WORK)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (header_line(work_hash(["other"])), "is the journal of other work"),
        (b'{"journal": 1, "work": ""}\n', "is a journal of version 1"),
        (b"my only copy\n", "is no journal"),
        (b'{"custom_id": "1"}\n', "is no journal"),
        (b"[" * 100_000, "is no journal"),
    ],
)
def test_a_file_that_is_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, found: bytes, message: str
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(found)
    with pytest.raises(JournalError, match=message):
        JournalFile(path, WORK)
    assert path.read_bytes() == found


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalFile(path, WORK), pytest.raises(JournalError, match="in use by another run"):
        JournalFile(path, WORK)
    assert written(path, ENTRIES) == []


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="directory"):
        JournalFile(tmp_path, WORK)


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with JournalFile(path, WORK) as journal:
        journal.write(ENTRIES[:2])
        full(monkeypatch)
        with pytest.raises(NotSaved, match=r"No space left.*same command"):
            journal.write(ENTRIES[2:])
        monkeypatch.undo()
    assert written(path, ENTRIES[2:]) == ENTRIES[:2]
    assert written(path, []) == ENTRIES


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file reach the disk."""

    def fails(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fails)


def test_results_are_shown_when_they_are_on_the_disk(tmp_path: Path) -> None:
    path, shown = tmp_path / "journal", list[int]()

    async def run() -> None:
        with JournalFile(path, WORK) as journal:
            async with Committer(journal, batch_s=0) as committer:
                for entry in ENTRIES:
                    committer.add(entry, lambda: shown.append(path.read_bytes().count(b"\n") - 1))
                assert shown == []

    asyncio.run(run())
    assert shown == [len(ENTRIES)] * len(ENTRIES)
    assert written(path, []) == ENTRIES


def test_results_are_saved_although_the_run_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def run() -> None:
        with JournalFile(path, WORK) as journal:
            async with Committer(journal, batch_s=0) as committer:
                for entry in ENTRIES:
                    committer.add(entry, lambda: None)
                raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(run())
    assert written(path, []) == ENTRIES


def test_a_run_ends_when_its_results_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with JournalFile(tmp_path / "journal", WORK) as journal:
            full(monkeypatch)
            async with Committer(journal, batch_s=0) as committer:
                while True:
                    committer.add(ENTRIES[0], lambda: None)
                    await asyncio.sleep(0)

    with pytest.raises(NotSaved):
        asyncio.run(run())


def test_whoever_waits_for_a_save_hears_that_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        with JournalFile(tmp_path / "journal", WORK) as journal:
            async with Committer(journal, batch_s=0) as committer:
                await committer.save(ENTRIES[0])
                full(monkeypatch)
                await committer.save(ENTRIES[1])

    with pytest.raises(NotSaved):
        asyncio.run(run())
    monkeypatch.undo()
    assert written(tmp_path / "journal", []) == ENTRIES[:1]
