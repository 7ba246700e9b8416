"""The start of an instance in the place that its replica names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.deployment import Engine, Replica
from stretto.errors import ConfigError
from stretto.runtime.instances.instance import Instance, Post
from stretto.runtime.instances.loop import LoopInstance
from stretto.runtime.instances.process import ProcessInstance
from stretto.runtime.instances.server import ServerInstance
from stretto.runtime.instances.thread import ThreadInstance
from stretto.runtime.worker import Job

if TYPE_CHECKING:
    from stretto.runtime.instances.ray import RayCluster


def start_instance(
    engine: Engine, instance: int, replica: Replica, post: Post, cluster: RayCluster | None = None
) -> Instance:
    """Start an instance; it posts `InstanceReady` once it can take work, or `InstanceLost`.

    Raises:
        ConfigError: the replica cannot run in the place that it names.
    """
    job = Job(engine.name, instance, engine.is_llm, replica.executable, replica.instance_config())
    match replica.runs_in:
        case "loop":
            return ServerInstance(job, post) if engine.is_llm else LoopInstance(job, post)
        case "thread":
            return ThreadInstance(job, post)
        case "process":
            return ProcessInstance(job, post, replica.devices, replica.threads)
        case "ray":
            if cluster is None:
                raise ConfigError(
                    f"engine {engine.name!r}: runs_in 'ray' needs a cluster; give the runtime a ray_address"
                )
            return _start_in_ray(job, replica, post, cluster)


def _start_in_ray(job: Job, replica: Replica, post: Post, cluster: RayCluster) -> Instance:
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
