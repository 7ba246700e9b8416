"""`stretto run-plan` at servers that run already."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from support.command_line import CommandLine
from support.emulated import MODEL, emulating, fleet_of
from support.routing import StubServer

from stretto.cli.served_workers import pool_of
from stretto.emulate.fleet import check_fleet
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.model.errors import ConfigError
from stretto.schema.reading import read_tables
from stretto.service.config import ServiceConfig

OTHER = "llama-2-13b"
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@contextmanager
def servers() -> Iterator[list[object]]:
    """Run two servers of a model and one of another; yield the options that name them."""
    wanted = (
        WantedServer(devices=(number,), port=0, model=model, loading_s=0.0)
        for number, model in enumerate((MODEL, MODEL, OTHER))
    )
    with emulating(check_fleet(WantedFleet(("A100-80G",) * 3, tuple(wanted), speed=5.0))) as urls:
        yield [part for url in urls for part in ("--url", url)]


def chat(model: str = MODEL, **fields: Any) -> dict[str, Any]:
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "Where is the inn?"},
    ]
    return {"model": model, "messages": messages, "max_tokens": 6, **fields}


def write(path: Path, bodies: dict[str, tuple[str, dict[str, Any]]]) -> Path:
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})
        for name, (url, body) in bodies.items()
    ]
    path.write_text("\n".join(lines), "utf-8")
    return path


def results(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert all(set(line) == {"id", "custom_id", "response", "error"} for line in lines)
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def test_lines_are_handed_on_with_all_that_they_ask_for(stretto: CommandLine, tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    requests = write(
        tmp_path / "in.jsonl",
        {
            "plain": (CHAT, chat(OTHER, user="u", metadata={"a": "b"}, seed=3)),
            "several": (CHAT, chat(n=2)),
            "logprobs": (CHAT, chat(logprobs=True, top_logprobs=2)),
            "schema": (CHAT, chat(response_format=schema, max_tokens=40)),
            "tools": (CHAT, chat(tools=[TOOL], tool_choice="required")),
            "text": ("/v1/completions", {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 3}),
            "response": ("/v1/responses", {"model": MODEL, "input": "a", "max_output_tokens": 3}),
            "vector": ("/v1/embeddings", {"model": MODEL, "input": "a"}),
            "gone": (CHAT, chat("gone")),
            "negative": (CHAT, chat(max_tokens=-1)),
            "streamed": (CHAT, chat(stream=True)),
            "file": ("/v1/files", {"model": MODEL}),
        },
    )
    with servers() as urls:
        ended = stretto("run-plan", "--requests", requests, "--out", tmp_path / "out", *urls)
    assert ended.code == 1, ended
    assert "7 requests answered; 5 failed" in ended.err
    answered = results(tmp_path / "out")
    for line in answered.values():
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"]
    bodies = {name: line["response"]["body"] for name, line in answered.items()}
    assert bodies["plain"]["object"] == "chat.completion"
    assert bodies["plain"]["model"] == OTHER
    assert bodies["plain"]["usage"]["completion_tokens"] == 6
    assert [choice["index"] for choice in bodies["several"]["choices"]] == [0, 1]
    assert len(bodies["logprobs"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert set(json.loads(bodies["schema"]["choices"][0]["message"]["content"])) == {"a"}
    assert bodies["tools"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert len(bodies["text"]["choices"]) == 2
    assert bodies["response"]["object"] == "response"
    failed = results(tmp_path / "out.failed")
    statuses = {name: failed[name]["response"]["status_code"] for name in ("vector", "gone", "negative")}
    assert statuses == {"vector": 404, "gone": 404, "negative": 400}
    assert "max_tokens" in failed["negative"]["response"]["body"]["error"]["message"]
    assert "stream" in failed["streamed"]["error"]["message"]
    assert "/v1/files" in failed["file"]["error"]["message"]


APP = f"""
name: pair
nodes:
  - {{name: writer, model: {MODEL}, max_tokens: 5, prompt: "Write: {{prompt}}"}}
  - {{name: judge, model: {OTHER}, max_tokens: 3, inputs: [writer], calls: 2}}
