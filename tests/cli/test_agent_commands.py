"""`stretto load`, and `stretto replay` of traces of agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, running, serving
from support.openai_stub import OpenAIStub, Reply

FILES_BEFORE = Path(__file__).parent / "files_before"
MAIN = (sys.executable, "-m", "stretto.cli.main")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of two jobs: a request and one that waits for it, and another request."""
    path = tmp_path / "agents.jsonl"
    lines = (
        {"request_id": "a", "timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]},
        {"request_id": "b", "wait_for": ["a"], "tool_wait_ms": 20, "input_length": 50, "output_length": 2},
        {"request_id": "c", "timestamp": 10, "input_length": 40, "output_length": 2},
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_load_is_sent_and_measured(stretto: CommandLine, trace: Path) -> None:
    stub = OpenAIStub(lambda body: Reply(("x",) * body["max_tokens"], num_prompt=len(body["prompt"])))
    with running(stub) as url:
        ended = stretto("load", trace, "--url", url, "--json")
        table = stretto("load", trace, "--url", url, "--model", "other")
    report = json.loads(ended.out)
    assert ended.code == 0
    assert {name: report[name] for name in ("requests", "answered", "failed", "not_ended", "jobs_done")} == {
        **{"requests": 3, "answered": 3, "failed": 0, "not_ended": 0, "jobs_done": 2}
    }
    assert (report["prompt_tokens"], report["output_tokens"]) == (690, 7)
    assert report["first_token"]["p50"] <= report["end_to_end"]["max"] <= report["duration_s"]
    assert [len(body["prompt"]) for body in stub.requests if body["max_tokens"] == 3] == [600, 600]
    assert {body["model"] for body in stub.requests[3:]} == {"other"}
    assert "3 of 3 requests answered, 0 failed, 0 not sent or not ended\n2 of 2 jobs done" in table.out


def test_lengths_may_be_sent_as_words(stretto: CommandLine, trace: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> Reply:
        seen.append(body)
        return Reply(("x",))

    with serving(answer) as url:
        assert stretto("load", trace, "--url", url, "--api", "chat").code == 0
    assert sorted(len(body["messages"][0]["content"].split()) for body in seen) == [40, 50, 600]


def test_failed_requests_are_counted_and_end_with_1(stretto: CommandLine, trace: Path) -> None:
    with serving(lambda body: Reply(("x",)) if body["max_tokens"] == 2 else Reply(status=400)) as url:
        ended = stretto("load", trace, "--url", url)
    assert ended.code == 1
    assert "1 of 3 requests answered, 1 failed, 1 not sent or not ended" in ended.out
    assert "1 x BadReply: " in ended.out


def test_what_cannot_be_loaded_is_refused(stretto: CommandLine, trace: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_text(trace.read_text()[:-9])
    for args, message in (
        ((tmp_path / "x", "--url", "http://127.0.0.1:9"), f"TraceError: {tmp_path}/x: cannot be read"),
        ((cut, "--url", "http://127.0.0.1:9"), f"TraceError: {cut}, line 3: not JSON"),
        ((trace, "--url", "127.0.0.1"), "ConfigError: url is '127.0.0.1'; it must start with http://"),
        ((trace, "--url", "http://127.0.0.1:9", "--api", "x"), "ConfigError: there is no api 'x'"),
    ):
        assert stretto.refuses("load", *args).startswith(message)
    with running(OpenAIStub(lambda _: Reply())) as url:
        pass
    for model in ((), ("--model", "m")):
        line = stretto.refuses("load", trace, "--url", url, *model, code=1)
        assert line.startswith("EngineUnreachable: cannot reach")


def test_ctrl_c_cancels_and_prints_what_was_measured(trace: Path) -> None:
    hangs = threading.Event()

    def answer(body: Mapping[str, Any]) -> Reply:
        if len(body["prompt"]) == 50:
            hangs.set()
            return Reply(("x",), ending="hang")
        return Reply(("x",) * body["max_tokens"])

    stub = OpenAIStub(answer)
    with running(stub) as url:
        process = subprocess.Popen(
            [*MAIN, "load", str(trace), "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert hangs.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=800)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "failed, " in out
    assert "0 failed" in out
    assert "jobs done in" in out


def test_a_trace_is_replayed_in_virtual_time(stretto: CommandLine, trace: Path) -> None:
    one, again, faster = (
        json.loads(stretto("replay", trace, "--json", *more).out)
        for more in (
            (),
            (),
            ("--instances", "llm=2", "--policy", "topology_aware", "--model", "Llama-2-13b-hf"),
        )
    )
    assert one == again
    assert (one["answered"], one["jobs_done"], one["prompt_tokens"]) == (3, 2, 690)
    assert one["job"]["max"] > one["end_to_end"]["max"] + 0.02
    assert one != faster
    assert "2 of 2 jobs done" in stretto("replay", trace).out


def test_simulated_servers_run_as_many_requests_as_their_memory_holds(
    stretto: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "burst.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 400, "output_length": 200}\n' * 20)
    report = json.loads(stretto("replay", path, "--json").out)
    assert report["answered"] == 20
    assert report["first_token"]["max"] < report["end_to_end"]["p50"] / 2  # the last one waits for no end


def test_a_replay_refuses_what_a_trace_cannot_have(stretto: CommandLine, trace: Path, tmp_path: Path) -> None:
    run, missing = FILES_BEFORE / "run.jsonl", tmp_path / "missing.jsonl"
    for args, message in (
        ((trace, "--passes", "none"), "UserError: --passes: a trace of agents has no graphs"),
        ((trace, "--instances", "x=1"), "ConfigError: there is no engine 'x'"),
        ((trace, "--policy", "x"), "ConfigError: there is no policy 'x'"),
        ((trace, "--model", "x"), "ConfigError: preset A100-80G has no model 'x'"),
        ((trace, "--device", "x"), "ConfigError: there is no preset 'x'"),
        ((trace, "--device", "RTX-3090"), "ConfigError: preset RTX-3090 has no model"),
        ((run, "--model", "x"), f"UserError: --model is for traces of agents; {run} is a recorded run"),
        ((missing, "--placement", "e2"), f"UserError: {missing}: cannot be read"),
    ):
        assert stretto.refuses("replay", *args).startswith(message)
