"""A server that is a process of ours starts, answers, and ends with us however we end (real processes)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import openai_stub

from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
from stretto.engines.server_process.kept import KeptProcess, take_port
from stretto.engines.server_process.launched import LaunchedServer
from stretto.engines.server_process.programs import command_line
from stretto.model.errors import ConfigError, EngineTimeout, EngineUnavailable
from stretto.model.replica import Replica
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask
from stretto.model.values import Segment

STUB = (sys.executable, openai_stub.__file__)
TASK = LLMTask(1, "query", "step", (Segment("Hello", "question"),), Decode(max_tokens=8))


def config(folder: Path, does: str = "", **fields: Any) -> ServerProcessConfig:
    """A server that is the stub, told by the environment how it behaves."""
    given: dict[str, Any] = {
        "program": "vllm",
        "model": "some/model",
        "command": STUB,
        "environment": {"STUB": does, "STUB_FOLDER": str(folder)},
        "grace_s": 0.2,
        "start_timeout_s": 30,
        **fields,
    }
    return ServerProcessConfig(**given)


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(folder: Path, within_s: float = 60) -> bool:
    """Whether the server's processes end in time."""
    pids = [int(pid) for pid in (folder / "processes").read_text().split()]
    deadline = time.monotonic() + within_s
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def refuses(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


def comes_to_refuse(port: int, within_s: float = 60) -> bool:
    """Whether nobody listens there in time: a killed process is a zombie before its last thread has ended,
    which holds the socket until then.
    """
    deadline = time.monotonic() + within_s
    while not refuses(port) and time.monotonic() < deadline:
        time.sleep(0.02)
    return refuses(port)


async def answer(engine: ServerProcess) -> object:
    events: list[LLMEvent] = []
    await engine.generate(TASK, events.append)
    (last,) = events[-1:]
    assert isinstance(last, Done), last
    return last.value


def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    async def run() -> tuple[object, int]:
        port = take_port(None)
        engine = ServerProcess(config(tmp_path, port=port))
        try:
            await engine.start()
            return await answer(engine), port
        finally:
            await engine.aclose()

    value, port = asyncio.run(run())
    assert value == "hello"
    assert all_gone(tmp_path)
    assert comes_to_refuse(port)


def test_the_replica_fills_the_command_line_and_the_devices(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    replica = Replica(
        ServerProcess, config(tmp_path), runs_in="loop", devices=(f"cpu:{core}",), threads=3, num_slots=4
    )

    async def run() -> list[int]:
        given = replica.instance_config()
        assert isinstance(given, ServerProcessConfig)
        engine = ServerProcess(given)
        try:
            await engine.start()
            pid = int((tmp_path / "processes").read_text().split()[0])
            return sorted(os.sched_getaffinity(pid))
        finally:
            await engine.aclose()

    assert asyncio.run(run()) == [core]
    arguments = json.loads((tmp_path / "arguments").read_text())
    assert arguments[:5] == ["serve", "some/model", "--host", "127.0.0.1", "--port"]
    assert arguments[6:] == ["--tensor-parallel-size", "1", "--max-num-seqs", "4"]
    variables = json.loads((tmp_path / "variables").read_text())
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""


def test_a_server_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ServerProcess(config(tmp_path, "fails"))
        try:
            await engine.start()
        finally:
            await engine.aclose()

    with pytest.raises(EngineUnavailable, match=r"'vllm' ended with exit code 3; .*there is no such model"):
        asyncio.run(run())
    assert all_gone(tmp_path)


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ServerProcess(config(tmp_path, command=("/no/such/server",)))
        try:
            await engine.start()
        finally:
            await engine.aclose()

    with pytest.raises(EngineUnavailable, match=r"exit code 127; .*cannot run /no/such/server"):
        asyncio.run(run())


def test_a_start_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ServerProcess(config(tmp_path, "slow", start_timeout_s=3))
        try:
            await engine.start()
        finally:
            await engine.aclose()

    with pytest.raises(EngineTimeout, match="'vllm' was not ready in 3 s"):
        asyncio.run(run())
    assert all_gone(tmp_path)


def test_a_server_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ServerProcess(config(tmp_path, "stubborn"))
        await engine.start()
        await engine.aclose()

    asyncio.run(run())
    assert all_gone(tmp_path)


def test_closing_ends_a_start(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ServerProcess(config(tmp_path, "slow"))
        waiting = asyncio.create_task(engine.start())
        while not (tmp_path / "processes").exists():
            await asyncio.sleep(0.02)
        await engine.aclose()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
    assert all_gone(tmp_path)


def test_a_task_that_gives_up_waiting_does_not_end_the_start(tmp_path: Path) -> None:
    async def run() -> object:
        engine = ServerProcess(config(tmp_path))
        try:
            first = asyncio.create_task(answer(engine))
            await asyncio.sleep(0.05)
            first.cancel()
            return await answer(engine)
        finally:
            await engine.aclose()

    assert asyncio.run(run()) == "hello"


def test_a_server_that_dies_later_is_noticed(tmp_path: Path) -> None:
    async def run() -> EngineUnavailable:
        engine = ServerProcess(config(tmp_path))
        try:
            await engine.start()
            os.kill(int((tmp_path / "processes").read_text().split()[0]), signal.SIGKILL)
            return await asyncio.wait_for(engine.ended(), 60)
        finally:
            await engine.aclose()

    assert "ended with exit code" in str(asyncio.run(run()))
    assert all_gone(tmp_path)


@pytest.mark.parametrize("does", ["", "stubborn"])
def test_it_ends_when_its_parent_is_killed(tmp_path: Path, does: str) -> None:
    """A fork of the parent survives, and with it the other end of the keeper's pipe."""
    script = f"""
import asyncio, os, time
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
async def run():
    await ServerProcess({config(tmp_path, does, port=(port := take_port(None)))!r}).start()
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
    await asyncio.sleep(600)
asyncio.run(run())
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    fork = int(parent.stdout.readline())
    try:
        assert not refuses(port)
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        parent.stdout.close()
        assert all_gone(tmp_path)
        assert comes_to_refuse(port)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(EngineUnavailable, match=r"port \d+ is taken; end what listens there"):
            take_port(one.getsockname()[1])


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'ollama'; there are vllm, sglang, llama\.cpp"):
        ServerProcess(config(tmp_path, program="ollama"))
    with pytest.raises(ConfigError, match="model is empty"):
        config(tmp_path, model="")
    with pytest.raises(ConfigError, match=r"memory_share is 1\.5; it must be above 0, at most 1"):
        config(tmp_path, memory_share=1.5)
    for place in ("thread", "process"):
        with pytest.raises(ConfigError, match="this executable runs in 'loop' or 'ray'"):
            Replica(ServerProcess, config(tmp_path), runs_in=place)


def test_each_program_takes_its_own_arguments(tmp_path: Path) -> None:
    def line(program: str) -> str:
        given = config(tmp_path, program=program, command=(), tp=2, num_slots=8, threads=6, memory_share=0.5)
        return " ".join(command_line(given, 8000))

    assert line("vllm") == (
        "vllm serve some/model --host 127.0.0.1 --port 8000 --tensor-parallel-size 2 "
        "--max-num-seqs 8 --gpu-memory-utilization 0.5"
    )
    assert line("sglang") == (
        "python3 -m sglang.launch_server --model-path some/model --host 127.0.0.1 --port 8000 "
        "--tensor-parallel-size 2 --max-running-requests 8 --mem-fraction-static 0.5"
    )
    assert line("llama.cpp") == (
        "llama-server --model some/model --host 127.0.0.1 --port 8000 "
        "--split-mode row --parallel 8 --threads 6"
    )


def test_a_server_takes_its_share_of_an_accelerator(tmp_path: Path) -> None:
    assert config(tmp_path, memory_share=0.5).device_bytes("cuda", 100) == 50
    assert config(tmp_path).device_bytes("cuda", 100) == 100
    assert config(tmp_path).device_bytes("cpu", 100) == 0


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_kept_process_may_be_ended_twice_and_leaves_no_file_open() -> None:
    process = KeptProcess([sys.executable, "-c", "print('hello')"], os.environ)
    assert process.wait() == 0
    process.end()
    process.end()
    assert process.last_words() == "hello"


def test_a_kept_process_ends_though_its_keeper_is_stopped(tmp_path: Path) -> None:
    """The guard kills the command when the keeper is killed."""
    program = "import os, signal, sys; print(os.getpid(), file=open('new', 'w'), flush=True)\n"
    program += "os.rename('new', 'processes'); signal.pause()"
    command = ["env", "-C", str(tmp_path), sys.executable, "-c", program]
    process = KeptProcess(command, os.environ, grace_s=0.1, keeper_s=0.1)
    deadline = time.monotonic() + 60
    while not (tmp_path / "processes").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process._process.pid, signal.SIGSTOP)
    process.end()
    assert all_gone(tmp_path)


def test_it_ends_with_a_process_that_is_watched(tmp_path: Path) -> None:
    """The watched process stays a zombie until its parent asks for it, and counts as gone all the same."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def run() -> None:
        server = LaunchedServer(config(tmp_path), watched=[other.pid])
        try:
            await server.start()
            other.kill()
            await asyncio.wait_for(server.ended(), 60)
        finally:
            await server.aclose()

    try:
        asyncio.run(run())
    finally:
        other.kill()
        other.wait()
    assert all_gone(tmp_path)


def test_it_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        server = LaunchedServer(config(tmp_path, "stubborn"))
        try:
            await server.start()
            pid = int((tmp_path / "processes").read_text().split()[0])
            keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(keeper, signal.SIGKILL)
            assert all_gone(tmp_path)
        finally:
            await server.aclose()

    asyncio.run(run())