"""


def test_an_application_is_carried_out_over_servers_of_several_models(
    stretto: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "app.yaml").write_text(APP, "utf-8")
    lines = [json.dumps({"custom_id": f"r{at}", "prompt": f"The guild moved in {at}."}) for at in range(9)]
    lines.append(json.dumps({"custom_id": "one", "method": "POST", "url": CHAT, "body": chat("judge")}))
    (tmp_path / "in.jsonl").write_text("\n".join(lines), "utf-8")
    command = ["run-plan", tmp_path / "app.yaml", "--requests", tmp_path / "in.jsonl", "--out"]
    engines = tmp_path / "engines.toml"
    with servers() as urls:
        engines.write_text("".join(f'[[router.worker]]\nurl = "{url}"\n' for url in urls[1::2]), "utf-8")
        ended = stretto(*command, tmp_path / "out", "--engines", engines)
        assert ended.code == 1, ended
        found = results(tmp_path / "out")
        answers = found["r3"]["response"]["body"]["answers"]
        assert len(answers["judge"]) == 2
        assert len(answers["writer"].split()) == 5
        assert len(found) == 9
        assert "several calls" in results(tmp_path / "out.failed")["one"]["error"]["message"]
        again = stretto(*command, tmp_path / "out", "--engines", engines)
        assert "27 calls were answered before" in again.err
        assert results(tmp_path / "out") == found
        missing = stretto.refuses(*command, tmp_path / "b", *urls[:4])
    assert f"the model {OTHER!r}; it must be one of the models of the servers" in missing


DECIDING = """
from stretto import Input, Template
from stretto.components import Condition, LLMCall

