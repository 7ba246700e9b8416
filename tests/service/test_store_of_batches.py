"""The folder of files and batches after damage to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from stretto.model.errors import JournalError
from stretto.service.batches.records import BatchRecord, StoredFile
from stretto.service.batches.store import BatchStore


def stored(number: int) -> StoredFile:
    return StoredFile(f"file-{number}", "", "in", "batch", 1, 0, 1)


def filled(folder: Path) -> None:
    """Keep two files in a folder."""

    async def run() -> None:
        store = BatchStore(folder)
        for number in range(2):
            (part := store.path(f"upload-{number}.part")).write_bytes(b"x")
            await store.take_in(stored(number), part)
        store.close()

    asyncio.run(run())


@pytest.mark.parametrize("damage", ["line", "removed"])
def test_no_content_is_removed_whose_record_may_be_lost(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    (tmp_path / "files" / "upload-9.part").write_bytes(b"x")
    (tmp_path / "answers" / "batch_1.journal").write_bytes(b"x")
    journal = tmp_path / "batches.journal"
    if damage == "line":
        journal.write_bytes(journal.read_bytes().replace(b"file-0", b"file-7"))
    else:
        journal.unlink()
    store = BatchStore(tmp_path)
    assert list(store.kept.files("")) == (["file-1"] if damage == "line" else [])
    assert sorted(one.name for one in (tmp_path / "files").iterdir()) == ["file-0", "file-1"]
    assert list((tmp_path / "answers").iterdir())
    store.close()


def test_what_nobody_has_a_record_of_is_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "files" / "file-9").write_bytes(b"x")
    (tmp_path / "files" / "folder").mkdir()
    (tmp_path / "answers" / "batch_1.journal").write_bytes(b"x")
    BatchStore(tmp_path).close()
    assert sorted(one.name for one in (tmp_path / "files").iterdir()) == ["file-0", "file-1", "folder"]
    assert not list((tmp_path / "answers").iterdir())


def test_a_file_that_the_system_does_not_let_go_is_removed_all_the_same(tmp_path: Path) -> None:
    filled(tmp_path)
    store = BatchStore(tmp_path)
    store.path("file-0").unlink()
    store.path("file-0").mkdir()
    asyncio.run(store.remove(stored(0)))
    assert list(store.kept.files("")) == ["file-1"]
    store.close()


def test_the_bytes_of_a_tenant_are_those_of_its_files(tmp_path: Path) -> None:
    async def run() -> None:
        store = BatchStore(tmp_path)
        for number, size in enumerate((10, 20)):
            (part := store.path(f"upload-{number}.part")).write_bytes(bytes(size))
            await store.take_in(StoredFile(f"file-{number}", "t", "in", "batch", size, 0), part)
        assert (store.kept.num_bytes["t"], store.kept.num_bytes["other"]) == (30, 0)
        await store.remove(store.kept.files("t")["file-0"])
        await store.save(store.kept.files("t")["file-1"])
        assert store.kept.num_bytes["t"] == 20
        store.close()
        again = BatchStore(tmp_path)
        assert again.kept.num_bytes["t"] == 20
        again.close()

    asyncio.run(run())


def test_files_and_ended_batches_are_kept_for_a_time(tmp_path: Path) -> None:
    async def run() -> None:
        store = BatchStore(tmp_path)
        record = BatchRecord("batch_1", "t", "/v1/chat/completions", "file-0", "24h", 86_400, 0)
        ended = record.moved("completed", 50.0)
        await store.save(
            StoredFile("file-0", "t", "in", "batch", 1, 0),
            StoredFile("file-1", "t", "in", "batch", 1, 0, expires_at=500),
            ended,
            msgspec.structs.replace(record, id="batch_2"),
        )
        assert list(store.kept.expired(99.0, 100.0)) == []
        assert [one.id for one in store.kept.expired(149.0, 100.0)] == ["file-0"]
        assert [one.id for one in store.kept.expired(500.0, 100.0)] == ["file-0", "file-1", "batch_1"]
        for one in list(store.kept.expired(500.0, 100.0)):
            await store.remove(one)
        assert not store.kept.files("t")
        assert list(store.kept.batches("t")) == ["batch_2"]
        assert list(store.kept.expired(1e9, float("inf"))) == []
        store.close()
        again = BatchStore(tmp_path)
        assert list(again.kept.batches("t")) == ["batch_2"]
        again.close()

    asyncio.run(run())


def test_two_services_do_not_use_one_folder(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    with pytest.raises(JournalError, match="in use by another run"):
        BatchStore(tmp_path)
    store.close()
    BatchStore(tmp_path).close()
