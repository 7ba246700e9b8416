"""The folder of files and batches after damage to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stretto.service.batches.records import StoredFile
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
    assert list(store.files("")) == (["file-1"] if damage == "line" else [])
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
    assert list(store.files("")) == ["file-1"]
    store.close()
