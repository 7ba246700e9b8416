"""`stretto bench programs --fleet`: programs in real time, beside the same in virtual time and by hand.

    four apps mixed    at 90 % of the capacity, before one and four emulated servers
    agents             at 0.5, 1 and 2 × the knee, before the same servers, if `--data` has the sessions
    in process         chats beside map-reduces and a long agent on two models of this machine

Runs whose servers were late by more than 5 % of the time that clients waited do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.checkpoint import build_checkpoint
from benchmarks.fleet.cells import Cells
from benchmarks.programs.benchmark import DEFAULT_CELLS, FIRST_REPORTED_SEED
from benchmarks.programs.real.agents import AgentsSize, agents_part
from benchmarks.programs.real.in_process import InProcessSize, in_process_part, in_process_programs
from benchmarks.programs.real.mixed import MixedSize, mixed_part
from benchmarks.programs.room.sessions import recorded_sessions
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from stretto.engines.llms import DEFAULT_LLM
from stretto.engines.models.store import FETCHED_MODELS


@dataclass(frozen=True, slots=True)
class RealSize:
    """Sizes of all parts.

    Attributes:
        model_seeds: number of seeds of the part on models of this machine.
    """

    mixed: MixedSize = MixedSize(scale=0.25)
    agents: AgentsSize = AgentsSize()
    in_process: InProcessSize = InProcessSize()
    seeds: int = 1
    model_seeds: int = 1


WHOLE = RealSize(MixedSize(), seeds=3)
QUICK = RealSize(
    MixedSize(instances=(1,), scale=0.02),
    AgentsSize(knees=(1.0,), instances=(1,), warm_s=5.0, run_s=10.0),
    InProcessSize(chats=6, map_reduces=2, agent_calls=2, most_width=4, turns=1),
    seeds=1,
)


def run_in_real_time(options: BenchmarkOptions) -> Report:
    """Run all parts: half an hour, some minutes if `quick`, or two hours if `whole`. Runs that are stored are
    not repeated.
    """
    return measure_real(QUICK if options.quick else WHOLE if options.whole else RealSize(), options)


def measure_real(size: RealSize, options: BenchmarkOptions) -> Report:
    """Run all parts, as large as `size` says."""
    cells = Cells(options.cells or DEFAULT_CELLS)
    first = FIRST_REPORTED_SEED + options.seed
    seeds = range(first, first + size.seeds)
    rows, goals = mixed_part(size.mixed, seeds, cells, options)
    notes = [
        "servers emulate Llama-2-7b on an A100, 16 sequences each; they answer as the simulated LLM does",
        "by hand: asyncio and the `openai` client, nothing in between; a conversation keeps to its server, "
        "all else goes to the server with the fewest unanswered requests",
        "medians of the seeds that count; lag: lateness of answers as a share of the time waited for them",
    ]
    for part in (_agents, _in_process):
        found = part(size, seeds, cells, options)
        rows, goals, notes = rows + found[0], goals + found[1], [*notes, found[2]]
    return Report("programs", options.seed, asdict(size), tuple(rows), tuple(goals), tuple(notes))


def _agents(
    size: RealSize, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions
) -> tuple[list[Row], list[Goal], str]:
    if options.data is None or not (folder := options.data / "weka_agents").is_dir():
        return [], [], "agents were left out: --data names no folder with weka_agents in it"
    rows, goals = agents_part(size.agents, seeds, recorded_sessions(folder)[1::2], cells, options)
    return rows, goals, "agents: sessions of a coding agent, tokens and times divided by 16, in a closed loop"


def _in_process(
    size: RealSize, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions
) -> tuple[list[Row], list[Goal], str]:
    chosen = seeds[: size.model_seeds]
    if options.checkpoint is not None:
        model = str(options.checkpoint)
    elif FETCHED_MODELS[DEFAULT_LLM].is_here:
        model = DEFAULT_LLM
    else:
        programs = in_process_programs(size.in_process, chosen[0])
        texts = [text for one in programs for query in one.queries for text in query.texts]
        model = str(build_checkpoint((options.cells or DEFAULT_CELLS) / "checkpoint", texts))
    rows, goals = in_process_part(size.in_process, model, chosen, cells, options)
    return rows, goals, f"models of this machine: {Path(model).name}, one core each"
