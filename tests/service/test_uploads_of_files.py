"""Uploads are written as they come, hold little memory, and leave nothing behind when they fail."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from support.gated_worker import GatedWorker
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.http.refusals import Refused
from stretto.model.errors import NotSaved
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.multipart import BodyPart, FormReader, read_parts
from stretto.service.batches import upload
from stretto.service.batches.upload import Upload
from stretto.service.batches.wanted_batch import read_batch, read_upload
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.refusals import Misplaced

KIND = "multipart/form-data; boundary=x"
HEAD = b'--x\r\ncontent-disposition: form-data; name="file"; filename="in"\r\n\r\n'
END = b'\r\n--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
NUM_PIECES, PIECE = 80, b"a" * 65_536


def test_an_upload_is_written_as_it_comes_and_asks_for_pauses(tmp_path: Path) -> None:
    async def run() -> None:
        sink, was_full = Upload(KIND, tmp_path / "file"), 0
        sink.take(HEAD)
        for _ in range(NUM_PIECES):
            sink.take(PIECE)
            if sink.is_full:
                was_full += 1
                room = asyncio.Event()
                sink.on_room = room.set
                await room.wait()
                assert not sink.is_full
        sink.take(END)
        parts, num_bytes = await sink.finish()
        assert num_bytes == NUM_PIECES * len(PIECE) == (tmp_path / "file").stat().st_size
        assert parts == [BodyPart("file", "in", b""), BodyPart("purpose", None, b"batch")]
        assert was_full
        sink.keep()
        sink.close()

    asyncio.run(run())
    assert (tmp_path / "file").exists()


def test_a_client_that_leaves_leaves_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        sink = Upload(KIND, tmp_path / "file")
        sink.take(HEAD + PIECE * 8)
        sink.close()
        while (tmp_path / "file").exists() or sink._writing is not None:
            await asyncio.sleep(0.001)
        sink.take(PIECE)
        sink.close()

    asyncio.run(run())


def test_a_client_that_leaves_at_the_end_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    class SlowReader(FormReader):
        def finish(self) -> list[BodyPart]:
            begun.set()
            may_go_on.wait()
            return super().finish()

    async def run() -> None:
        sink = Upload(KIND, tmp_path / "file")
        sink.take(HEAD + END)
        finishing = asyncio.create_task(sink.finish())
        await asyncio.to_thread(begun.wait)
        finishing.cancel()
        await asyncio.wait((finishing,))
        sink.close()
        may_go_on.set()

    monkeypatch.setattr(upload, "FormReader", SlowReader)
    asyncio.run(run())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_pieces", [1, 40])
def test_a_full_disk_is_a_typed_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_pieces: int
) -> None:
    def write(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run() -> None:
        sink = Upload(KIND, tmp_path / "file")
        sink.take(HEAD)
        for _ in range(num_pieces):
            sink.take(PIECE)
            await asyncio.sleep(0)
        sink.take(END)
        with pytest.raises(NotSaved, match="No space left"):
            await sink.finish()
        sink.close()

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        asyncio.run(run())
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        HEAD,
        HEAD.replace(b"file", b"f" * 70_000),
        HEAD + b"\xff" * 99,
        HEAD.replace(b'filename="in"', b"filename*=utf-7''+2AA-") + END,
        HEAD.replace(b'filename="in"', b"filename*=unicode_escape''%5cud800") + END,
        HEAD.replace(b'filename="in"', b"filename*=idna''xn--%ff") + END,
    ],
)
def test_a_body_that_is_no_form_is_refused(tmp_path: Path, body: bytes) -> None:
    async def run() -> None:
        sink = Upload(KIND, tmp_path / "file")
        sink.take(body)
        with pytest.raises(Misplaced):
            await sink.finish()
        sink.close()

    asyncio.run(run())
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["undefined''x", "idna''%ff", "unicode_escape''%5Cud800", "a%00b''x"])
def test_a_filename_that_cannot_be_decoded_is_refused(name: str) -> None:
    head = HEAD.replace(b'filename="in"', b"filename*=" + name.encode())
    with pytest.raises(Misplaced, match="cannot be decoded"):
        read_parts(KIND, head + END)


def form(**fields: str) -> list[BodyPart]:
    return [
        BodyPart("file", "a/b\\in", b""),
        *(BodyPart(name, None, one.encode()) for name, one in fields.items()),
    ]


def test_the_form_of_an_upload() -> None:
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    assert read_upload(form(purpose="batch"), 1, 10).filename == "in"
    assert read_upload(form(purpose="batch", **expiry), 1, 10).kept_s == 3600
    bad = [
        (form(), "purpose"),
        (form(purpose="fine-tune"), "purpose"),
        (form(purpose="batch", colour="red"), "colour"),
        (form(purpose="batch", **{**expiry, "expires_after[seconds]": "1"}), "expires_after"),
        (form(purpose="batch", **{**expiry, "expires_after[seconds]": "x"}), "expires_after"),
        (form(purpose="batch", **{"expires_after[anchor]": "created_at"}), "expires_after"),
        (form(purpose="batch")[1:], "file"),
        ([*form(purpose="batch"), *form()], "file"),
    ]
    for parts, param in bad:
        with pytest.raises(Refused) as error:
            read_upload(parts, 1, 10)
        assert error.value.param == param
    with pytest.raises(Refused, match="at most 10 bytes"):
        read_upload(form(purpose="batch"), 11, 10)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ('"completion_window": "1w"', "completion_window"),
        ('"completion_window": "32d"', "completion_window"),
        ('"completion_window": "0s"', "completion_window"),
        ('"completion_window": 24', "completion_window"),
        ('"endpoint": null', "endpoint"),
        ('"metadata": {"a": 1}', "metadata"),
        ('"metadata": []', "metadata"),
        ('"metadata": {"%s": "v"}' % ("k" * 65), "metadata"),
        ('"output_expires_after": {"anchor": "created_at", "seconds": 5}', "output_expires_after"),
        ('"output_expires_after": 5', "output_expires_after"),
        ('"priority": 1', "priority"),
    ],
)
def test_a_request_for_a_batch_that_is_wrong_is_refused_by_field(more: str, param: str) -> None:
    usual = '"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "24h"'
    assert read_batch(b"{%s}" % usual.encode()).window_s == 86_400
    with pytest.raises(Refused) as error:
        read_batch(f"{{{usual}, {more}}}".encode())
    assert error.value.param == param


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with GatedWorker() as worker:
        config = ServiceConfig(port=0, max_body_bytes=100_000, max_held_bytes=300_000)
        pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker.url),)), config)
        with served([transforms_engine()], config, pool=pool, state=tmp_path / "state") as (_, url):
            yield url


def test_a_file_may_have_more_bytes_than_the_service_may_hold(url: str, tmp_path: Path) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    content = b"0123456789abcde\n" * 250_000
    file = client.files.create(
        file=("in", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.expires_at) == (len(content), file.created_at + 3600)
    assert client.files.content(file.id).read() == content
    answer = httpx.post(f"{url}/v1/files", content=b"x" * 1000, headers={"content-type": KIND})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    pages = [client.files.list(limit=1), client.files.list(limit=1, after=file.id)]
    assert [[one.id for one in page.data] for page in pages] == [[file.id], []]
    assert [path.name for path in (tmp_path / "state" / "files").iterdir()] == [file.id]
