"""What the runner of batches keeps of them while the disk is full, and while they end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stretto.model.errors import NotSaved
from stretto.service.app import ServiceApp
from stretto.service.batches import runner as runner_module
from stretto.service.batches.records import ENDED, BatchRecord, StoredFile
from stretto.service.batches.runner import BatchRunner
from stretto.service.batches.store import BatchStore
from stretto.service.config import ServiceConfig

PATH = "/v1/chat/completions"
LINE = b'{"custom_id":"a","method":"POST","url":"%b","body":{}}\n' % PATH.encode()


class FullDisk(BatchStore):
    """A store that takes no batch that goes on, until the first one is kept that has ended."""

    has_room = True

    async def save(self, *records: StoredFile | BatchRecord) -> None:
        if isinstance(batch := records[-1], BatchRecord) and batch.status in ENDED:
            self.has_room = True
        if not self.has_room:
            raise NotSaved("no room")
        await super().save(*records)


def input_file(store: BatchStore, content: bytes = LINE) -> StoredFile:
    store.path("file-1").write_bytes(content)
    return StoredFile("file-1", "", "in", "batch", len(content), 0)


def batch_record() -> BatchRecord:
    return BatchRecord("batch_1", "", PATH, "file-1", "31d", 1e12, 0)


async def ended(store: BatchStore) -> BatchRecord:
    """Return the batch when its answers are no longer kept apart."""
    while (found := store.kept.batches("").get("batch_1")) is None or found.status not in ENDED:
        await asyncio.sleep(0.001)
    return found


def test_what_nothing_answers_any_more_is_an_error_of_its_line(tmp_path: Path) -> None:
    async def run() -> None:
        store = BatchStore(tmp_path)
        await store.save(input_file(store))
        async with BatchRunner(ServiceApp(ServiceConfig()), store, 1000) as runner:
            await runner.create(batch_record())
            done = await ended(store)
            assert (done.status, done.num_failed) == ("completed", 1)
            assert done.error_file_id is not None
            assert b'"code":"unknown_path"' in store.path(done.error_file_id).read_bytes()

    asyncio.run(run())


def test_an_unforeseen_error_fails_its_batch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def run() -> None:
        store = BatchStore(tmp_path)
        await store.save(input_file(store))
        async with BatchRunner(ServiceApp(ServiceConfig()), store, 1000) as runner:
            await runner.create(batch_record())
            done = await ended(store)
            assert (done.status, done.problems[0].code) == ("failed", "internal_error")

    monkeypatch.setattr(runner_module, "OpenedBatch", fail)
    asyncio.run(run())


def test_a_batch_that_has_ended_is_never_kept_as_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_AGAIN_S", 0.001)

    async def run() -> None:
        store = FullDisk(tmp_path)
        await store.save(input_file(store))
        async with BatchRunner(ServiceApp(ServiceConfig()), store, 1000) as runner:
            await runner.create(batch_record())
            store.has_room = False
            await ended(store)
        again = BatchStore(tmp_path)
        again.close()
        assert [one.status for one in again.kept.batches("").values()] == ["completed"]

    asyncio.run(run())


def test_a_batch_that_has_just_ended_is_not_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        store = BatchStore(tmp_path)
        runner = BatchRunner(ServiceApp(ServiceConfig()), store, 1000)
        ending = batch_record().moved("finalizing", 1.0)
        await store.save(ending)
        assert runner.cancel(ending) == ending
        store.close()

    asyncio.run(run())


def test_a_file_whose_record_is_not_kept_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store = FullDisk(tmp_path)
        store.has_room = False
        content = tmp_path / "content"
        content.write_bytes(b"x")
        with pytest.raises(NotSaved):
            await store.take_in(input_file(store), content)
        assert not list((tmp_path / "files").iterdir())
        store.close()

    asyncio.run(run())
