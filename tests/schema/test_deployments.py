"""An engines file becomes deployments; what is wrong is refused with file and line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from stretto.cli.engines_file import deployed
from stretto.cluster.machine import Machine
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.executables import EXECUTABLES, PROFILES
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.replica import Engine, RunsIn
from stretto.schema.deployments import read_deployments, read_machine
from stretto.schema.fields import settable
from stretto.schema.reading import read_tables
from stretto.schema.tables import Tables

FILE = """\
[machine]
devices = ["cuda:0", "cuda:1", "cpu:0"]
memory = { "cuda:0" = "80 GiB", "cuda:1" = "24GiB", cpu = 1000000 }

[[engine]]
name = "llm"
contract = "llm"
max_running = 32
placement = "round_robin"

[[replica]]
engine = "llm"
executable = "server:vllm"
devices = ["cuda:0"]
port = 8001
config = { model = "some/model", memory_share = 0.5, arguments = ["--enforce-eager"] }

[[replica]]
engine = "llm"
executable = "openai"
num_slots = 8
profile = { per_unit_s = 1 }
[replica.config]
url = "http://localhost:8000"
timeout_s = 30
[replica.config.kv_events]
endpoint = "tcp://localhost:5557"

[[engine]]
name = "embedding"

[[replica]]
engine = "embedding"
executable = "embedding"
runs_in = "process"
devices = ["cpu:0"]

