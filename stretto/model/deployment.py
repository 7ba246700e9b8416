"""The declarations of a user: engines (what the steps of an app run on) and their replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from stretto.model.errors import ConfigError
from stretto.model.profile import Profile
from stretto.model.replica import SHARED, Engine, Replica


@dataclass(frozen=True, slots=True)
class Deployment:
    """The declaration of an engine with its replicas, checked to fit each other.

    It may have no replica at first and get some later.
    """

    engine: Engine
    replicas: tuple[Replica, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Engine):
            raise ConfigError(f"a deployment has an Engine, got {self.engine!r}")
        if not isinstance(self.replicas, tuple) or not all(isinstance(r, Replica) for r in self.replicas):
            raise ConfigError(f"engine {self.engine.name!r}: replicas must be a tuple, got {self.replicas!r}")
        for index, replica in enumerate(self.replicas):
            check_replica(self.engine, replica, f"engine {self.engine.name!r}, replica {index}")

    @property
    def name(self) -> str:
        """Name of the engine that is deployed."""
        return self.engine.name

    @property
    def profile(self) -> Profile:
        """Cost profile (predicted seconds of work) for planning: that of the first replica."""
        return self.replicas[0].profile if self.replicas else Profile()

    def changed(self, *, instances: int | None = None, **settings: Any) -> Deployment:
        """Return a copy of the deployment in which settings of its engine, or of all its replicas, are
        changed by name.

        Args:
            instances: number of replicas, all like the first.

        Raises:
            ConfigError: a setting is unknown, or does not fit.
        """
        for_engine, for_replicas = _split(self.name, settings)
        replicas = self.replicas if instances is None else self.replicas[:1] * instances
        changed = tuple(replace(replica, **for_replicas) for replica in replicas)
        return Deployment(replace(self.engine, **for_engine), changed)


def deploy(
    name: str, executable: Callable[[Any], Any], config: object = None, *, instances: int = 1, **settings: Any
) -> Deployment:
    """Declare an engine with equal replicas, and return the declaration.

    Args:
        instances: number of replicas, which is the number of instances at the beginning.
        settings: attributes of `Engine` and of `Replica`, by name.

    Raises:
        ConfigError: a setting is unknown, or does not fit.
    """
    if type(instances) is not int or instances < 1:
        raise ConfigError(
            f"engine {name!r}: instances is {instances!r}; it must be a whole number of at least 1"
        )
    for_engine, for_replicas = _split(name, settings)
    replica = Replica(executable, config, **for_replicas)
    return Deployment(Engine(name, **for_engine), (replica,) * instances)


def _split(name: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of an engine, and those of its replicas."""
    of_engine, of_replica = ({field.name for field in fields(kind)} for kind in (Engine, Replica))
    if unknown := sorted(settings.keys() - of_engine - of_replica):
        known = ", ".join(sorted(of_engine | of_replica))
        raise ConfigError(f"engine {name!r} has no setting {unknown[0]!r}; settings: {known}")
    return (
        {key: value for key, value in settings.items() if key in of_engine},
        {key: value for key, value in settings.items() if key in of_replica},
    )


def check_replica(engine: Engine, replica: Replica, where: str) -> None:
    """Check that `replica`, a way to run an engine, fits the settings of `engine`, for example that it does
    not ask for devices where it can have none.

    Raises:
        ConfigError: the replica cannot serve the engine. The message begins with `where`.
    """
    is_server = engine.is_llm and replica.runs_in == "loop"
    if replica.runs_in in SHARED and not is_server:
        for name, remedy in (("devices", "a device in its config"), ("threads", "num_threads in its config")):
            if getattr(replica, name):
                raise ConfigError(
                    f"{where}: {name} is {getattr(replica, name)!r}, but runs_in {replica.runs_in!r} shares "
                    f"them with the whole process; use runs_in 'process', or {remedy}"
                )
    if replica.port is not None and not (engine.is_llm and replica.runs_in in ("loop", "ray")):
        raise ConfigError(
            f"{where}: port is {replica.port}; only an LLM server has one (runs_in 'loop' or 'ray')"
        )
    if not engine.is_llm:
        for name in ("num_slots", "kv_tokens"):
            if getattr(replica, name) is not None:
                raise ConfigError(
                    f"{where}: {name} is {getattr(replica, name)}, but the contract is 'batch'; "
                    "only an LLM has sequences and KV"
                )
        if replica.tp > 1:
            raise ConfigError(f"{where}: tp is {replica.tp}, but the contract is 'batch'; it must be 1")
    if engine.is_llm and replica.tp > 1 and replica.runs_in not in ("loop", "ray"):
        raise ConfigError(
            f"{where}: tp is {replica.tp}, but a model in our own processes runs on one device; "
            "use a server (runs_in 'loop' or 'ray'), or tp 1"
        )
