"""One run of a load on a fleet in virtual time, with the schedulers of production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.model.deployment import Deployment, Engine, Replica
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.sizing.load import Enough, JobLoad, Load, Samples
from stretto.sizing.objectives import Objective
from stretto.sizing.servers import ENGINE, MAX_RUNNING, Server
from stretto.sizing.traffic import Traffic


@dataclass(frozen=True)
class Fleet:
    """Servers behind one scheduler."""

    servers: tuple[tuple[Server, int], ...]
    placement: str = "stretto"
    holds_programs: bool = True


def run(
    fleet: Fleet, traffic: Traffic, load: Load, objectives: Sequence[Objective], seed: int, num_samples: int
) -> Samples:
    """Run a load on a fleet, and return what was measured."""
    jobs = JobLoad(traffic, load, objectives, load.window(traffic, objectives, num_samples), seed)
    output = filler_output(lengths_by_query(jobs.lengths))
    by_replica = {server.replica(): server for server, _ in fleet.servers}
    replicas = tuple(server.replica() for server, number in fleet.servers for _ in range(number))
    engine = Engine(
        ENGINE,
        "llm",
        placement=fleet.placement,
        max_running=MAX_RUNNING,
        keeps_state=True,
        timeout_s=None,
        holds_programs=fleet.holds_programs,
    )
    driver = VirtualDriver(
        [Deployment(engine, replicas)],
        models={ENGINE: lambda replica: by_replica[replica].simulated(output)},
        keeps=False,
        observers=(jobs,),
        on_reply=jobs.on_reply,
    )
    jobs.attach(driver)
    try:
        driver.run()
    except Enough:
        pass
    return jobs.samples
