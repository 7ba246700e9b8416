"""Starting an instance where its replica says that it runs."""

from __future__ import annotations

from stretto.deployment import Engine, Replica
from stretto.errors import ConfigError
from stretto.runtime.instances.instance import Instance, Post
from stretto.runtime.instances.loop import LoopInstance
from stretto.runtime.instances.process import ProcessInstance
from stretto.runtime.instances.server import ServerInstance
from stretto.runtime.instances.thread import ThreadInstance
from stretto.runtime.worker import Job


def start_instance(engine: Engine, instance: int, replica: Replica, post: Post) -> Instance:
    """Start an instance; it posts `InstanceReady` once it can take work, or `InstanceLost`.

    Raises:
        ConfigError: this replica cannot run so.
    """
    job = Job(engine.name, instance, engine.is_llm, replica.executable, replica.instance_config())
    match replica.runs_in:
        case "loop":
            return ServerInstance(job, post) if engine.is_llm else LoopInstance(job, post)
        case "thread":
            return ThreadInstance(job, post)
        case "process":
            return ProcessInstance(job, post, replica.devices, replica.threads)
        case _:
            raise ConfigError(
                f"engine {engine.name!r}: runs_in {replica.runs_in!r} needs a runtime that can reach it"
            )
