"""One run of a load on a fleet in virtual time, with the schedulers of production."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.model.deployment import Deployment
from stretto.model.replica import Engine
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.sizing.job_load import JobLoad
from stretto.sizing.load import Load
from stretto.sizing.measured import Enough
from stretto.sizing.objectives import Objective
from stretto.sizing.servers import ENGINE, MAX_RUNNING, Server
from stretto.sizing.traffic import Traffic


@dataclass(frozen=True, slots=True)
class TriedFleet:
    """Servers behind one door.

    Attributes:
        servers: servers of each kind, with their number.
        placement: name of the policy that chooses the server of a request.
        holds_programs: whether sessions wait while there is no room for them in KV memory.
    """

    servers: tuple[tuple[Server, int], ...]
    placement: str = "stretto"
    holds_programs: bool = True

    @property
    def num_servers(self) -> int:
        """Number of all servers."""
        return sum(number for _, number in self.servers)

    @property
    def name(self) -> str:
        """The fleet in words, such as "4 × H100-80G"."""
        return " + ".join(f"{number} × {server.label}" for server, number in self.servers if number)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a run measured.

    Attributes:
        values_s: the statistic of each objective; infinite where nothing ended, or even began, in the
            measured time, and None where there is nothing to measure.
        is_cut: whether the run was ended early, as an objective was already missed.
        cached_share: share of the prompts' tokens that was found in caches.
        num_requests: requests that were simulated.
    """

    values_s: tuple[float | None, ...]
    is_cut: bool
    cached_share: float
    num_requests: int

    def missed(self, objectives: Sequence[Objective]) -> tuple[tuple[Objective, float], ...]:
        """Return the objectives that are missed, with what was measured instead, by how much as a share of
        the limit, the most first.
        """
        missed = [
            (one, value_s)
            for one, value_s in zip(objectives, self.values_s, strict=True)
            if value_s is not None and value_s > one.limit_s
        ]
        return tuple(sorted(missed, key=lambda pair: -pair[1] / pair[0].limit_s))

    def times_limit(self, objectives: Sequence[Objective]) -> float:
        """Return what was measured over the limit, of the objective that is nearest to being missed or is
        missed by most.
        """
        measured = zip(objectives, self.values_s, strict=True)
        return max((value_s / one.limit_s for one, value_s in measured if value_s is not None), default=0.0)


def run(
    fleet: TriedFleet,
    traffic: Traffic,
    load: Load,
    objectives: Sequence[Objective],
    seed: int,
    num_samples: int,
    *,
    cuts: bool = True,
) -> TrialOutcome:
    """Run a load on a fleet, and return what was measured of about `num_samples` requests.

    Args:
        cuts: whether the run ends as soon as it surely misses an objective.
    """
    window = load.window(traffic, objectives, num_samples)
    jobs = JobLoad(traffic, load, objectives, window, seed, cuts=cuts)
    output = filler_output(lengths_by_query(jobs.lengths))
    servers = [(server.replica(), server, number) for server, number in fleet.servers if number]
    reports_kv = fleet.num_servers > 1
    models = {
        replica: server.simulated(output, traffic.block_tokens, reports_kv=reports_kv)
        for replica, server, _ in servers
    }
    engine = Engine(
        ENGINE,
        "llm",
        placement=fleet.placement,
        max_running=MAX_RUNNING,
        keeps_state=True,
        timeout_s=None,
        holds_programs=fleet.holds_programs,
    )
    replicas = tuple(replica for replica, _, number in servers for _ in range(number))
    driver = VirtualDriver(
        [Deployment(engine, replicas)],
        models={ENGINE: models.__getitem__},
        keeps=False,
        observers=(jobs,),
        on_reply=jobs.on_reply,
    )
    jobs.attach(driver)
    with contextlib.suppress(Enough):
        driver.run()
    samples = jobs.samples
    values_s = tuple(_value_s(one, samples.seconds[one.time], traffic) for one in objectives)
    return TrialOutcome(
        values_s, samples.is_cut, samples.num_cached / max(1, samples.num_prompt), samples.num_sent
    )


def _value_s(objective: Objective, seconds: Sequence[float], traffic: Traffic) -> float | None:
    """Return the statistic of what was measured; infinite if nothing ended, None if there is nothing."""
    if seconds:
        return objective.value_s(seconds)
    return None if objective.time == "per_token" and traffic.most_output == 1 else math.inf
