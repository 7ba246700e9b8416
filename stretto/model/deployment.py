"""The declarations of a user: engines (what the steps of an app run on) and their replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from stretto.model.devices import confined, parse_device
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile

Contract = Literal["batch", "llm"]
RunsIn = Literal["loop", "thread", "process", "ray"]

_SHARED = ("loop", "thread")
"""Places inside our own process, whose devices and threads belong to everything that runs there."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine: a capability that steps of an app need, such as "embedding" or "llm", and how its queue is
    scheduled.

    Attributes:
        name: name by which primitives refer to it.
        contract: "batch" for a `BatchEngine`, "llm" for a `SteppedLLM` or an `AsyncLLM`.
        policy: name of the order in which waiting requests are taken.
        placement: name of the rule that chooses the instance of a request, a key of `PLACEMENTS`.
        age_limit_s: seconds of waiting after which the oldest request has a share of what is served, whatever
            the policy prefers.
        fill_timeout_s: seconds that the policy `throughput` waits for a batch to fill.
        max_batch: units of work of one batch; for an LLM, tokens in flight per instance. None stands for the
            replica's maximum efficient batch; for an LLM, for the replica's `kv_tokens`, or 8192.
        max_running: number of sequences in flight per LLM instance.
        timeout_s: seconds without an answer after which an instance is given up and restarted.
        max_attempts: number of times that a request is tried when instances are lost.
        keeps_state: whether instances keep data for a query and must be told when it has
            ended.
        no_replica_s: seconds that a request waits while the engine has no replica before it fails; infinite
            in a plan.
        holds_programs: whether an LLM engine's programs are held while there is no room in KV memory for what
            they keep there from one request to the next.
        max_hold_s: seconds that a request may be held so before it fails with `NoRoom`.
        recover_s: seconds that a request without a deadline waits before it fails, while the only instances
            are starting or suspected to be down. It waits longer if one of these takes longer to load: twice
            the time that is known (`Replica.loading_s`, or that of the last start).
    """

    name: str
    contract: Contract = "batch"
    policy: str = "programs_first"
    placement: str = "least_seconds"
    age_limit_s: float = 10.0
    fill_timeout_s: float = 0.005
    max_batch: int | None = None
    max_running: int = 16
    timeout_s: float | None = 300.0
    max_attempts: int = 3
    keeps_state: bool = False
    no_replica_s: float = 0.0
    recover_s: float = 60.0
    holds_programs: bool = True
    max_hold_s: float = math.inf

    def __post_init__(self) -> None:
        where = f"engine {self.name!r}"
        if not self.name or not isinstance(self.name, str):
            raise ConfigError(f"an engine needs a name, a text; got {self.name!r}")
        for name in ("contract", "policy", "placement"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{where}: {name} is {getattr(self, name)!r}; it must be a name")
        if self.contract not in get_args(Contract):
            raise ConfigError(f"{where}: contract is {self.contract!r}; it must be one of {_names(Contract)}")
        for name in ("max_running", "max_attempts"):
            _check_count(where, name, getattr(self, name))
        if self.max_batch is not None:
            _check_count(where, "max_batch", self.max_batch)
        for name in ("timeout_s", "age_limit_s", "fill_timeout_s", "no_replica_s", "recover_s", "max_hold_s"):
            if not (name == "timeout_s" and self.timeout_s is None):
                _check_number(where, name, getattr(self, name))
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ConfigError(
                f"{where}: timeout_s is {self.timeout_s!r}; it must be positive and finite, or None"
            )
        for name in ("age_limit_s", "fill_timeout_s", "no_replica_s", "recover_s", "max_hold_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{where}: {name} is {getattr(self, name)!r}; it must not be negative")

    @property
    def is_llm(self) -> bool:
        """Whether the engine is an LLM, which takes requests one by one instead of in batches."""
        return self.contract == "llm"


@dataclass(frozen=True, slots=True)
class Replica:
    """One way to run an engine (one copy of it): the code, where it runs, and on which devices.

    The replicas of one engine may differ in everything.

    Attributes:
        executable: called with the instance's configuration where the instance will run; returns a
            `BatchEngine`, or for an LLM a `SteppedLLM` ("thread", "process") or an `AsyncLLM` ("loop").
        config: configuration of each instance; must pickle where `runs_in` is "process" or "ray". An
            instance is given what `instance_config` makes of it.
        runs_in: "thread"; "loop", for work of microseconds and for servers; "process", for isolation
            and devices of its own; "ray", for a worker of a Ray cluster.
        host: address of the node that a Ray worker is to run on; empty for any.
        devices: names of the devices it runs on, such as "cuda:0" for an accelerator or "cpu:3" for a core.
            In a Ray worker only their number counts, for Ray chooses which ones.
        threads: number of threads that it computes with; None leaves the library's choice.
        tp: number of devices that hold one copy of the model together (tensor parallelism).
        port: port of the server that the executable starts; None takes a free one.
        profile: cost profile, which predicts the seconds of its work.
        num_slots: number of sequences that an LLM instance runs at once; None leaves the engine's limit.
        kv_tokens: number of tokens whose KV an LLM instance can hold; None if unknown.
        start_timeout_s: seconds that starting may take, loading included.
        loading_s: predicted seconds of a start; None if unknown. What a start has taken is measured.
    """

    executable: Callable[[Any], Any]
    config: object = None
    runs_in: RunsIn = "thread"
    host: str = ""
    devices: tuple[str, ...] = ()
    threads: int | None = None
    tp: int = 1
    port: int | None = None
    profile: Profile = field(default_factory=Profile)
    num_slots: int | None = None
    kv_tokens: int | None = None
    start_timeout_s: float = 600.0
    loading_s: float | None = None

    def __post_init__(self) -> None:
        where = f"replica {self.label}"
        if not callable(self.executable):
            raise ConfigError(f"{where}: the executable is not callable; it must be a class or a function")
        if not isinstance(self.devices, tuple) or not all(isinstance(device, str) for device in self.devices):
            raise ConfigError(f"{where}: devices is {self.devices!r}; it must be a tuple of names")
        if not isinstance(self.host, str):
            raise ConfigError(f"{where}: host is {self.host!r}; it must be an address")
        if not isinstance(self.profile, Profile):
            raise ConfigError(f"{where}: profile is {self.profile!r}; it must be a Profile")
        for name in ("port", "loading_s"):
            if getattr(self, name) is not None:
                _check_number(where, name, getattr(self, name))
        _check_number(where, "start_timeout_s", self.start_timeout_s)
        if self.runs_in not in get_args(RunsIn):
            raise ConfigError(f"{where}: runs_in is {self.runs_in!r}; it must be one of {_names(RunsIn)}")
        places: tuple[str, ...] = getattr(self.executable, "RUNS_IN", get_args(RunsIn))
        if self.runs_in not in places:
            raise ConfigError(f"{where}: runs_in is {self.runs_in!r}; this executable runs in {_or(places)}")
        if self.host and self.runs_in != "ray":
            raise ConfigError(f"{where}: host is {self.host!r}; only runs_in 'ray' reaches another machine")
        for name in ("tp", "threads", "num_slots", "kv_tokens"):
            if (value := getattr(self, name)) is not None:
                _check_count(where, name, value)
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigError(f"{where}: port is {self.port}; it must be from 1 to 65535, or None")
        if not 0 < self.start_timeout_s < math.inf:
            raise ConfigError(
                f"{where}: start_timeout_s is {self.start_timeout_s!r}; it must be positive and finite"
            )
        if self.loading_s is not None and not 0 <= self.loading_s < math.inf:
            raise ConfigError(
                f"{where}: loading_s is {self.loading_s!r}; it must be finite and not negative, or None"
            )
        self._check_devices(where)

    @property
    def label(self) -> str:
        """Name of the replica's executable (its code), for error messages."""
        return str(getattr(self.executable, "__name__", self.executable))

    @property
    def limits_offline(self) -> bool:
        """Whether an instance by itself lets offline requests give way to others in each step. Servers do
        not: their offline requests have to be cancelled.
        """
        return getattr(self.executable, "LIMITS_OFFLINE", True)

    @property
    def output_key(self) -> object:
        """Key that is equal for replicas of the same model and dtype, as far as their configurations tell.

        An answer that was begun at one of them may go on at another.

        It is the configuration's attribute `output_key`, or else the pair of executable and configuration.
        """
        key = getattr(self.config, "output_key", None)
        return (self.executable, self.config) if key is None else key

    def instance_config(self) -> object:
        """Return the configuration that an instance of this replica is constructed with.

        It is `config.at(replica)` where the configuration has such a method. Otherwise it is `config`; for an
        instance outside this process, the replica's devices and threads are set in it.
        """
        at = getattr(self.config, "at", None)
        if at is not None:
            return at(self)
        if self.runs_in in _SHARED:
            return self.config
        return confined(self.config, self.devices, self.threads)

    def _check_devices(self, where: str) -> None:
        kinds = {parse_device(device)[0] for device in self.devices}
        if len(set(self.devices)) < len(self.devices):
            raise ConfigError(f"{where}: devices {list(self.devices)} name a device twice")
        if len(kinds) > 1:
            raise ConfigError(
                f"{where}: devices {list(self.devices)} are of different kinds; take either cores or GPUs"
            )
        if kinds - {"cpu"} and len(self.devices) != self.tp:
            raise ConfigError(
                f"{where}: tp is {self.tp} and devices are {list(self.devices)}; "
                "their number must be tp, for each holds one part of the model"
            )


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
    _check_count(f"engine {name!r}", "instances", instances)
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
    if replica.runs_in in _SHARED and not is_server:
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


def _check_count(where: str, name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a whole number of at least 1")


def _check_number(where: str, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{where}: {name} is {value!r}; it must be a number")


def _names(choices: Any) -> str:
    return _or(get_args(choices))


def _or(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:-1])) + (" or " if len(names) > 1 else "") + repr(names[-1])
