"""Replicas are checked against the devices of the machine, and a refusal says what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.replicas import replica

from stretto.cluster.machine import Machine, check_deployments, check_free
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica

GIB = 2**30
MACHINE = Machine(
    ("cuda:0", "cuda:1", "cpu:0", "cpu:1"), {"cuda:0": 80 * GIB, "cuda:1": 24 * GIB, "cpu": 8 * GIB}
)
LLM = Engine("llm", contract="llm")


@dataclass(frozen=True)
class Sized:
    """A configuration that says how much memory it takes."""

    gib: int

    def device_bytes(self, kind: str, total: int) -> int:
        return self.gib * GIB


def on(*devices: str, config: Any = None, **fields: Any) -> Replica:
    return replica(devices=devices, config=config, runs_in="process", **fields)


def test_replicas_on_different_devices_fit() -> None:
    check_deployments(MACHINE, [Deployment(LLM, (on("cuda:0"), on("cuda:1"))), Deployment(Engine("e"), ())])


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"replica 0: device 'cuda:7' is not of this machine, which has cuda:0"
    ):
        check_deployments(MACHINE, [Deployment(LLM, (on("cuda:7"),))])
    check_deployments(MACHINE, [Deployment(LLM, (replica(runs_in="ray", host="b", devices=("cuda:7",)),))])


def test_two_replicas_that_take_a_device_whole_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"replica 1: device cuda:0 holds engine 'llm', replica 0 already, and .* different devices",
    ):
        check_deployments(MACHINE, [Deployment(LLM, (on("cuda:0"), on("cuda:0")))])
    with pytest.raises(ConfigError, match="replica 0 takes it whole"):
        check_deployments(MACHINE, [Deployment(LLM, (on("cuda:0"), on("cuda:0", config=Sized(1))))])


def test_replicas_share_a_device_if_their_memory_fits() -> None:
    check_deployments(
        MACHINE, [Deployment(LLM, (on("cuda:1", config=Sized(12)), on("cuda:1", config=Sized(12))))]
    )
    with pytest.raises(
        ConfigError, match=r"needs 13.00 GiB of cuda:1, with .* 25.00 GiB in all, of 24.00 GiB; .* one after"
    ):
        check_deployments(
            MACHINE, [Deployment(LLM, (on("cuda:1", config=Sized(12)), on("cuda:1", config=Sized(13))))]
        )


def test_one_replica_may_be_too_large_by_itself() -> None:
    with pytest.raises(ConfigError, match=r"needs 25.00 GiB of cuda:1, 25.00 GiB in all, of 24.00 GiB"):
        check_free(MACHINE, ("it", on("cuda:1", config=Sized(25))), [])


def test_without_known_memory_a_device_has_one_replica() -> None:
    machine = Machine(("cuda:0",))
    check_free(machine, ("it", on("cuda:0", config=Sized(1))), [])
    with pytest.raises(ConfigError, match="takes it whole"):
        check_free(machine, ("it", on("cuda:0", config=Sized(1))), [("other", on("cuda:0", config=Sized(1)))])


def test_cores_are_shared_and_main_memory_counts_once() -> None:
    both = on("cpu:0", "cpu:1", config=Sized(4))
    check_deployments(MACHINE, [Deployment(LLM, (both, on("cpu:0", config=Sized(4)), on("cpu:0")))])
    with pytest.raises(ConfigError, match=r"needs 5.00 GiB of cpu, with .* 9.00 GiB in all, of 8.00 GiB"):
        check_deployments(MACHINE, [Deployment(LLM, (both, on("cpu:0", config=Sized(5))))])


def test_a_drained_replica_makes_room_for_another() -> None:
    check_free(MACHINE, ("new", on("cuda:0")), [("old", on("cuda:1"))])


def test_two_servers_on_one_port_are_refused() -> None:
    servers = (replica(runs_in="loop", port=8000), replica(runs_in="loop", port=8000))
    with pytest.raises(ConfigError, match="replica 1: port 8000 is taken by engine 'llm', replica 0; choose"):
        check_deployments(MACHINE, [Deployment(LLM, servers)])
    elsewhere = replica(runs_in="ray", host="b", port=8000)
    check_deployments(MACHINE, [Deployment(LLM, (servers[0], elsewhere))])


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"cuda:9": 1}, "memory of 'cuda:9'; it can be stated of 'cpu' and of accelerators"),
        ({"cpu:0": 1}, "memory of 'cpu:0'"),
        ({"cuda:0": 0}, "is 0; it must be bytes, at least 1"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(memory: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Machine(("cuda:0", "cpu:0"), memory)
