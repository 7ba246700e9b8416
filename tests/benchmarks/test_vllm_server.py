"""A server for a benchmark starts, answers and always ends. A small script stands in for vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import pytest

from benchmarks.common.vllm_server import VARIABLE, VLLM, find_vllm, serving
from benchmarks.llm.contestants import VLLMServer
from stretto.model.errors import ConfigError, EngineTimeout, EngineUnavailable

# What it is to do is the name of the model's folder. It writes its process ids into that folder.
SERVER = """
import http.server, os, pathlib, signal, subprocess, sys, time

if sys.argv[1] == "-c":
    print("1.2.3")
    sys.exit()
options = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(options["--model"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / "said").write_text(" ".join(sys.argv[1:]))
(folder / "processes").write_text(f"{os.getpid()} {child.pid}")
if folder.name == "fails":
    print("there is no such model")
    sys.exit(3)
if folder.name == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
asked = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        is_ready = folder.name != "slow" and asked > 1
        self.send_response(200 if is_ready else 503)
        self.end_headers()

    def do_POST(self):
        (folder / "asked").touch()
        time.sleep(600)

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""

start = partial(serving, dtype="float32", num_threads=1, grace_s=0.2)


@pytest.fixture
def vllm(tmp_path: Path) -> VLLM:
    """An executable that takes the arguments of a Python with vLLM."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    return VLLM(python, "1.2.3")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint, as far as the server's starter looks; its name says how the server behaves."""
    folder = tmp_path / getattr(request, "param", "works")
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    return folder


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(folder: Path) -> bool:
    """Whether the server's processes end within ten seconds."""
    pids = [int(pid) for pid in (folder / "processes").read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def test_it_serves_the_checkpoint_and_ends(vllm: VLLM, folder: Path) -> None:
    said: list[str] = []
    with start(vllm, folder, say=said.append) as url:
        assert httpx.get(f"{url}/health").status_code == 200
    assert all_gone(folder)
    assert len(said) >= 2
    arguments = (folder / "said").read_text()
    assert "-m vllm.entrypoints.openai.api_server" in arguments
    assert "--max-model-len 512" in arguments
    assert "--dtype float32" in arguments
    assert "--enforce-eager" in arguments


def test_compiled_is_not_eager(vllm: VLLM, folder: Path) -> None:
    with start(vllm, folder, say=lambda _: None, is_compiled=True):
        assert "--enforce-eager" not in (folder / "said").read_text()
    assert all_gone(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_it_ends_when_the_benchmark_fails(vllm: VLLM, folder: Path, error: type[BaseException]) -> None:
    with (
        pytest.raises(error),
        start(vllm, folder, say=lambda _: None),
    ):
        raise error
    assert all_gone(folder)


def test_it_ends_when_the_start_is_interrupted(vllm: VLLM, folder: Path) -> None:
    def interrupt(_: str) -> None:
        if (folder / "processes").exists():
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        start(vllm, folder, say=interrupt),
    ):
        raise AssertionError("it was not interrupted")
    assert all_gone(folder)


@pytest.mark.parametrize("folder", ["stubborn"], indirect=True)
def test_a_server_that_does_not_listen_is_killed(vllm: VLLM, folder: Path) -> None:
    with start(vllm, folder, say=lambda _: None):
        pass
    assert all_gone(folder)


@pytest.mark.parametrize("folder", ["fails"], indirect=True)
def test_a_server_that_does_not_start_is_reported_with_its_words(vllm: VLLM, folder: Path) -> None:
    with (
        pytest.raises(EngineUnavailable, match=r"ended with 3 .*: there is no such model"),
        start(vllm, folder, say=lambda _: None),
    ):
        raise AssertionError("it started")
    assert all_gone(folder)


@pytest.mark.parametrize("folder", ["slow"], indirect=True)
def test_patience_ends(vllm: VLLM, folder: Path) -> None:
    def wait_for_process(_: str) -> None:
        deadline = time.monotonic() + 10
        while not (folder / "processes").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    with (
        pytest.raises(EngineTimeout, match="not ready"),
        start(vllm, folder, say=wait_for_process, patience_s=0.3),
    ):
        raise AssertionError("it started")
    assert all_gone(folder)


def test_it_ends_when_its_starter_is_killed(vllm: VLLM, folder: Path) -> None:
    script = f"""
from pathlib import Path
from benchmarks.common.vllm_server import VLLM, serving
vllm = VLLM(Path({str(vllm.python)!r}), "")
with serving(
    vllm, Path({str(folder)!r}), dtype="float32", num_threads=1, say=lambda _: None, grace_s=0.2
):
    print("ready", flush=True)
    input()
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    assert starter.stdin is not None
    assert starter.stdout.readline() == "ready\n"
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait(10)
    starter.stdin.close()
    starter.stdout.close()
    assert all_gone(folder)


def test_ctrl_c_does_not_wait_for_answers_that_do_not_come(vllm: VLLM, folder: Path) -> None:
    """The key is pressed again if nothing happens: an interrupt within a callback of the garbage collector is
    lost."""
    has_ended = threading.Event()

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not (folder / "asked").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(4):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if has_ended.wait(20):
                return

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presses = threading.Thread(target=interrupt)
    presses.start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            start(vllm, folder, say=lambda _: None) as url,
            VLLMServer.at(url, "vLLM") as server,
        ):
            server.generate([[1], [2]])
    finally:
        has_ended.set()
        presses.join()
        signal.signal(signal.SIGINT, before)
    assert (folder / "asked").exists()
    assert all_gone(folder)


def test_a_folder_without_checkpoint_is_refused(vllm: VLLM, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no checkpoint"),
        start(vllm, tmp_path, say=lambda _: None),
    ):
        raise AssertionError("it started")


def test_the_installation_is_the_one_that_is_named(
    vllm: VLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_vllm() is None
    assert find_vllm(vllm.python) == vllm
    monkeypatch.setenv(VARIABLE, str(vllm.python))
    assert find_vllm() == vllm
    with pytest.raises(ConfigError, match="no Python with vLLM"):
        find_vllm(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="no Python with vLLM"):
        find_vllm(Path(sys.executable))


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("exit 0", "saying ''"),
        ("echo no module >&2; exit 3", "ended with 3, saying 'no module'"),
        ("echo '<html>1.2 hello</html>'", "saying '<html>"),
        ("kill -9 $$", "ended with -9"),
    ],
)
def test_what_is_no_vllm_is_refused(tmp_path: Path, does: str, problem: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=problem):
        find_vllm(python)


def test_one_that_does_not_say_its_version_is_ended_with_its_children(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 600 & echo $$ $! > {tmp_path}/processes\nwait\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=r"did not say its version in 1 s"):
        find_vllm(python, patience_s=1)
    if (tmp_path / "processes").exists():
        assert all_gone(tmp_path)
