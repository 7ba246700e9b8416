"""OpenAI's client, unmodified, keeps files and runs batches at a service with a worker."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import openai
import pytest
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker
from support.pages import DOCS, python_of
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import naive_rag
from stretto.engines.catalogue import transforms_engine
from stretto.model.deployment import deploy
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.batches.records import ENDED
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def chat_line(custom_id: str, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def service_with_state(state: Path, worker: GatedWorker, *tenants: TenantConfig) -> Iterator[Service]:
    """Run a service before a worker."""
    config = ServiceConfig(port=0, tenant=tenants)
    pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker.url, num_slots=4),)), config)
    with served([transforms_engine()], config, pool=pool, state=state) as (service, _):
        yield service


def client_of(service: Service, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, timeout=PATIENCE_S, max_retries=0)


def ended(client: openai.OpenAI, batch: str) -> Any:
    """Return a batch when it has ended."""
    end_s = monotonic() + PATIENCE_S
    while (found := client.batches.retrieve(batch)).status not in ENDED:
        assert monotonic() < end_s, found
        sleep(0.01)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < end_s, "it did not come about"
        sleep(0.005)


def num_waiting(service: Service) -> int:
    """Return the number of requests that wait for the worker."""
    pool = service.pool
    assert pool is not None

    async def look() -> int:
        return len(pool.front.router_state.view.waiting(100))

    return service.runtime.run_on_loop(look)


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
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        worker.is_open = True
        client = client_of(service)
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
        assert sorted(map(str, found)) == sorted(f"request-{number}" for number in range(20))
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
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        worker.is_open = True
        exec(code.replace("http://127.0.0.1:8700/v1", f"{service.url}/v1"), {"__name__": "page"})
    counts, *answers = capsys.readouterr().out.splitlines()
    assert "completed=10, failed=0, total=10" in counts
    assert sorted(answers) == [f"to umber comes after {number}?" for number in range(10)]  # its last words


def begun(client: openai.OpenAI, content: bytes, endpoint: str = CHAT, window: Any = "24h") -> Any:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window)


def test_bad_lines_stand_in_the_error_file_and_the_others_are_answered(tmp_path: Path) -> None:
    unstreamed = chat_line("e", "x", stream=True)
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        worker.is_open = True
        client = client_of(service)
        content = jsonl([chat_line("a", "x"), chat_line("a", "y"), unstreamed, [1]]) + b"no JSON\n"
        done = ended(client, begun(client, content).id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 1, 4)
        assert list(lines_of(client, done.output_file_id)) == ["a"]
        errors = client.files.content(done.error_file_id).text.splitlines()
        assert [json.loads(line)["error"]["code"] for line in errors] == [
            "duplicate_custom_id",
            "stream_not_supported",
            "invalid_line",
            "invalid_json_line",
        ]
        failed = ended(client, begun(client, b"no JSON\n").id)
        assert failed.status == "failed"
        assert [(one.code, one.line) for one in failed.errors.data] == [("invalid_json_line", 1)]
        worker.status = 400
        refused = ended(client, begun(client, jsonl([chat_line("b", "x")])).id)
        assert (refused.status, refused.output_file_id) == ("completed", None)
        found = lines_of(client, refused.error_file_id)["b"]
        assert (found["response"]["status_code"], found["error"]) == (400, None)
        assert found["response"]["body"]["error"]["message"] == "it fails"


def test_completions_and_embeddings_are_endpoints_too(tmp_path: Path) -> None:
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        worker.is_open = True
        client = client_of(service)
        for endpoint, body in (
            (COMPLETIONS, {"model": "llm", "prompt": "p"}),
            (EMBEDDINGS, {"model": MODEL, "input": "e"}),
            ("/v1/responses", {"model": MODEL, "input": "r"}),
        ):
            line = {"custom_id": "x", "method": "POST", "url": endpoint, "body": body}
            done = ended(client, begun(client, jsonl([line]), endpoint).id)
            assert done.request_counts.completed == 1, done
        assert [asked.path for asked in worker.asked] == [COMPLETIONS, EMBEDDINGS, "/v1/responses"]
        assert worker.asked[0].body == {"model": MODEL, "prompt": "p"}


def test_lines_wait_behind_others_and_a_batch_can_be_cancelled(tmp_path: Path) -> None:
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        client = client_of(service)
        batch = begun(client, jsonl([chat_line(f"{number}", f"q{number}") for number in range(60)]))
        worker.wait_until_asked(4)
        with pytest.raises(openai.ConflictError, match="reads the file"):
            client.files.delete(batch.input_file_id)
        with ThreadPoolExecutor(1) as threads:
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "a person"}]}
            person = threads.submit(lambda: client.chat.completions.create(**chat))
            wait_until(lambda: num_waiting(service) > 32)
            worker.release()
            worker.wait_until_asked(5)
            assert worker.asked[4].prompt == "a person"
            cancelling = client.batches.cancel(batch.id)
            assert cancelling.status == "cancelling"
            worker.is_open = True
            person.result(PATIENCE_S)
        done = ended(client, batch.id)
        assert done.status == "cancelled"
        assert done.request_counts.total == 60
        assert len(lines_of(client, done.output_file_id)) == done.request_counts.completed < 60
        with pytest.raises(openai.ConflictError, match="has ended"):
            client.batches.cancel(batch.id)


def test_what_is_not_answered_within_the_window_expires(tmp_path: Path) -> None:
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker) as service:
        client = client_of(service)
        done = ended(client, begun(client, jsonl([chat_line("a", "x"), chat_line("b", "y")]), window="2s").id)
        assert (done.status, done.request_counts.failed, done.output_file_id) == ("expired", 2, None)
        errors = lines_of(client, done.error_file_id)
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
        assert list(errors) == ["a", "b"]


def test_tenants_see_their_own_alone(tmp_path: Path) -> None:
    tenants = [TenantConfig(name=name, keys=(name * 8,)) for name in "st"]
    with GatedWorker() as worker, service_with_state(tmp_path / "state", worker, *tenants) as service:
        worker.is_open = True
        own, other = client_of(service, "s" * 8), client_of(service, "t" * 8)
        batch = begun(own, jsonl([chat_line("a", "x")]))
        done = ended(own, batch.id)
        assert done.status == "completed"
        assert list(other.files.list()) == list(other.batches.list()) == []
        with pytest.raises(openai.BadRequestError, match="limit must be a number"):
            other.files.list(extra_query={"limit": f"{1:010}{'9' * 5000}"})
        calls: tuple[Callable[[], object], ...] = (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(done.output_file_id),
            lambda: other.files.delete(done.output_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
        )
        for call in calls:
            with pytest.raises(openai.NotFoundError, match="there is no"):
                call()
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
        with pytest.raises(openai.AuthenticationError):
            client_of(service, "x").files.list()


def test_a_service_that_is_started_again_goes_on(tmp_path: Path) -> None:
    with GatedWorker() as worker:
        with service_with_state(tmp_path / "state", worker) as service:
            client = client_of(service)
            batch = begun(client, jsonl([chat_line(f"{number}", f"q{number}") for number in range(30)]))
            worker.wait_until_asked(4)
            worker.release(4)
            worker.wait_until_asked(8)
            wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 4)
        (tmp_path / "state" / "files" / "upload-1.part").touch()
        worker.is_open = True
        with service_with_state(tmp_path / "state", worker) as service:
            client = client_of(service)
            done = ended(client, batch.id)
            assert (done.status, done.request_counts.completed) == ("completed", 30)
            assert len(lines_of(client, done.output_file_id)) == 30
            wait_until(lambda: not list((tmp_path / "state" / "answers").iterdir()))
        assert not list((tmp_path / "state" / "files").glob("*.part"))
        times = Counter(asked.prompt for asked in worker.asked)
        assert sum(number > 1 for number in times.values()) <= 4, (
            "those that were on their way are asked again"
        )


def test_lines_are_answered_by_an_app_too(tmp_path: Path) -> None:
    data = base64.b64encode(b"The captain lived at the inn.").decode()
    file = {"type": "file", "file": {"filename": "inn.txt", "file_data": data}}
    line = chat_line("a", "")
    line["body"] = {
        "model": "naive",
        "messages": [{"role": "user", "content": [file, {"type": "text", "text": "Where?"}]}],
    }
    names = ("chunking", "embedding", "reranking", "vectors")
    fakes = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    engines, apps = [desk_llm(Desk(lambda _: "inn")), *fakes], {"naive": deploy_app("naive", naive_rag())}
    with served(engines, ServiceConfig(port=0), apps, state=tmp_path / "state") as (service, _):
        client = client_of(service)
        done = ended(client, begun(client, jsonl([line])).id)
        assert done.request_counts.completed == 1, lines_of(client, done.error_file_id)
        answer = lines_of(client, done.output_file_id)["a"]["response"]["body"]
        assert answer["choices"][0]["message"]["content"] == "inn"