[service]
anything = 1
"""


def refused(text: str) -> str:
    try:
        tables = Tables(text, "e.toml")
        read_deployments(tables)
        read_machine(tables)
    except ConfigError as error:
        return error.message
    raise AssertionError("it was accepted")


def test_a_file_is_what_it_says() -> None:
    tables = Tables(FILE, "e.toml")
    llm, embedding = read_deployments(tables)
    assert llm.engine == Engine("llm", "llm", max_running=32, placement="round_robin")
    server, remote = llm.replicas
    assert (server.executable, server.runs_in, server.port) == (ServerProcess, "loop", 8001)
    assert server.devices == ("cuda:0",)
    assert server.profile == PROFILES["llm-server"]
    assert server.config == ServerProcessConfig(
        "vllm", "some/model", memory_share=0.5, arguments=("--enforce-eager",)
    )
    assert (remote.executable, remote.num_slots) == (OpenAIServer, 8)
    assert remote.profile == Profile(per_unit_s=1.0)
    assert remote.config == OpenAIServerConfig(
        "http://localhost:8000", timeout_s=30.0, kv_events=KVEventsConfig("tcp://localhost:5557")
    )
    (embedder,) = embedding.replicas
    assert (embedder.executable, embedder.config, embedder.runs_in) == (
        Embedding,
        EmbeddingConfig(),
        "process",
    )
    assert read_machine(tables) == Machine(
        ("cuda:0", "cuda:1", "cpu:0"), {"cuda:0": 80 * 2**30, "cuda:1": 24 * 2**30, "cpu": 1_000_000}
    )


def test_an_engine_without_replicas_may_get_some_later() -> None:
    assert read_deployments(Tables("[[engine]]\nname = 'a'\n", "e.toml")) == (Deployment(Engine("a")),)
    assert read_machine(Tables("", "e.toml")) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "max_running = 32",
            "max_runing = 32",
            "8: unknown key 'max_runing'; did you mean max_running?; known keys: name, contract",
        ),
        ("max_running = 32", "max_running = 0", "5: engine 'llm': max_running is 0; it must be a whole"),
        ("max_running = 32", "max_running = true", "8: max_running must be a whole number, got True"),
        ('"llm"\ncontract', "1\ncontract", "6: name must be a text, got 1"),
        ('contract = "llm"', 'contract = "chat"', "7: contract must be one of batch, llm, got 'chat'"),
        ("round_robin", "random", "9: there is no placement 'random'; there are least_seconds, least_l"),
        ('name = "embedding"', 'name = "llm"', "30: there are two engines 'llm'"),
        ('"llm"\nexecutable', '"l"\nexecutable', "12: there is no engine 'l'; there are llm, embedding"),
        ('"server:vllm"', '"vllm"', "13: there is no executable 'vllm'; there are transformer, stand-in,"),
        ('executable = "openai"', "tp = 1", "18: the key 'executable' is missing; it must be a text"),
        ('"openai"', '"web"', "20: 'web' serves the contract 'batch', but engine 'llm' has 'llm'"),
        ("port = 8001", 'port = "8001"', "15: port must be a whole number, got '8001'"),
        (
            "port = 8001",
            "prot = 8001",
            "15: unknown key 'prot'; did you mean port?; known keys: engine, executable, config, runs_in, h",
        ),
        ("port = 8001", 'runs_in = "thread"', "11: replica ServerProcess: runs_in is 'thread'; this"),
        (
            'devices = ["cuda:0"]',
            'devices = "cuda:0"',
            "14: devices must be a list, each a text, got 'cuda:0'",
        ),
        ('devices = ["cuda:0"]', "devices = [0]", "14: devices[0] must be a text, got 0"),
        (
            "memory_share",
            "memory",
            "16: unknown key 'memory'; did you mean memory_share?; known keys: model, command",
        ),
        ('model = "some/model", ', "", "16: the key 'model' is missing; it must be a text"),
        (
            "config = { model",
            "program = { model",
            "16: unknown key 'program'; known keys: engine, executable, config",
        ),
        ('model = "some/model"', 'program = "vllm"', "16: unknown key 'program'; known keys: model"),
        ("timeout_s = 30", "timeout_s = [30]", "25: timeout_s must be a number, got [30]"),
        (
            'endpoint = "tcp',
            'end = "tcp',
            "27: kv_events: unknown key 'end'; did you mean endpoint?; known keys: endpoint",
        ),
        ("per_unit_s = 1 }", "per_unit_s = -1 }", "22: profile: a profile's times must be finite"),
        ('"process"', '"thread"', "32: devices is ('cpu:0',), but runs_in 'thread' shares"),
        ('"80 GiB"', '"80 gigs"', "3: memory is '80 gigs'; it must be a number of bytes, or"),
        ("cpu = 1000000", '"cuda:7" = 1', "1: machine: memory of 'cuda:7'"),
        ("[service]", "[sevice]", "38: unknown table or key 'sevice'; there are [[engine]], [[replica]], "),
        ("[machine]", "[[machine]]", "1: machine must be written [machine], once"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert old in FILE
    assert refused(FILE.replace(old, new, 1)).startswith(f"e.toml:{message}")


def test_what_is_no_toml_is_refused_with_the_line_of_the_parser() -> None:
    assert refused("x = " + "[" * 5000 + "]" * 5000).startswith("e.toml: no TOML: ")
    assert re.match(r"e.toml: no TOML: .*line 39", refused(FILE.replace("anything = 1", "anything =")))


def test_an_array_is_written_as_one() -> None:
    assert refused("[engine]\nname = 'a'\n") == "e.toml:1: engine must be written [[engine]], once for each"
    assert refused("\nengine = 1\n") == "e.toml:2: engine must be written [[engine]], once for each"


@pytest.mark.parametrize("name", EXECUTABLES)
def test_every_executable_can_be_loaded_and_configured(name: str) -> None:
    executable = EXECUTABLES[name]
    run, config = executable.load()
    assert callable(run)
    assert set(executable.fixed) <= set(settable(config))
    assert executable.runs_in in executable.places
    usual = get_args(RunsIn) if executable.contract == "batch" else ()
    assert ("ray" in executable.places) == ("ray" in getattr(run, "RUNS_IN", usual))


def test_naming_executables_imports_none_of_their_packages() -> None:
    script = "import sys, stretto.schema.deployments; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"httpx", "torch", "psycopg"} & set(loaded.split())


def test_a_command_reads_its_file(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(FILE)
    machine, deployments = deployed(read_tables(path))
    assert machine.devices == ("cuda:0", "cuda:1", "cpu:0")
    assert [deployment.engine.name for deployment in deployments] == ["llm", "embedding"]
    path.write_text(
        FILE.replace("cuda:0", "cuda:7")
        .replace('devices = ["cuda:7", ', 'devices = ["cuda:0", ')
        .replace('"cuda:7" = "80 GiB", ', "")
    )
    with pytest.raises(ConfigError, match="engine 'llm', replica 0: device 'cuda:7' is not of this machine"):
        deployed(read_tables(path))
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read"):
        read_tables(tmp_path / "missing.toml")


def test_without_a_machine_this_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text("[[engine]]\nname = 'a'\n")
    machine, _ = deployed(read_tables(path))
    assert any(device.startswith("cpu:") for device in machine.devices)
