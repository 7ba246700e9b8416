"""Records in a journal are written anew while the journal is in use."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stretto.model.errors import JournalError, NotSaved
from stretto.runtime.journal.records import JournalRecords

WORK = "0" * 64


def test_a_journal_in_use_stays_short_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    records = JournalRecords(path, WORK)
    most = 0
    for number in range(200):
        records.save({("key", str(at)): [number, at] for at in range(50)})
        records.save({("key", "49"): None, ("gone", str(number)): 1})
        records.save({("gone", str(number)): None})
        most = max(most, path.read_bytes().count(b"\n"))
    assert most < 2500
    with pytest.raises(JournalError, match="in use"):
        JournalRecords(path, WORK)
    records.close()
    again = JournalRecords(path, WORK)
    assert again.found == {("key", str(at)): [199, at] for at in range(49)}
    again.close()
    assert [one.name for one in tmp_path.iterdir()] == ["journal"]


@pytest.mark.long
def test_what_does_not_fit_a_second_time_goes_on_in_the_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    records = JournalRecords(path, WORK)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        for number in range(2500):
            records.save({("key", "a"): number})
    assert path.read_bytes().count(b"\n") == 2501
    assert [one.name for one in tmp_path.iterdir()] == ["journal"]
    for number in range(2500, 3600):
        records.save({("key", "a"): number})
    assert path.read_bytes().count(b"\n") < 2000
    records.close()
    again = JournalRecords(path, WORK)
    assert again.found == {("key", "a"): 3599}
    again.close()


def test_a_full_disk_takes_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = JournalRecords(tmp_path / "journal", WORK)
    records.save({("a",): 1})

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(NotSaved, match="No space left"):
            records.save({("b",): 2})
    records.save({("c",): 3})
    records.close()
    again = JournalRecords(tmp_path / "journal", WORK)
    assert again.found == {("a",): 1, ("c",): 3}
    again.close()
