"""`stretto run-plan` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command_line import CommandLine

from benchmarks.common.mini_model import MINI

APP = """
name: pair
nodes:
  - {name: writer, model: stand-in, max_tokens: 30}
  - {name: judge, model: stand-in, max_tokens: 20, inputs: [writer], calls: 2}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text(APP, "utf-8")
    lines = (json.dumps({"custom_id": str(at), "prompt": f"The guild moved in {at}."}) for at in range(9))
    requests.write_text("\n".join(lines), "utf-8")
    return app, requests, tmp_path / "out.jsonl"


def test_run_plan_answers_and_resumes(stretto: CommandLine, files: tuple[Path, Path, Path]) -> None:
    app, requests, out = files
    ended = stretto("run-plan", app, "--requests", requests, "--out", out)
    assert ended.code == 0, ended
    assert "9 requests answered; took" in ended.err
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert {line["custom_id"] for line in lines} == {str(at) for at in range(9)}
    assert all(len(line["response"]["body"]["answers"]["judge"]) == 2 for line in lines)
    first = sorted(out.read_text("utf-8").splitlines())
    out.unlink()
    ended = stretto("run-plan", app, "--requests", requests, "--out", out, "--at-once", 1)
    assert ended.code == 0, ended
    assert "27 calls were answered before" in ended.err
    assert sorted(out.read_text("utf-8").splitlines()) == first


def test_a_batch_file_is_answered_in_its_form(stretto: CommandLine, files: tuple[Path, Path, Path]) -> None:
    app, requests, out = files
    body = {"model": "writer", "messages": [{"role": "user", "content": "The guild moved in."}]}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    requests.write_text(json.dumps(line), "utf-8")
    ended = stretto("run-plan", app, "--requests", requests, "--out", out)
    assert ended.code == 0, ended
    answer = json.loads(out.read_text("utf-8"))["response"]["body"]
    assert answer["choices"][0]["message"]["content"] == "The guild moved in."
    assert answer["usage"]["prompt_tokens"] == 4


def test_a_batch_file_is_an_app_by_itself(stretto: CommandLine, files: tuple[Path, Path, Path]) -> None:
    _, requests, out = files
    body = {"model": "stand-in", "messages": [{"role": "user", "content": "The guild moved in."}]}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    requests.write_text(json.dumps(line), "utf-8")
    ended = stretto("run-plan", "--requests", requests, "--out", out)
    assert ended.code == 0, ended
    assert json.loads(out.read_text("utf-8"))["response"]["body"]["model"] == "stand-in"
    requests.write_text(json.dumps({"custom_id": "1", "prompt": "x"}), "utf-8")
    assert "'1': it has no url and body" in stretto.refuses(
        "run-plan", "--requests", requests, "--out", out.parent / "b"
    )


def test_a_line_of_a_batch_file_whose_model_is_not_there_is_refused_alone(
    stretto: CommandLine, files: tuple[Path, Path, Path]
) -> None:
    """It refused the whole file."""
    _, requests, out = files
    lines = []
    for name in ("stand-in", "no-model"):
        body = {"model": name, "messages": [{"role": "user", "content": "The guild moved in."}]}
        line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    requests.write_text("\n".join(lines), "utf-8")
    ended = stretto("run-plan", "--requests", requests, "--out", out)
    assert (ended.code, ended.err.count("1 requests answered; 1 failed")) == (1, 1), ended
    failed = json.loads(out.with_name(f"{out.name}.failed").read_text("utf-8"))
    assert (failed["custom_id"], json.loads(out.read_text("utf-8"))["custom_id"]) == ("no-model", "stand-in")
    message = failed["error"]["message"]
    assert message.startswith("body: model 'no-model' is no folder with a checkpoint or a GGUF file; ")


def test_one_model_that_ships_serves_all_nodes_in_turn(
    stretto: CommandLine, files: tuple[Path, Path, Path]
) -> None:
    app, requests, out = files
    app.write_text(APP.replace("stand-in", str(MINI)).replace("calls: 2", "calls: 1"), "utf-8")
    requests.write_text(requests.read_text("utf-8").splitlines()[0], "utf-8")
    ended = stretto("run-plan", app, "--requests", requests, "--out", out, "--at-once", 1)
    assert ended.code == 0, ended
    assert json.loads(out.read_text("utf-8"))["response"]["body"]["answers"].keys() == {"writer", "judge"}


