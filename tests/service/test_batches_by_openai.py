"""OpenAI's client, unmodified, keeps files and runs batches at a service with a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import openai
import pytest
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker
from support.pages import DOCS, python_of
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.service.batches.records import ENDED
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.pool.pool import WorkerPool

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def chat_line(custom_id: str, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def service_with_state(state: Path, worker: GatedWorker, *tenants: TenantConfig) -> Iterator[str]:
    """Run a service before a worker; yield the address of OpenAI's API."""
    config = ServiceConfig(port=0, tenant=tenants)
    pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker.url, num_slots=4),)), config)
    with served([transforms_engine()], config, pool=pool, state=state) as (_, url):
        yield f"{url}/v1"


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=key, timeout=PATIENCE_S, max_retries=0)


def ended(client: openai.OpenAI, batch: str) -> Any:
    """Return a batch when it has ended."""
    end_s = monotonic() + PATIENCE_S
    while (found := client.batches.retrieve(batch)).status not in ENDED:
        assert monotonic() < end_s, found
        sleep(0.01)
    return found


def lines_of(client: openai.OpenAI, file: str | None) -> dict[str | None, Any]:
    """Return the lines of a file by their custom ids."""
    if file is None:
        return {}
    found = [json.loads(line) for line in client.files.content(file).text.splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


def test_files_and_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl([chat_line(f"request-{number}", f"q{number}") for number in range(20)]))
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as url:
        worker.is_open = True
        client = client_of(url)
        with path.open("rb") as content:
            file = client.files.create(file=content, purpose="batch")
        assert (file.object, file.filename, file.purpose, file.bytes) == (
            "file",
            "in.jsonl",
            "batch",
            path.stat().st_size,
        )
        assert client.files.content(file.id).read() == path.read_bytes()
        assert client.files.retrieve(file.id) == file
        batch = client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"why": "nightly"}
        )
        assert (batch.status, batch.metadata) == ("validating", {"why": "nightly"})
        assert batch.expires_at == batch.created_at + 86_400
        done = ended(client, batch.id)
        assert done.status == "completed"
        assert done.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
        assert done.error_file_id is None
        assert done.completed_at >= done.finalizing_at >= done.in_progress_at >= done.created_at
        found = lines_of(client, done.output_file_id)
        assert sorted(found) == sorted(f"request-{number}" for number in range(20))
        for number in range(20):
            response = found[f"request-{number}"]["response"]
            assert response["status_code"] == 200
            assert response["body"]["choices"][0]["message"]["content"] == f"to q{number}"
        assert [one.id for one in client.batches.list()] == [batch.id]
        assert {one.purpose for one in client.files.list()} == {"batch", "batch_output"}
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(file.id)


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = python_of(DOCS / "batches.md")
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as url:
        worker.is_open = True
        exec(code.replace("http://127.0.0.1:8700/v1", url), {"__name__": "page"})
    counts, *answers = capsys.readouterr().out.splitlines()
    assert "completed=10, failed=0, total=10" in counts
    assert sorted(answers) == [f"to umber comes after {number}?" for number in range(10)]  # its last words
