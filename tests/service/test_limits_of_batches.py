"""What batches meet: a full disk, files beyond a limit, a tenant that goes, and the live page."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
from service.test_batches_by_openai import CHAT, chat_line, client_of, ended, jsonl, lines_of, wait_until
from service.test_batches_by_openai import service_with_state as running
from support.gated_worker import GatedWorker

from stretto.service.batches import open_batches
from stretto.service.config import Limits, ServiceConfig, TenantConfig

PHYSICS = TenantConfig(name="physics", keys=("k",), limits=Limits(file_bytes=5000))
OTHER = TenantConfig(name="other", keys=("o",))


def test_files_beyond_the_limit_are_refused_until_some_are_removed(tmp_path: Path) -> None:
    with GatedWorker() as worker, running(tmp_path, worker, PHYSICS, OTHER) as service:
        client = client_of(service, "k")
        first = client.files.create(file=bytes(3000), purpose="batch")
        for num_bytes in (3000, 10_000):
            with pytest.raises(openai.APIStatusError, match="at most 5000 may be") as refused:
                client.files.create(file=bytes(num_bytes), purpose="batch")
            assert refused.value.status_code == 413
        client_of(service, "o").files.create(file=bytes(10_000), purpose="batch")
        client.files.delete(first.id)
        assert client.files.create(file=bytes(5000), purpose="batch").expires_at is not None
        with pytest.raises(openai.APIStatusError, match="5000 bytes are kept") as refused:
            client.files.create(file=b"x", purpose="batch")
        assert len(list((tmp_path / "files").iterdir())) == 2


def test_the_live_page_shows_why_a_batch_waits(tmp_path: Path) -> None:
    with GatedWorker() as worker, running(tmp_path, worker) as service:
        client = client_of(service)
        file = client.files.create(file=jsonl([chat_line(f"{at}", "q") for at in range(20)]), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

        def shown() -> list[dict[str, object]]:
            with httpx.stream("GET", f"{service.url}/admin/live", timeout=60) as live:
                line = next(line for line in live.iter_lines() if line.startswith("data: "))
            found: list[dict[str, object]] = json.loads(line.removeprefix("data: "))["batches"]
            return found

        wait_until(lambda: any(one["running"] for one in shown()))
        wait_until(lambda: "waiting for what others leave" in str(shown()[0]["why"]))
        (row,) = shown()
        assert (row["batch"], row["status"], row["total"]) == (batch.id, "in_progress", 20)
        worker.is_open = True
        assert ended(client, batch.id).request_counts.completed == 20
        wait_until(lambda: shown() == [])


def test_the_batch_of_a_tenant_that_goes_waits_until_it_is_back(tmp_path: Path) -> None:
    with GatedWorker() as worker, running(tmp_path, worker, PHYSICS, OTHER) as service:
        client = client_of(service, "k")
        lines = [chat_line(f"{at}", "q") for at in range(8)]
        file = client.files.create(file=jsonl(lines), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        tenants = service.app.tenants

        async def replace(*own: TenantConfig) -> None:
            tenants.replace(ServiceConfig(tenant=own))

        wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
        service.runtime.run_on_loop(lambda: replace(OTHER))
        with pytest.raises(openai.AuthenticationError):
            client.batches.retrieve(batch.id)
        worker.is_open = True
        new = TenantConfig(name="physics", keys=("new",))
        service.runtime.run_on_loop(lambda: replace(OTHER, new))
        again = client_of(service, "new")
        assert ended(again, batch.id).request_counts.completed == 8
        assert len(lines_of(again, again.batches.retrieve(batch.id).output_file_id)) == 8
        with pytest.raises(openai.NotFoundError):
            client_of(service, "o").batches.retrieve(batch.id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for a megabyte."""
    (folder := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_batches, "_REOPEN_S", 0.2)
    with GatedWorker() as worker, running(small_disk / "state", worker) as service:
        client = client_of(service)
        lines = [chat_line(f"{at}", "q") for at in range(50)]
        file = client.files.create(file=jsonl(lines), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
        with (
            (small_disk / "filler").open("wb", buffering=0) as filler,
            suppress(OSError),
        ):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(openai.APIStatusError, match="No space left") as refused:
            client.files.create(file=bytes(100_000), purpose="batch")
        assert refused.value.status_code == 507
        worker.is_open = True
        wait_until(lambda: len(worker.asked) > len(lines))  # some were asked again: answers were not kept
        assert client.batches.retrieve(batch.id).status == "in_progress"
        (small_disk / "filler").unlink()
        done = ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 50)
        assert len(lines_of(client, done.output_file_id)) == 50
