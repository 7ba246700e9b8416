"""`stretto serve --worker`: one port for plain traffic and apps, with the settings of a router."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.collector import collecting
from support.gated_worker import MODEL, PATIENCE_S, GatedWorker

from stretto.cli.served_workers import pool_of, with_pool
from stretto.engines.llms import llm_engine
from stretto.model.errors import ConfigError
from stretto.runtime.learned_file import LearnedFile
from stretto.schema.tables import Tables
from stretto.service.config import ServiceConfig
from stretto.wire.metrics import read_samples

APP = """
from stretto import Input, Template
from stretto.components import LLMCall

call = LLMCall(prompt="{text}", text=Input("text", "text"))
reply = Template("reply", call, {"reply": call["text"]})
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run the command; yield it, and a client of its address."""
    command = [sys.executable, "-m", "stretto.cli.main", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith("http"))
            with httpx.Client(base_url=line.split()[0], timeout=PATIENCE_S) as client:
                yield process, client
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_the_command_answers_chats_and_apps_with_workers_of_both_places(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with GatedWorker() as one, GatedWorker() as other, collecting() as collector:
        one.is_open = other.is_open = True
        file = tmp_path / "engines.toml"
        file.write_text(
            "[router]\nplacement = 'round_robin'\n[[service.tenant]]\nname = 'a'\nkeys = ['k']\n"
            f"[[router.worker]]\nurl = '{other.url}'\napi_key = 'secret'\nheaders = {{ x-own = 'h' }}\n"
        )
        options = ("--engines", str(file), "--worker", one.url, "--app", f"{tmp_path}/app.py:reply")
        with serving(*options, "--otel", collector.url) as (_, http):
            assert http.post("/v1/chat/completions", json=CHAT).status_code == 401
            http.headers["authorization"] = "Bearer k"
            for _ in range(4):
                assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
                answer = http.post("/v1/apps/reply/queries", json={"inputs": {"text": "hi"}}).json()
                assert answer["outputs"] == {"reply": "to hi"}
            counts = list(read_samples(http.get("/metrics").text, ("stretto_requests_total",)))
            assert sum(one.value for one in counts) == 8
            assert {one.labels["door"] for one in counts} == {"openai", "apps"}
            assert {one.labels["worker"] for one in counts} == {one.url, other.url}
        assert one.asked
        assert other.asked
        assert all("authorization" not in asked.headers for asked in one.asked)
        assert {asked.headers["authorization"] for asked in other.asked} == {"Bearer secret"}
        assert {asked.headers["x-own"] for asked in other.asked} == {"h"}
        assert b"invoke_workflow" in b"".join(collector.bodies)  # at the door's end


def test_an_interrupt_lets_passing_requests_end() -> None:
    with (
        GatedWorker() as worker,
        ThreadPoolExecutor() as threads,
        serving("--worker", worker.url) as (process, http),
    ):
        asked = threads.submit(lambda: http.post("/v1/chat/completions", json=CHAT))
        worker.wait_until_asked(1)
        process.send_signal(signal.SIGTERM)
        worker.release()
        assert asked.result().status_code == 200


def test_what_the_workers_queue_learns_of_programs_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = LearnedFile(tmp_path / "stretto" / "learned.json")
    pool = pool_of(["http://127.0.0.1:9"], None, ServiceConfig(), print, None)
    assert pool is not None
    for seen in (2, 4):
        with GatedWorker() as worker, serving("--worker", worker.url) as (_, http):
            worker.is_open = True
            for number in range(2):
                program = {"x-stretto-program": f"agent {number}"}
                http.post("/v1/chat/completions", json=CHAT, headers=program).raise_for_status()
                program["x-stretto-program-final"] = "true"
                http.post("/v1/chat/completions", json=CHAT, headers=program).raise_for_status()
        learned = file.read([pool.learner])["llm"].rows()
        rows = [row for row in learned if row.kind == MODEL and not row.num_queries]
        assert sum(row.num for row in rows) == 2 * seen, "a sample for each call of a plain program"


def test_bad_settings_are_refused() -> None:
    def refused(urls: list[str], text: str) -> str:
        with pytest.raises(ConfigError) as error:
            pool_of(urls, Tables(text, "x.toml"), ServiceConfig(), print, None)
        return str(error.value)

    assert "unknown key 'plaecment'" in refused([], "[router]\nplaecment = 'x'")
    assert "URL" in refused(["nonsense"], "")
    assert pool_of([], Tables("", "x.toml"), ServiceConfig(), print, None) is None
    pool = pool_of(["http://127.0.0.1:9"], None, ServiceConfig(), print, None)
    assert pool is not None
    for described, llms in (([llm_engine("stand-in")], []), ([], ["stand-in"])):
        with pytest.raises(ConfigError, match="the workers answer as the engine 'llm'"):
            with_pool(described, pool, llms)
