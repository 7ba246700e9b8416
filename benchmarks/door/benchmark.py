"""`stretto bench door`: agents and chats of unmodified clients before emulated servers, in real time.

Sessions of a coding agent, recorded by others (tokens and times divided by 16), run in a closed loop: each of
them sends its next request once its tools are done, and the next session begins where one has ended. The
client is the package `openai`, with streams. Servers emulate Llama-2-7b on an A100, with 16 sequences at
once. What stands before them changes; at each number of sessions all arms get the same load by turns.

    tokens_per_s, calls_per_s, sessions_per_h   of the agents, at all servers together
    call_first_p50_s, call_first_p99_s          from an agent's request to its first token
    longest_hold_s                              longest time that our router held a request for room
    worst_session_s                             slowest session that began and ended in the run
    first_p90_s                                 from a chat's request to its first token
    hits                                        share of the prompts' tokens that servers had cached
    lag                                         lateness of the servers, as a share of the time waited

Runs whose lag is above 0.05 are marked: this machine was too slow for them, and their times are too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.door.arms import DIRECT, ENDLESS, OURS, Arm, arms, before
from benchmarks.door.client import run_clients
from benchmarks.emulate.servers import DEVICE, MODEL, Measured, serving
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs.room.load import Load
from benchmarks.programs.room.load import Measured as RoomMeasured
from benchmarks.programs.room.real_time import run_on_runtime
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Session, recorded_sessions
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.llms import llm_deployment, server_replica
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.sizing.servers import llm_profile
from stretto.trace.summary import quantile

DEFAULT_CELLS = Path("runs/door")
MAX_LAG = 0.05
_CONTEXT_TOKENS = 16_384
_COLUMNS = ("tokens_per_s", "calls_per_s", "sessions_per_h", "hits", "longest_hold_s", "first_p90_s")


@dataclass(frozen=True, slots=True)
class DoorSize:
    """Sizes of the comparison.

    Attributes:
        sessions: numbers of sessions at once, for each server.
        chats_per_s: chats that arrive beside, at each server.
        caps: fixed numbers of sessions, for each server, that are tried as arms. In virtual time 20 is best.
    """

    servers: int = 1
    sessions: tuple[int, ...] = (24, 48)
    caps: tuple[int, ...] = (20,)
    seeds: int = 1
    warm_s: float = 20.0
    run_s: float = 50.0
    chats_per_s: float = 0.0


QUICK = DoorSize(sessions=(24,), caps=(), warm_s=5.0, run_s=10.0)
WHOLE = DoorSize(servers=4, sessions=(16, 32, 64), seeds=3, run_s=60.0)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run every arm at every number of sessions: half an hour, 2 minutes if `quick`, 3 hours if `whole`.

    Raises:
        ConfigError: the recorded sessions are not there.
    """
    size = QUICK if options.quick else WHOLE if options.whole else DoorSize()
    if options.data is None or not (folder := options.data / "weka_agents").is_dir():
        raise ConfigError("bench door needs --data DIR with the folder weka_agents in it")
    sessions = recorded_sessions(folder)[1::2]
    cells = Cells(options.cells or DEFAULT_CELLS)
    rows = list(_rows(size, sessions, options, cells))
    return Report("door", options.seed, asdict(size), tuple(rows), tuple(_goals(rows, size)))


def _rows(
    size: DoorSize, sessions: Sequence[Session], options: BenchmarkOptions, cells: Cells
) -> Iterator[Row]:
    for number in size.sessions:
        compared = arms(size.caps)
        found: dict[str, list[Mapping[str, Any]]] = {arm.name: [] for arm in compared}
        for seed in range(options.seed, options.seed + size.seeds):
            for arm in compared:
                options.say(f"{number} sessions a server, seed {seed}: {arm.name}")
                measure = partial(_run, size, arm, number, sessions, seed)
                key = CellKey(arm.name, "door", float(number), seed, asdict(size))
                found[arm.name].append(cells.get(key, measure))
        for name, values in found.items():
            medians: dict[str, Value] = {
                key: round(median(one[key] for one in values), 4) for key in values[0]
            }
            is_late = any(one["lag"] > MAX_LAG for one in values)
            note = "too slow a machine: does not count" if is_late else ""
            yield Row(table_of(number), name, medians, note=note)


