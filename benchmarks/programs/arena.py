"""Runs of contestants at a share of the measured capacity. What has been computed is stored in cells.

A *lone* run gives the programs to an idle server one after the other: so it measures what each takes alone,
and the true work of each call. The *capacity* is the most work per second that the servers do by arrival
order while a fixed number of programs is there, for the best of several numbers. With few, sequences are idle
while agents wait for their tools; with all that come, the prefixes of agents that are there are evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import stretto
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs.contestants import ARRIVAL, ProgramContestant, contestant
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.orders import CallKey
from benchmarks.programs.simulated import JudgedServers, ProgramRun, ProgramTimes, Simulation
from benchmarks.programs.work import WARM_SHARE, MixedProgram
from stretto.model.tasks import Usage
from stretto.sched.observer import Observer

_FILLINGS = (1.5, 2, 3, 4)
_LEAST_FILLINGS = 8
_CAPACITY_SEED = "capacity"
_GAP_S = 1.0

SHARES: Mapping[str, Callable[[JudgedServers], JudgedServers]] = {
    "half the speed": lambda servers: replace(servers, slowness=2.0),
    "half the sequences": lambda servers: replace(servers, sequences=servers.sequences // 2),
}
"""What one of two tenants with equal shares may have: servers that take twice as long, or take half as many
requests at once. As fewer run faster, the second is more than half of the work."""


@dataclass(frozen=True, slots=True)
class Lone:
    """What programs take when nothing else runs: seconds by program, and seconds of work by call."""

    latency_s: Mapping[str, float]
    work_s: Mapping[CallKey, float]


@dataclass(frozen=True)
class ProgramArena:
    """A place to run contestants: servers, and a folder with what is done.

    Attributes:
        scale: number of programs of a run, in times of what their mix says.
    """

    servers: JudgedServers
    cells: Cells
    scale: float = 1.0

    def programs(self, mix: str, seed: str) -> tuple[MixedProgram, ...]:
        """Return the programs of a mix."""
        scale = self.scale * self.servers.instances * self.servers.sequences / 16
        if seed == _CAPACITY_SEED:
            scale = max(scale, _LEAST_FILLINGS * self._num_sequences / MIXES[mix].num_programs)
        return _drawn(mix, seed, scale)

    @property
    def _num_sequences(self) -> int:
        return self.servers.sequences * self.servers.instances

    def lone(self, mix: str, seed: str) -> Lone:
        """Return what the programs of a mix take alone."""

        def run() -> Mapping[str, Any]:
            ran = self._one_by_one(self.programs(mix, seed))
            work = [(*key, self.servers.work_s(usage)) for key, usage in ran.usages.items()]
            return {"latency_s": {name: one.latency_s for name, one in ran.times.items()}, "work": work}

        found = self.cells.get(self._key("lone", mix, 0.0, seed, "scene"), run)
        return Lone(found["latency_s"], {(query, step, item): s for query, step, item, s in found["work"]})

    def capacity(self, mix: str) -> float:
        """Return how many seconds of work of a mix the servers do in a second."""

        def run() -> Mapping[str, Any]:
            numbers = [round(times * self._num_sequences) for times in _FILLINGS]
            return {"work_per_s": max(self._saturated(mix, number) for number in numbers)}

        return float(
            self.cells.get(self._key("capacity", mix, 1.0, _CAPACITY_SEED, "scene"), run)["work_per_s"]
        )

    def duration_s(self, mix: str, load: float, seed: str) -> float:
        """Return the seconds in which the programs of a mix have to come for a load."""
        online = {
            query.name for one in self.programs(mix, seed) if not one.is_offline for query in one.queries
        }
        work_s = sum(s for (query, _, _), s in self.lone(mix, seed).work_s.items() if query in online)
        return work_s / (load * self.capacity(mix))

    def run(self, name: str, mix: str, load: float, seed: str) -> ProgramRun:
        """Return the run of a contestant."""
        return self._stored(name, name, mix, load, seed)

    def watched(self, name: str, mix: str, load: float, seed: str, observer: Observer) -> ProgramRun:
        """Return the run of a contestant, which is made anew and told to an observer."""
        return self._simulate(contestant(name), self.servers, mix, load, seed, None, [observer])

    def run_alone(self, tenant: str, share: str, mix: str, load: float, seed: str) -> ProgramRun:
        """Return the run of the programs of one tenant by arrival order, on a share of the servers of
        `SHARES`.
        """
        return self._stored(f"{tenant}, {share}", ARRIVAL, mix, load, seed, tenant, share)

    def _stored(
        self,
        what: str,
        name: str,
        mix: str,
        load: float,
        seed: str,
        tenant: str | None = None,
        share: str = "",
    ) -> ProgramRun:
        def run() -> Mapping[str, Any]:
            servers = SHARES[share](self.servers) if share else self.servers
            return packed(self._simulate(contestant(name), servers, mix, load, seed, tenant))

        return unpacked(self.cells.get(self._key(what, mix, load, seed, code_digest()), run))

    def _simulate(
        self,
        chosen: ProgramContestant,
        servers: JudgedServers,
        mix: str,
        load: float,
        seed: str,
        tenant: str | None,
        observers: Sequence[Observer] = (),
    ) -> ProgramRun:
        programs, lone = self.programs(mix, seed), self.lone(mix, seed)
        duration_s = self.duration_s(mix, load, seed)
        order = chosen.order(lone.work_s, programs, servers.output_s)
        larger = replace(servers, kv_factor=chosen.kv_factor, reports=chosen.reports)
        simulation = Simulation(
            larger, programs, chosen.policy, order, observers=observers, placement=chosen.placement
        )
        for one in programs:
            if tenant in (None, one.tenant):
                due_s = one.due_s(lone.latency_s[one.name], duration_s)
                simulation.start(one, one.at * duration_s, due_s)
        return simulation.finish()

    def _one_by_one(self, programs: Sequence[MixedProgram]) -> ProgramRun:
        """Start each program a moment after the end of the one before."""
        waiting = iter(programs)

        def start_next() -> None:
            if not simulation.num_open and (program := next(waiting, None)) is not None:
                simulation.start(program, simulation.driver.now_s + _GAP_S)

        policy = contestant(ARRIVAL).policy
        simulation = Simulation(replace(self.servers, instances=1), programs, policy, on_reply=start_next)
        start_next()
        return simulation.finish()

    def _saturated(self, mix: str, num_open: int) -> float:
        """Return the work per second while so many programs are there, until none is left to come."""
        programs = [one for one in self.programs(mix, _CAPACITY_SEED) if not one.is_offline]
        work_s = self.lone(mix, _CAPACITY_SEED).work_s
        waiting = iter(programs)

        def start_more() -> None:
            while simulation.num_open < num_open and (program := next(waiting, None)) is not None:
                simulation.start(program, simulation.driver.now_s)

        simulation = Simulation(self.servers, programs, contestant(ARRIVAL).policy, on_reply=start_more)
        start_more()
        ends_s = simulation.finish().ends_s
        until_s = max(one.at_s for one in simulation.run.times.values())
        since_s = WARM_SHARE * until_s
        done_s = sum(work_s[key] for key, end_s in ends_s.items() if since_s < end_s <= until_s)
        return done_s / (until_s - since_s)

    def _key(self, what: str, mix: str, load: float, seed: str, code: str) -> CellKey:
        settings = {"servers": asdict(self.servers), "scale": self.scale, "seed": seed, "code": code}
        return CellKey(what, mix, load, 0, settings | {"workload": workload_digest()})


@lru_cache(maxsize=8)
def _drawn(mix: str, seed: str, scale: float) -> tuple[MixedProgram, ...]:
    return MIXES[mix].draw(seed, scale)


def packed(run: ProgramRun) -> Mapping[str, Any]:
    """Return a run as plain data."""
    return {
        "times": {name: (one.at_s, one.end_s, one.has_failed) for name, one in run.times.items()},
        "usages": [(*key, *_counts(usage), run.ends_s.get(key, 0.0)) for key, usage in run.usages.items()],
        "waits_s": run.waits_s,
    }


def _counts(usage: Usage) -> tuple[int, int, int]:
    return usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens


def unpacked(found: Mapping[str, Any]) -> ProgramRun:
    """Return the run of which `packed` made plain data."""
    run = ProgramRun({name: ProgramTimes(*one) for name, one in found["times"].items()})
    for query, step, item, num_prompt, num_cached, num_output, end_s in found["usages"]:
        run.usages[query, step, item] = Usage(num_prompt, num_cached, num_output)
        run.ends_s[query, step, item] = end_s
    run.waits_s = found["waits_s"]
    return run


@cache
def code_digest() -> str:
    """Digest of the code that a run depends on, so that a run of other code is another run."""
    package = Path(stretto.__file__).parent
    rooms = ("model", "costs", "cluster", "llm", "sched", "sim")
    return _digest([path for room in rooms for path in sorted((package / room).rglob("*.py"))])


@cache
def workload_digest() -> str:
    """Digest of what makes the programs."""
    folder = Path(__file__).parent
    names = ("work", "recorded", "mixes", "graphs", "simulated", "orders", "arena", "without_foresight")
    return _digest([folder / f"{name}.py" for name in names])


def _digest(paths: Sequence[Path]) -> str:
    digest = blake2b(digest_size=6)
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
