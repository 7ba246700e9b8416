"""What a user declares is checked as a whole, and every refusal says what would be right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from support.replicas import nothing, replica

from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica

LLM = Engine("llm", contract="llm")
BATCH = Engine("embedding")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"contract": "chat"}, "contract is 'chat'; it must be one of 'batch' or 'llm'"),
        ({"max_running": 0}, "max_running is 0; it must be a whole number of at least 1"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"timeout_s": math.inf}, "timeout_s is inf; it must be positive and finite, or None"),
        ({"no_replica_s": -1}, "no_replica_s is -1; it must not be negative"),
        ({"recover_s": math.nan}, "recover_s is nan"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine(**{"name": "e", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"executable": "vllm"}, "not callable"),
        ({"runs_in": "cloud"}, "'cloud'; it must be one of 'loop', 'thread', 'process' or 'ray'"),
        ({"host": "b"}, "only runs_in 'ray' reaches another machine"),
        ({"tp": 0}, "tp is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"num_slots": 0}, "num_slots is 0"),
        ({"kv_tokens": 0}, "kv_tokens is 0"),
        ({"port": 70000}, "port is 70000; it must be from 1 to 65535"),
        ({"start_timeout_s": 0}, "start_timeout_s is 0"),
        ({"loading_s": -1.0}, "loading_s is -1.0; it must be finite and not negative, or None"),
        ({"devices": ("gpu0",)}, "device 'gpu0' is unknown; a device is 'cuda:N' or 'cpu:N'"),
        ({"devices": ("cpu:1", "cpu:1")}, "name a device twice"),
        ({"devices": ("cpu:1", "cuda:0")}, "different kinds"),
        ({"devices": ("cuda:0", "cuda:1")}, "tp is 1 and devices are .*; their number must be tp"),
        ({"devices": ("cuda:0",), "tp": 2, "runs_in": "loop"}, "their number must be tp"),
    ],
)
def test_a_replica_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replica(**fields)


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [
        (BATCH, {"devices": ("cpu:0",)}, "replica 0: devices .* runs_in 'thread' shares them .* 'process'"),
        (LLM, {"threads": 2}, "threads is 2, but runs_in 'thread' shares them .* num_threads in its config"),
        (BATCH, {"devices": ("cpu:0",), "runs_in": "loop"}, "shares them with the whole process"),
        (BATCH, {"port": 80}, "only an LLM server has one"),
        (LLM, {"port": 80, "runs_in": "process"}, "only an LLM server has one"),
        (BATCH, {"num_slots": 2}, "only an LLM has sequences and KV"),
        (BATCH, {"kv_tokens": 2}, "only an LLM has sequences and KV"),
        (BATCH, {"tp": 2}, "it must be 1"),
        (LLM, {"tp": 2, "runs_in": "process"}, "use a server"),
    ],
)
def test_a_replica_must_fit_its_engine(engine: Engine, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Deployment(engine, (replica(**fields),))


def test_unlike_replicas_serve_one_engine() -> None:
    replicas = (
        replica(runs_in="loop", devices=("cuda:0", "cuda:1"), tp=2, port=8000, threads=4),
        replica(runs_in="process", devices=("cuda:2",), num_slots=8, kv_tokens=1000),
        replica(runs_in="process", devices=("cpu:0", "cpu:1")),
        replica(runs_in="ray", host="b", devices=("cuda:0",)),
    )
    assert Deployment(LLM, replicas).replicas == replicas
    assert Deployment(LLM).replicas == ()


def test_an_executable_may_say_where_it_runs() -> None:
    class OnlyOnTheLoop:
        RUNS_IN = ("loop", "ray")

        def __init__(self, config: object) -> None: ...

    assert Replica(OnlyOnTheLoop, runs_in="loop").label == "OnlyOnTheLoop"
    with pytest.raises(ConfigError, match=r"OnlyOnTheLoop: runs_in is 'thread'; .* runs in 'loop' or 'ray'"):
        Replica(OnlyOnTheLoop)


def test_a_configuration_may_ask_for_what_the_replica_says() -> None:
    @dataclass(frozen=True)
    class Placed:
        port: int | None = None

        def at(self, replica: Replica) -> Placed:
            return Placed(replica.port)

    assert Replica(nothing, Placed(), runs_in="loop", port=80).instance_config() == Placed(80)
    assert Replica(nothing, "plain").instance_config() == "plain"


@dataclass(frozen=True)
class Placed:
    """A configuration with a device and threads of its own."""

    device: str = "cpu"
    num_threads: int | None = 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"runs_in": "process", "devices": ("cuda:3",)}, Placed("cuda", 1)),
        ({"runs_in": "process", "devices": ("cpu:0", "cpu:1")}, Placed("cpu", 2)),
        ({"runs_in": "ray", "devices": ("cuda:0",), "threads": 4}, Placed("cuda", 4)),
        ({"runs_in": "process"}, Placed()),
        ({"runs_in": "thread"}, Placed()),
    ],
)
def test_an_instance_runs_on_the_devices_of_its_replica(fields: dict[str, Any], expected: Placed) -> None:
    """In Python as in a file. A process sees its own accelerator alone, whatever its number is outside."""
    assert replica(config=Placed(), **fields).instance_config() == expected
    for other in (None, ("cpu", 1), Replica):
        assert replica(config=other, **fields).instance_config() is other
