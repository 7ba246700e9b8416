"""A worker that refuses whoever asks, though it passes health checks, costs no chat, app or batch line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker
from support.services import served

from stretto import Input, Template
from stretto.components import LLMCall
from stretto.engines.catalogue import transforms_engine
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool

CHAT = "/v1/chat/completions"
NUM = 12


@contextmanager
def service(state: Path, *statuses: int) -> Iterator[tuple[httpx.Client, list[GatedWorker]]]:
    """Run a service before workers that answer with these statuses."""
    config = ServiceConfig(port=0)
    with ExitStack() as stack:
        workers = [stack.enter_context(GatedWorker()) for _ in statuses]
        for worker, status in zip(workers, statuses, strict=True):
            worker.is_open, worker.status = True, status
        configs = tuple(WorkerConfig(url=worker.url, num_slots=4) for worker in workers)
        pool = WorkerPool(RouterConfig(worker=configs, placement="round_robin"), config)
        call = LLMCall(prompt="{text}", text=Input("text", "text"))
        apps = {"reply": deploy_app("reply", Template("reply", call, {"reply": call["text"]}))}
        _, url = stack.enter_context(served([transforms_engine()], config, apps, pool=pool, state=state))
        yield stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S)), workers


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def batch(http: httpx.Client, num: int) -> dict[str, Any]:
    """Run a batch of chats to its end; return it."""
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": CHAT, "body": chat(f"line {number}")}
        for number in range(num)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    files = {"file": ("in.jsonl", content), "purpose": (None, "batch")}
    made = http.post("/v1/files", files=files).json()["id"]
    wanted = {"input_file_id": made, "endpoint": CHAT, "completion_window": "24h"}
    found: dict[str, Any] = http.post("/v1/batches", json=wanted).json()
    end_s = monotonic() + PATIENCE_S
    while found["status"] not in ("completed", "failed", "expired", "cancelled"):
        assert monotonic() < end_s, found
        sleep(0.01)
        found = http.get(f"/v1/batches/{found['id']}").json()
    return found


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_another_worker_answers_at_each_door(status: int, tmp_path: Path) -> None:
    with service(tmp_path, status, status, 200) as (http, workers), ThreadPoolExecutor(4) as threads:
        for stream in (False, True):
            asked = threads.map(
                lambda n, s=stream: http.post(CHAT, json=chat(f"hi {n}", stream=s)), range(NUM)
            )
            assert {answer.status_code for answer in asked} == {200}
        query = {"inputs": {"text": "hi"}}
        asked = threads.map(lambda _: http.post("/v1/apps/reply/queries", json=query), range(NUM))
        assert [answer.json()["outputs"] for answer in asked] == [{"reply": "to hi"}] * NUM
        ended = batch(http, NUM)
        assert ended["request_counts"] == {"total": NUM, "completed": NUM, "failed": 0}
        assert all(worker.asked for worker in workers)


@pytest.mark.parametrize("status", [401, 404, 405])
def test_what_all_workers_answer_is_the_answer_of_the_door(status: int, tmp_path: Path) -> None:
    with service(tmp_path, status, status) as (http, workers):
        for stream in (False, True):
            answer = http.post(CHAT, json=chat("hi", stream=stream))
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
        ended = batch(http, 2)
        assert ended["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
        lines = http.get(f"/v1/files/{ended['error_file_id']}/content").text.splitlines()
        assert {json.loads(line)["response"]["status_code"] for line in lines} == {status}
        if status != 401:  # those that want a key are not asked again at once
            assert len(workers[0].asked) == len(workers[1].asked) == 4
        for worker in workers:
            worker.status = 200
        assert http.post(CHAT, json=chat("hi")).status_code == 200
