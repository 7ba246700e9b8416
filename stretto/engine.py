"""`Engine`: what a user registers: an executable, its configuration, resources and number of instances.

Source: Teola, Listing 1. Differs: batching policy, limits and profile are part of the registration, so
that one value says all a scheduler, a driver or a simulator needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stretto.costs.profile import Profile
from stretto.errors import ConfigError

Kind = Literal["batch", "llm", "llm_server"]
RunsIn = Literal["loop", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A capability and how it is run.

    Attributes:
        name: what primitives call it.
        executable: called with `config` once per instance, where the instance will run; returns what
            `kind` says: a `BatchEngine`, a `SteppedLLM` or an `AsyncLLM` (`engines/base.py`).
        config: passed to `executable`; must pickle when `runs_in` is "process".
        resources: what one instance takes, by kind ("cpu", "gpu"), checked against the runtime's.
        instances: how many replicas.
        runs_in: "thread" (the default), "loop" for work of microseconds that may run on the event
            loop, "process" for isolation. An "llm_server" always runs on the event loop.
        policy: a name in `sched.orders.ORDERS`.
        age_limit_s: work that has waited longer goes first, whatever the policy prefers.
        fill_timeout_s: how long the policy `throughput` waits for a batch to fill.
        max_batch: units of one batch; for an LLM, tokens in flight per instance. None: the profile's
            maximum efficient batch, or 8192 tokens.
        max_running: sequences in flight per LLM instance.
        timeout_s: no answer for that long, and the instance is given up and restarted.
        max_attempts: how often work is tried when instances are lost.
        keeps_state: it remembers things for a query and wants to know when the query has ended. What it
            remembers must be shared by its instances and outlive any of them (it may hang on `config`),
            or be no more than a hint, as KV is.
        profile: its latency, for passes and load balancing.
    """

    name: str
    executable: Callable[[Any], Any]
    config: object = None
    kind: Kind = "batch"
    resources: Mapping[str, float] = field(default_factory=dict)
    instances: int = 1
    runs_in: RunsIn = "thread"
    policy: str = "least_work"
    age_limit_s: float = 10.0
    fill_timeout_s: float = 0.005
    max_batch: int | None = None
    max_running: int = 16
    timeout_s: float | None = 300.0
    max_attempts: int = 3
    keeps_state: bool = False
    profile: Profile = Profile()

    def __post_init__(self) -> None:
        for name in ("instances", "max_running", "max_attempts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine {self.name!r}: {name} is at least 1")
        if self.max_batch is not None and self.max_batch < 1:
            raise ConfigError(f"engine {self.name!r}: max_batch is at least 1")
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"engine {self.name!r}: timeout_s is positive and finite, or None")

    @property
    def batch_units(self) -> int:
        """Units that may be in one batch, or tokens in flight on one LLM instance."""
        if self.max_batch is not None:
            return self.max_batch
        return 8192 if self.is_llm else self.profile.max_efficient_batch

    @property
    def is_llm(self) -> bool:
        """Whether it takes requests one by one (`Admit`) instead of batches."""
        return self.kind != "batch"
