"""Agents about the knee in real time: by hand with the `openai` client, on the library, and in virtual time.

The same recorded sessions run in a closed loop in all arms, with the same prompts. Requests that two arms in
real time have both made have to have equal answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

import uvloop

from benchmarks.door.benchmark import library_before, planned_servers
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs.real.by_hand import Servers as ServersByHand
from benchmarks.programs.real.by_hand import openai_servers
from benchmarks.programs.real.emulated import MAX_LAG, RealServers, running
from benchmarks.programs.real.script import digest_of
from benchmarks.programs.room.load import Agents, Load, Measured
from benchmarks.programs.room.real_time import RealClock, run_on_runtime
from benchmarks.programs.room.scenes import KNEE
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Session
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from stretto.sched.actions import Reply
from stretto.sched.messages import Submit

BY_HAND, LIBRARY, VIRTUAL = "by hand", "library", "library, virtual time"
ARMS = (BY_HAND, LIBRARY, VIRTUAL)
NEAR = 0.05
LATE = "too slow a machine: does not count"
_COLUMNS = ("tokens_per_s", "calls_per_s", "sessions_per_h", "mean_s", "p95_s", "hits", "longest_hold_s")


@dataclass(frozen=True, slots=True)
class AgentsSize:
    """Sizes of the comparison.

    Attributes:
        knees: sessions at once, in times of those whose contexts fill the KV memory of the servers.
        instances: numbers of servers.
    """

    knees: tuple[float, ...] = (0.5, 1.0, 2.0)
    instances: tuple[int, ...] = (1, 4)
    warm_s: float = 20.0
    run_s: float = 50.0


def agents_part(
    size: AgentsSize,
    seeds: Sequence[int],
    sessions: Sequence[Session],
    cells: Cells,
    options: BenchmarkOptions,
) -> tuple[list[Row], list[Goal]]:
    """Compare the arms at each load, on each number of servers."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for instances in size.instances:
        for knee in size.knees:
            by_seed = []
            for seed in seeds:
                found: dict[str, Mapping[str, Any]] = {}
                for arm in ARMS:
                    options.say(f"agents, {knee:g} × the knee, servers: {instances}, seed {seed}: {arm}")
                    found[arm] = _stored(size, arm, instances, knee, seed, sessions, cells)
                by_seed.append(found)
            table = f"agents at {knee:g} × the knee, servers: {instances}"
            rows += _rows(table, seeds, by_seed)
            goals += _goals(table, by_seed)
    return rows, goals


def _stored(
    size: AgentsSize,
    arm: str,
    instances: int,
    knee: float,
    seed: int,
    sessions: Sequence[Session],
    cells: Cells,
) -> Mapping[str, Any]:
    num_clients = round(knee * KNEE * instances)
    load = Load(num_clients=num_clients, warm_s=size.warm_s, end_s=size.warm_s + size.run_s)
    simulated = Servers(instances, holds=True, is_unmodified=True)

    def run() -> Mapping[str, Any]:
        if arm == VIRTUAL:
            return _packed(simulated.run(load, sessions, seed))
        with running(planned_servers(instances)) as servers:
            measured = uvloop.run(_run(arm, servers, load, sessions, seed))
            return {**_packed(measured), "lag": servers.lag.share}

    settings = {"load": asdict(load), "instances": instances, "is_real": True}
    if arm == VIRTUAL:
        settings["servers"] = asdict(simulated)
    return cells.get(CellKey(arm, "agents", knee, seed, settings), run)


async def _run(
    arm: str, servers: RealServers, load: Load, sessions: Sequence[Session], seed: int
) -> Measured:
    if arm == LIBRARY:
        return await run_on_runtime([library_before(servers.urls)], load, sessions, seed)
    async with openai_servers(servers.urls, servers.model) as reached:
        clock = _ClockByHand(Agents(load, sessions, seed), reached)
        await clock.run(load.end_s)
    return clock.agents.measured


class _ClockByHand(RealClock[Agents]):
    """Agents that send each prompt when it is there. A session keeps to its server."""

    def __init__(self, agents: Agents, servers: ServersByHand) -> None:
        super().__init__(agents)
        self._servers = servers

    async def ask(self, event: Submit, num_output: int) -> None:
        self.agents.started(event.query, 0.0, self.now_s)
        text, usage = await self._servers.complete(str(event.inputs["prompt"]), event.program, num_output)
        self.agents.used(event.query, usage, self.now_s)
        self.agents.on_reply(Reply(event.query, {"text": text}))


def _packed(measured: Measured) -> Mapping[str, Any]:
    row = measured.row()
    answers = {query: digest_of(text.strip()) for query, text in measured.answers.items()}
    return {**{name: row[name] for name in _COLUMNS}, "answers": answers, "lag": 0.0}


def _rows(table: str, seeds: Sequence[int], by_seed: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    names = (*_COLUMNS, "lag")
    for arm in ARMS:
        counted = [found[arm] for found in by_seed if found[arm]["lag"] <= MAX_LAG]
        if counted:
            values: dict[str, Value] = {name: median(one[name] for one in counted) for name in names}
            yield Row(table, arm, values, _origin(arm))
    for seed, found in zip(seeds, by_seed, strict=True):
        for arm in ARMS:
            note = "" if found[arm]["lag"] <= MAX_LAG else LATE
            values = {name: found[arm][name] for name in names}
            yield Row(f"{table}, by seed", f"seed {seed}, {arm}", values, _origin(arm), note)


def _origin(arm: str) -> Any:
    return "simulated" if arm == VIRTUAL else "measured"


def _goals(table: str, by_seed: Sequence[Mapping[str, Any]]) -> Iterator[Goal]:
    num_common, num_different = compared_answers(
        [[found[arm]["answers"] for arm in (BY_HAND, LIBRARY)] for found in by_seed]
    )
    yield Goal(f"{table}: answers that differ, of {num_common} in common", num_different, 0, "lower")
    counted = [found for found in by_seed if all(found[arm]["lag"] <= MAX_LAG for arm in ARMS)]
    if not counted:
        return
    for what in ("tokens_per_s", "calls_per_s"):
        ratio = median(found[LIBRARY][what] / found[VIRTUAL][what] for found in counted)
        name = f"{table}: {what}, distance of the median seed from virtual time"
        yield Goal(name, abs(ratio - 1), NEAR, "lower")
    ratio = median(found[LIBRARY]["tokens_per_s"] / found[BY_HAND]["tokens_per_s"] for found in counted)
    yield Goal(f"{table}: tokens/s, library over by hand", ratio, 1.0, "higher")


def compared_answers(groups: Iterable[Sequence[Mapping[str, str]]]) -> tuple[int, int]:
    """Return how many answers pairs of runs have in common, by their requests, and how many of these
    differ.
    """
    num_common = num_different = 0
    for runs in groups:
        for one, other in combinations(runs, 2):
            common = one.keys() & other.keys()
            num_common += len(common)
            num_different += sum(one[query] != other[query] for query in common)
    return num_common, num_different