def table_of(number: int) -> str:
    """Return the name of the table of one number of sessions."""
    return f"{number} sessions a server"


def _run(size: DoorSize, arm: Arm, number: int, sessions: Sequence[Session], seed: int) -> dict[str, Any]:
    load = Load(
        num_clients=number * size.servers,
        warm_s=size.warm_s,
        end_s=size.warm_s + size.run_s,
        cap=arm.cap * size.servers,
        chats_per_s=size.chats_per_s * size.servers,
    )
    if arm.is_virtual:
        measured, lag = Servers(size.servers, holds=True, is_unmodified=True).run(load, sessions, seed), 0.0
    else:
        with serving(planned_servers(size.servers, arm.memory)) as servers:
            begun = servers.spent()
            measured = _measured(arm, servers.urls, load, sessions, seed)
            lag = _lag(servers, begun.late_s, begun.waited_s)
    firsts = sorted(measured.call_first_s)
    row = measured.row()
    return {
        **{name: row[name] for name in _COLUMNS},
        **({f"call_first_p{part}_s": quantile(firsts, part / 100) for part in (50, 99)} if firsts else {}),
        "worst_session_s": max(measured.session_s, default=0.0),
        "lag": lag,
    }


def _measured(
    arm: Arm, urls: Sequence[str], load: Load, sessions: Sequence[Session], seed: int
) -> RoomMeasured:
    if arm.is_library:
        return uvloop.run(run_on_runtime([library_before(urls)], load, sessions, seed))
    with before(arm, urls) as doors:
        return uvloop.run(run_clients(doors, MODEL, load, sessions, seed, with_ids=arm.with_ids))


def library_before(urls: Sequence[str]) -> Deployment:
    """Return the declaration of the servers for our library, which is told their sizes."""
    preset = load_preset(DEVICE)
    assert preset.hardware is not None
    kv_tokens = check_fits(preset.model(MODEL), preset.hardware, 1)
    replicas = [
        replace(
            server_replica(url, api="completions", tokenizer="none", model=MODEL),
            kv_tokens=kv_tokens,
            profile=llm_profile(preset.step_cost(preset.model(MODEL), 1)),
        )
        for url in urls
    ]
    declared = llm_deployment(replicas)
    engine = replace(declared.engine, max_running=16, max_batch=kv_tokens, placement="stretto")
    return Deployment(engine, declared.replicas)


def _lag(servers: Measured, late_s: float, waited_s: float) -> float:
    spent = servers.spent()
    return (spent.late_s - late_s) / max(1e-9, spent.waited_s - waited_s)


def planned_servers(number: int, memory: float = 1.0) -> PlannedFleet:
    """Return emulated servers.

    Args:
        memory: KV memory of each server, in those of the device.
    """
    wanted = tuple(
        WantedServer(
            devices=(place,),
            model=MODEL,
            port=0,
            loading_s=0.0,
            max_sequences=16,
            max_batch_tokens=512,
            max_context_tokens=_CONTEXT_TOKENS,
        )
        for place in range(number)
    )
    planned = check_fleet(WantedFleet((DEVICE,) * number, wanted))
    servers = []
    for server in planned.servers:
        assert isinstance(server.service, PlannedLLM)
        simulated = server.service.simulated
        scheduler = replace(simulated.scheduler, num_blocks=int(memory * simulated.scheduler.num_blocks))
        service = replace(server.service, simulated=replace(simulated, scheduler=scheduler))
        servers.append(replace(server, service=service))
    return replace(planned, servers=tuple(servers))


def _goals(rows: Sequence[Row], size: DoorSize) -> Iterator[Goal]:
    """Yield what is to be reached at the largest number of sessions."""
    table = table_of(max(size.sessions))
    rates = {row.name: float(row.values["tokens_per_s"] or 0) for row in rows if row.table == table}
    ours = rates.get(OURS, 0.0)
    for name, goal in ((ENDLESS, 0.9), (DIRECT, 1.7), *((name, 1.7) for name in rates if "programs" in name)):
        if rates.get(name):
            yield Goal(f"tokens/s, ours over {name}", ours / rates[name], goal, "higher")
