"""The replicas that a run starts: what a planned replica is in this process, or as an emulated server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from stretto.deployment import Replica
from stretto.emulate.fleet import check_fleet
from stretto.emulate.real_time import check_real_time
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.catalogue import llm_replica
from stretto.errors import ConfigError
from stretto.planner.application import Application
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.problem import Problem

MakeReplica: TypeAlias = Callable[[PlannedReplica], Replica]

_GRACE_S = 2.0


def local_replicas(app: Application) -> MakeReplica:
    """Return the function that makes replicas of models in this process.

    The model of each node is "mini" (the one that ships), "stand-in" or the directory of a checkpoint.

    Raises:
        ConfigError: a model is none of these.
    """
    replicas: Mapping[str, Replica] = {node.name: _local(node.name, node.model) for node in app.nodes}
    return lambda planned: replicas[planned.node]


def _local(node: str, model: str) -> Replica:
    try:
        return llm_replica(model)
    except ConfigError as error:
        message = error.message.replace("--llm ", "model ")
        raise ConfigError(f"node {node!r}: {message}; 'mini' and 'stand-in' are there") from error


def local_plan(app: Application, num_devices: int) -> Plan:
    """Return the plan for replicas in this process: one for each node, `num_devices` of them at once."""
    replicas = (PlannedReplica(node.name, (at % num_devices,)) for at, node in enumerate(app.nodes))
    return Plan("one_each", (Stage(tuple(replicas)),))


def emulated_replicas(problem: Problem, speed: float) -> MakeReplica:
    """Return the function that makes replicas which are emulated servers, each a process of its own.

    Args:
        speed: emulated seconds per second of real time.

    Raises:
        ConfigError: packages are missing, or a model cannot be emulated, or not at this speed.
    """
    for name in problem.names:
        _check_emulated(problem, name, speed)
    try:
        from stretto.engines.server_process.config import ServerProcessConfig
        from stretto.engines.server_process.engine import ServerProcess
    except ImportError as error:
        raise ConfigError("emulated servers need packages: pip install 'stretto[emulate,local]'") from error

    def make(planned: PlannedReplica) -> Replica:
        cost = problem.costs[planned.node][planned.tp]
        scheduler = cost.scheduler
        config = ServerProcessConfig(
            "emulated",
            problem.workload.models[planned.node].name,
            arguments=(
                *("--device", problem.machine.preset, "--speed", f"{speed:g}"),
                *("--max-num-batched-tokens", str(scheduler.max_batch_tokens)),
            ),
            tokenizer="none",
            max_connections=scheduler.max_running,
            warms_prefixes=False,
            grace_s=_GRACE_S,
        )
        return Replica(
            ServerProcess,
            config,
            runs_in="loop",
            tp=planned.tp,
            num_slots=scheduler.max_running,
            kv_tokens=scheduler.num_blocks * scheduler.block_tokens,
            loading_s=cost.loading_s / speed,
        )

    return make


def _check_emulated(problem: Problem, node: str, speed: float) -> None:
    """Check that a server of a node's model can be emulated on a core, with each number of devices."""
    for tp, cost in problem.costs[node].items():
        server = WantedServer(
            devices=tuple(range(tp)),
            model=problem.workload.models[node].name,
            max_sequences=cost.scheduler.max_running,
            max_batch_tokens=cost.scheduler.max_batch_tokens,
        )
        fleet = WantedFleet((problem.machine.preset,) * tp, (server,), speed=speed)
        try:
            check_real_time(check_fleet(fleet), num_cores=1)
        except ConfigError as error:
            raise ConfigError(f"node {node!r}, tp {tp}: {error.message}") from error
