"""`stretto emulate`: what it says, what it refuses, and servers in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from support.command_line import CommandLine

MAIN = (sys.executable, "-m", "stretto.cli.main", "emulate")


@pytest.fixture
def stretto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@contextmanager
def emulate(*options: str) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """Run the command; yield its lines up to the last server that answers, and the process."""
    command = [*MAIN, "--model", "llama-2-7b", "--loading-s", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield [process.stderr.readline()], process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(100)
        process.stderr.close()
        if process.stdout is not None:
            process.stdout.close()


def free_ports(number: int) -> int:
    """The first of some ports in a row that are free."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            first: int = one.getsockname()[1]
        try:
            for port in range(first, first + number):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def wait_for(url: str) -> None:
    deadline_s = time.monotonic() + 100
    while True:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_servers_run_until_interrupted() -> None:
    port = free_ports(2)
    with emulate("--replicas", "2", "--port", str(port)) as (lines, process):
        assert "streams at once" in lines[0]
        for number in range(2):
            wait_for(f"http://127.0.0.1:{port + number}")
    assert process.returncode == 130


def test_a_signal_amid_answers_ends_the_servers() -> None:
    """uvloop drops an exception that a signal handler raises in the callback of a protocol."""
    port = free_ports(1)
    body = {"model": "llama-2-7b", "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with emulate("--port", str(port)) as (_, process), httpx.Client(timeout=100) as client:
        url = f"http://127.0.0.1:{port}"
        wait_for(url)
        with ExitStack() as streams:
            for _ in range(16):
                stream = client.stream("POST", f"{url}/v1/completions", json=body)
                next(streams.enter_context(stream).iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 128 + signal.SIGTERM


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read lines of a command up to one that has a text. Its output must not end before."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if text in line:
            return
    raise AssertionError(text)


def ends(pid: int) -> bool:
    """Wait until a process that is nobody's child has ended."""
    deadline_s = time.monotonic() + 100
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_server_with_a_process_of_its_own_ends_with_the_command(number: signal.Signals, code: int) -> None:
    """Ctrl-C reaches all processes of a terminal, and a kill only the command."""
    command = [*MAIN, "--model", "llama-2-7b", "--loading-s", "0", "--port", "0", "--processes"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    process.stderr.readline()
    pid = int(re.findall(r"process (\d+)", process.stderr.readline())[0])
    read_until(process, "all servers answer")
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait(20) == code
    assert ends(pid)
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_a_server_with_a_process_of_its_own_can_be_killed_alone() -> None:
    port = free_ports(2)
    with emulate("--replicas", "2", "--processes", "--port", str(port)) as (_, process):
        assert process.stderr is not None
        pids = [int(re.findall(r"process (\d+)", process.stderr.readline())[0]) for _ in range(2)]
        urls = [f"http://127.0.0.1:{port + number}" for number in range(2)]
        for url in urls:
            wait_for(url)
        os.kill(pids[0], signal.SIGKILL)
        read_until(process, "server 0 has ended")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{urls[0]}/health")
        assert httpx.get(f"{urls[1]}/health").is_success
        httpx.post(f"{urls[1]}/emulator/faults", json={"kind": "die"})
        read_until(process, "server 1 has ended with exit code 1")
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --model or --fleet"),
        (("--model", "gpt-9"), "no costs of the model 'gpt-9'"),
        (("--model", "llama-2-7b", "--device", "H100"), "the nearest is 'H100-80G-kernels'"),
        (("--model", "llama-2-7b", "--speed", "0"), "the speed is 0"),
        (("--model", "llama-2-7b", "--speed", "500"), "cannot emulate the fleet in real time"),
        (("--model", "llama-2-7b", "--fault", "kind=explode"), "--fault 'kind=explode'"),
        (("--model", "llama-2-7b", "--fault", "replica=3,kind=die"), "a fault is of server 3; there are 1"),
        (("--model", "llama-2-7b", "--tensor-parallel", "3"), "32 heads cannot be split over 3 devices"),
        (("--model", "llama-2-7b", "--output-lengths", "nowhere.json"), "--output-lengths nowhere.json"),
        (("--model", "llama-2-7b", "--tokenizer", "nowhere"), "cannot load the tokenizer in nowhere"),
        (("--fleet", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("--fleet", "nowhere.toml", "--replicas", "2"), "--replicas is for --model"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    stretto: CommandLine, options: tuple[str, ...], message: str
) -> None:
    assert message in stretto.refuses("emulate", *options)


def test_a_port_in_use_is_refused_in_one_line(stretto: CommandLine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port}" in stretto.refuses("emulate", "--model", "llama-2-7b", "--port", port)


def test_lengths_are_recorded_or_drawn_by_the_prompt(tmp_path: Path) -> None:
    from stretto.emulate.answer_lengths import read_answer_tokens
    from stretto.emulate.tokens import FOUR_CHARACTERS
    from stretto.model.errors import ConfigError

    path = tmp_path / "lengths.json"
    path.write_text(
        json.dumps([{"prompt": "A kitchen.", "output_tokens": 7}, {"prompt": [1, 2], "output_tokens": 9}])
    )
    length = read_answer_tokens(path)
    assert length(FOUR_CHARACTERS.encode("A kitchen."), 100) == 7
    assert length([1, 2], 5) == 5
    assert length([3], 100) == length([3], 100)
    assert {length([n], 100) for n in range(50)} == {7, 9}
    path.write_text('{"120": 3, "250": 1}')
    assert {read_answer_tokens(path)([n], 200) for n in range(50)} == {120, 200}
    for text in ('{"a": 1}', "[1]", "nonsense", '[{"prompt": "a", "output_tokens": 0}]', "{}"):
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_answer_tokens(path)