question = Input("question", "text")
verdict = LLMCall(name="verdict", engine="judge", prompt="{q}?", q=question, json_schema='{"enum": ["no"]}')
is_good = Condition(name="is_good", value=verdict["text"], equals="yes")["no"]
schema = '{"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}'
asked = {"engine": "writer", "prompt": "{q}", "q": question, "when": is_good}
parts = LLMCall(name="parts", as_list=True, max_items=2, json_schema=schema, **asked)
each = LLMCall(name="each", engine="judge", prompt="{p}", p=parts["text"], each="p", max_tokens=3)
outputs = {"verdict": verdict["text"], "parts": parts["text"], "all": each["text"]}
app = Template("deciding", [verdict, parts, each], outputs)
"""


def test_an_app_whose_answers_decide_is_asked_at_servers_for_lists_and_answers_of_a_schema(
    stretto: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(DECIDING, "utf-8")
    (tmp_path / "app.yaml").write_text(f"template: app.py:app\nmodels: {{writer: {MODEL}, judge: {OTHER}}}\n")
    (tmp_path / "in.jsonl").write_text('{"custom_id": "r", "prompt": "Where is the inn"}', "utf-8")
    files = (tmp_path / "app.yaml", "--requests", tmp_path / "in.jsonl", "--out", tmp_path / "out")
    with servers() as urls:
        ended = stretto("run-plan", *files, *urls)
    assert ended.code == 0, (ended, (tmp_path / "out.failed").read_text())
    outputs = results(tmp_path / "out")["r"]["response"]["body"]["outputs"]
    assert outputs["verdict"] == '"no"'
    assert 1 <= len(outputs["parts"]) == len(outputs["all"]) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        '[router]\nworkers_file = "workers.toml"\n',
        '[[router.worker]]\nurl = "http://vllm:8000"\ndns = {}\n',
        '[[router.worker]]\nurl = "http://vllm"\nkubernetes = { selector = "app=vllm" }\n',
    ],
)
def test_servers_that_are_found_later_are_refused(tmp_path: Path, settings: str) -> None:
    engines = tmp_path / "engines.toml"
    engines.write_text(settings, "utf-8")
    tables = read_tables(engines)
    with pytest.raises(ConfigError, match="must be up when it begins; give each"):
        pool_of((), tables, ServiceConfig(), print, None, is_patient=True)


def test_engines_of_a_file_answer_under_their_names(stretto: CommandLine, tmp_path: Path) -> None:
    engines = tmp_path / "engines.toml"
    bodies = {
        "fits": (CHAT, chat("writer")),
        "several": (CHAT, chat("writer", n=2)),
        "gone": (CHAT, chat("gone")),
    }
    requests = write(tmp_path / "in.jsonl", bodies)
    with emulating(fleet_of(1)) as urls:
        engines.write_text(
            '[[engine]]\nname = "writer"\ncontract = "llm"\n\n[[replica]]\nengine = "writer"\n'
            f'executable = "openai"\nconfig = {{ url = "{urls[0]}", tokenizer = "none" }}\n',
            "utf-8",
        )
        ended = stretto("run-plan", "--requests", requests, "--out", tmp_path / "out", "--engines", engines)
    assert ended.code == 1, ended
    answered, failed = results(tmp_path / "out"), results(tmp_path / "out.failed")
    assert answered["fits"]["response"]["body"]["usage"]["completion_tokens"] == 6
    assert failed["gone"]["response"]["status_code"] == 404
    assert {*answered, *failed} == set(bodies)


def test_servers_that_are_away_and_options_of_others_are_refused(
    stretto: CommandLine, tmp_path: Path
) -> None:
    requests = write(tmp_path / "in.jsonl", {"a": (CHAT, chat())})
    command = ["run-plan", "--requests", requests, "--out", tmp_path / "out", "--url", "http://127.0.0.1:9"]
    assert "http://127.0.0.1:9 is not up" in stretto.refuses(*command, code=1)
    assert "--machine: has no use" in stretto.refuses(*command, "--machine", "4xA100-80G")
    assert "--serve: has no use" in stretto.refuses(*command, "--serve", "vllm")


@contextmanager
def stubs(*modes: str) -> Iterator[list[StubServer]]:
    """Run servers of the model "m" on a thread of their own, which behave as their modes say."""
    loop, found = asyncio.new_event_loop(), [StubServer(mode) for mode in modes]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for one in found:
            asyncio.run_coroutine_threadsafe(one.open(), loop).result(60)
        yield found
    finally:
        for one in found:
            loop.call_soon_threadsafe(one.kill)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_servers_that_went_away_are_told_of(
    stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(Progress, "update", lambda self, task, **fields: shown.append(fields["description"]))
    requests = write(tmp_path / "in.jsonl", {f"q{at}": (CHAT, chat("m")) for at in range(40)})
    command = ["run-plan", "--requests", requests, "--out", tmp_path / "out"]
    with stubs("dies", "well") as (dying, well):
        ended = stretto(*command, "--url", dying.url, "--url", well.url)
    assert ended.code == 0, ended
    assert len(results(tmp_path / "out")) == 40
    found = re.search(
        r"40 requests answered; 1 of 2 servers of 'm' went away \((\S+): .+\); "
        r"(\d+) requests were asked again; took",
        ended.err,
    )
    assert found is not None, ended.err
    assert found[1] == dying.url
    assert 1 <= len(dying.asked) <= int(found[2]) <= 40
    assert any("1 of 2 servers of 'm' went away (" in text for text in shown)


@pytest.mark.parametrize("others", [[], ["well"]])
def test_a_reply_without_choices_is_no_answer(
    others: list[str], stretto: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.service.batches.line_caller._PAUSE_S", 0.0)
    requests = write(tmp_path / "in.jsonl", {"a": (CHAT, chat("m")), "b": (CHAT, chat("m"))})
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n"
    with stubs("raw", *others) as servers:
        servers[0].raw = head + b'{"foo": 1}'
        urls = [part for one in servers for part in ("--url", one.url)]
        ended = stretto("run-plan", "--requests", requests, "--out", tmp_path / "out", *urls)
        assert servers[0].asked
    answered, failed = results(tmp_path / "out"), results(tmp_path / "out.failed")
    assert (len(answered), len(failed)) == ((2, 0) if others else (0, 2)), ended
    for line in failed.values():
        assert line["response"]["status_code"] == 502
        assert "its answer has no choices" in line["response"]["body"]["error"]["message"]


@pytest.mark.long
def test_a_killed_run_asks_only_for_what_is_missing(stretto: CommandLine, tmp_path: Path) -> None:
    bodies = {f"q{at}": (CHAT, chat(max_tokens=1 + at % 50)) for at in range(600)}
    requests, out = write(tmp_path / "in.jsonl", bodies), tmp_path / "out"
    journal = tmp_path / "out.journal"
    fleet = replace(fleet_of(1, max_sequences=8), speed=2.0)
    with emulating(fleet) as urls:
        command = ["run-plan", "--requests", requests, "--out", out, "--url", *urls]
        process = subprocess.Popen([sys.executable, "-m", "stretto", *map(str, command)])
        deadline_s = time.monotonic() + 100
        while time.monotonic() < deadline_s and process.poll() is None:
            if journal.exists() and 50 < journal.read_bytes().count(b"\n") < 500:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        saved = journal.read_bytes().count(b"\n")
        ended = stretto(*command)
    assert ended.code == 0, ended
    assert sorted(results(out)) == sorted(bodies)
    num_before = int(ended.err.split(" calls were answered before")[0].split("; ")[-1])
    assert saved - 2 <= num_before < saved + 1
