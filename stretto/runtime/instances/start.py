"""The start of an instance in the place that its replica names.

A place to run is one file in this folder, a function in `PLACES`, and its name among `RunsIn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica, RunsIn
from stretto.runtime.instances.instance import Instance, Post
from stretto.runtime.instances.loop import LoopInstance
from stretto.runtime.instances.process import ProcessInstance
from stretto.runtime.instances.server import ServerInstance
from stretto.runtime.instances.thread import ThreadInstance
from stretto.runtime.worker import InstanceJob

if TYPE_CHECKING:
    from stretto.runtime.instances.ray import RayCluster


Place: TypeAlias = "Callable[[InstanceJob, Replica, Post, RayCluster | None], Instance]"
"""Starts an instance somewhere. Raises ConfigError if the replica cannot run there."""


def start_instance(
    engine: Engine,
    instance: int,
    replica: Replica,
    post: Post,
    cluster: RayCluster | None = None,
    *,
    follows_prefixes: bool = False,
) -> Instance:
    """Start an instance of `replica` in the place that the replica names: on the event loop, in a thread, in
    a process, or in a Ray cluster.

    It posts `InstanceReady` once it can take work, or `InstanceLost`.

    Args:
        follows_prefixes: whether the engine's placement policy sends prompts where their prefixes are held.
            An instance whose config leaves that open then keeps the prefixes of ended queries.

    Raises:
        ConfigError: the replica cannot run in the place that it names.
    """
    config = replica.instance_config()
    if follows_prefixes and is_dataclass(config) and getattr(config, "keeps_released", False) is None:
        assert not isinstance(config, type)
        config = replace(config, keeps_released=True)
    job = InstanceJob(engine.name, instance, engine.is_llm, replica.executable, config)
    return PLACES[replica.runs_in](job, replica, post, cluster)


def _on_the_loop(job: InstanceJob, replica: Replica, post: Post, cluster: RayCluster | None) -> Instance:
    return ServerInstance(job, post) if job.is_llm else LoopInstance(job, post)


def _in_a_thread(job: InstanceJob, replica: Replica, post: Post, cluster: RayCluster | None) -> Instance:
    return ThreadInstance(job, post)


def _in_a_process(job: InstanceJob, replica: Replica, post: Post, cluster: RayCluster | None) -> Instance:
    return ProcessInstance(job, post, replica.devices, replica.threads)


def _in_ray(job: InstanceJob, replica: Replica, post: Post, cluster: RayCluster | None) -> Instance:
    if cluster is None:
        raise ConfigError(
            f"engine {job.engine!r}: runs_in 'ray' needs a cluster; give the runtime a ray_address"
        )
    from stretto.engines.server_process.config import ServerProcessConfig
    from stretto.engines.server_process.engine import ServerProcess
    from stretto.runtime.instances.ray_batch import RayBatchInstance
    from stretto.runtime.instances.ray_demand import demand_of
    from stretto.runtime.instances.ray_server import RayLaunched

    demand = demand_of(replica)
    if not job.is_llm:
        return RayBatchInstance(job, post, cluster, demand)

    def server(config: ServerProcessConfig) -> ServerProcess:
        return ServerProcess(config, RayLaunched(cluster, config, demand))

    return ServerInstance(replace(job, executable=server), post)


PLACES: dict[RunsIn, Place] = {
    "loop": _on_the_loop,
    "thread": _in_a_thread,
    "process": _in_a_process,
    "ray": _in_ray,
}
