"""What a user declares: an engine (what steps of an app run on) and the ways to run it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stretto.model.devices import confined, parse_device
from stretto.model.errors import ConfigError
from stretto.model.number_checks import check_counts, check_not_negative, check_number, check_positive
from stretto.model.profile import Profile

Contract = Literal["batch", "llm"]


RunsIn = Literal["loop", "thread", "process", "ray"]


SHARED = ("loop", "thread")
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
        check_counts(where, self, ("max_running", "max_attempts"))
        check_counts(where, self, ("max_batch",), or_none=True)
        check_positive(where, self, ("timeout_s",), or_none=True)
        times = ("age_limit_s", "fill_timeout_s", "no_replica_s", "recover_s", "max_hold_s")
        check_not_negative(where, self, times)

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
        check_positive(where, self, ("start_timeout_s",))
        if self.runs_in not in get_args(RunsIn):
            raise ConfigError(f"{where}: runs_in is {self.runs_in!r}; it must be one of {_names(RunsIn)}")
        places: tuple[str, ...] = getattr(self.executable, "RUNS_IN", get_args(RunsIn))
        if self.runs_in not in places:
            known = _one_of(places)
            raise ConfigError(f"{where}: runs_in is {self.runs_in!r}; this executable runs in {known}")
        if self.host and self.runs_in != "ray":
            raise ConfigError(f"{where}: host is {self.host!r}; only runs_in 'ray' reaches another machine")
        check_counts(where, self, ("tp",))
        check_counts(where, self, ("threads", "num_slots", "kv_tokens", "port"), or_none=True)
        if self.port is not None and self.port > 65535:
            raise ConfigError(f"{where}: port is {self.port}; it must be from 1 to 65535, or None")
        if self.loading_s is not None:
            check_number(where, "loading_s", self.loading_s)
            if not 0 <= self.loading_s < math.inf:
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
        if self.runs_in in SHARED:
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


def _names(choices: Any) -> str:
    return _one_of(get_args(choices))


def _one_of(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:-1])) + (" or " if len(names) > 1 else "") + repr(names[-1])