def test_emulated_servers_carry_a_plan_out(stretto: CommandLine, files: tuple[Path, Path, Path]) -> None:
    app, requests, out = files
    app.write_text("nodes: [{name: only, model: mpt-7b-chat, max_tokens: 9}]", "utf-8")
    requests.write_text(requests.read_text("utf-8").splitlines()[0], "utf-8")
    given = "run-plan", app, "--requests", requests, "--out", out, "--serve", "emulated"
    command = *given, "--machine", "4xA100-80G", "--planner", "moldable_list", "--speed"
    assert "cannot emulate the fleet in real time" in stretto.refuses(*command, 1000)
    assert not out.exists()
    ended = stretto(*command, 20)
    assert ended.code == 0, ended
    assert "planned were" in ended.err
    assert len(json.loads(out.read_text("utf-8"))["response"]["body"]["answers"]["only"].split()) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("stand-in", "no-model"), "node 'writer': model 'no-model' is no folder with a checkpoint"),
        (("inputs: [writer]", "inputs: [nobody]"), "unknown input 'nobody'"),
        (("max_tokens: 30", 'max_tokens: 30, prompt: "{wish}"'), "prompt has {wish}; known are prompt"),
    ],
)
def test_a_wrong_app_is_refused_before_any_file_is_made(
    stretto: CommandLine, files: tuple[Path, Path, Path], change: tuple[str, str], message: str
) -> None:
    app, requests, out = files
    app.write_text(APP.replace(*change), "utf-8")
    assert message in stretto.refuses("run-plan", app, "--requests", requests, "--out", out)
    assert sorted(path.name for path in app.parent.glob("out*")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--planner", "magic"), "'magic'"),
        (
            ("--machine", "4xA100-80G"),
            "--serve local is planned for the cores of this machine",
        ),
        (("--serve", "emulated", "--machine", "cpu"), "--serve emulated is planned for GPUs"),
        (("--machine", "cpu"), "node 'writer': model 'stand-in' is no checkpoint"),
        (("--vllm", sys.executable), "--vllm: has no use with --serve local"),
        (("--speed", 2), "--speed: has no use with --serve local"),
        (("--planner", "stretto"), "--planner: has no use with --serve local without --machine; leave"),
        (
            ("--serve", "vllm", "--vllm", sys.executable, "--speed", 2),
            "--speed: has no use with --serve vllm",
        ),
        (("--serve", "vllm", "--vllm", sys.executable, "--planner", "stretto"), "without --machine"),
        (("--serve", "vllm", "--vllm", "/no/python"), "--vllm /no/python: cannot be run"),
    ],
)
def test_options_without_use_are_refused_before_any_file_is_made(
    stretto: CommandLine, files: tuple[Path, Path, Path], options: tuple[object, ...], message: str
) -> None:
    app, requests, out = files
    assert message in stretto.refuses("run-plan", app, "--requests", requests, "--out", out, *options)
    assert sorted(path.name for path in app.parent.glob("out*")) == []


def test_files_of_others_are_left_alone(stretto: CommandLine, files: tuple[Path, Path, Path]) -> None:
    app, requests, out = files
    command = "run-plan", app, "--requests", requests, "--out"
    assert "is the file of --requests too" in stretto.refuses(*command, requests)
    assert "is a folder" in stretto.refuses(*command, app.parent)
    out.write_text("mine", "utf-8")
    assert "without a journal" in stretto.refuses(*command, out)
    assert "is no journal" in stretto.refuses(*command, out, "--journal", app)
    assert out.read_text("utf-8") == "mine"
    assert app.read_text("utf-8") == APP
    assert stretto(*command, app.parent / "b").code == 0
    requests.write_text(requests.read_text("utf-8").replace("guild", "court"), "utf-8")
    assert stretto(*command, app.parent / "b").code == 0
    assert "court" in (app.parent / "b").read_text("utf-8")
    app.write_text(APP.replace("max_tokens: ", "max_tokens: 1"), "utf-8")
    assert "other work" in stretto.refuses(*command, app.parent / "b")


NUM_KILLED = 400
"""Requests of the run that is killed: it is killed after 50 of its 1,200 calls, and after 50 more."""


def test_a_killed_run_goes_on(files: tuple[Path, Path, Path]) -> None:
    """Ctrl-C ends it, a kill may too; nothing that was answered is asked again, and no process is left.

    On a machine where this test is held up for seconds, a run may end before it is killed.
    """
    app, requests, out = files
    lines = (
        json.dumps({"custom_id": str(at), "prompt": "The guild moved in. " * 30}) for at in range(NUM_KILLED)
    )
    requests.write_text("\n".join(lines), "utf-8")
    journal = out.with_name("out.jsonl.journal")
    command = [sys.executable, "-m", "stretto.cli.main", "run-plan", str(app)]
    command += ["--requests", str(requests), "--out", str(out)]
    num_saved = 0
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as run:
            while run.poll() is None and _num_lines(journal) < num_saved + 50:
                time.sleep(0.01)
            run.send_signal(number)
            run.communicate(timeout=800)
            assert run.returncode in (130 if number == signal.SIGINT else -number, 0)
            with pytest.raises(ProcessLookupError):
                os.killpg(run.pid, 0)
        assert _num_lines(journal) >= num_saved
        num_saved = _num_lines(journal)
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=800, check=True)
    assert f"{NUM_KILLED} requests answered; {num_saved - 1} calls were answered before" in ended.stderr
    keys = [
        tuple(json.loads(line.partition("\t")[0])[:4]) for line in journal.read_text("utf-8").splitlines()[1:]
    ]
    assert len(keys) == len(set(keys)) == 3 * NUM_KILLED
    assert len({json.loads(line)["custom_id"] for line in out.read_text("utf-8").splitlines()}) == NUM_KILLED


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
