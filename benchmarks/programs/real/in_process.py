"""Chats beside map-reduces and a long agent on two models in this machine's processes, one core each.

The texts are made up of plain sentences, and the model ends its answers itself. All arms get the same
programs at the same times, by turns. The load is a share of what the models do when all programs come at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import fmean, median
from typing import Any

import uvloop

from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs import recorded
from benchmarks.programs.contestants import ARRIVAL, OURS, contestant
from benchmarks.programs.real.clock import RealRun, run_programs
from benchmarks.programs.real.on_library import MOST_QUERIES, OnLibrary, with_policy
from benchmarks.programs.real.script import digest_of
from benchmarks.programs.work import AGENT, CHAT, MAP_REDUCE, WARM_SHARE, MixedProgram, MixedQuery
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from stretto.engines.llms import llm_deployment, llm_replica
from stretto.model.deployment import Deployment
from stretto.runtime.runtime import Runtime
from stretto.trace.summary import quantile

ARMS = (ARRIVAL, OURS)
TABLE = "two models of this machine"
_THINGS = ("lighthouse", "glacier", "printing press", "violin", "volcano", "compass", "bakery", "canal")
_FACTS = ("was built long ago", "costs more than people think", "needs care every spring", "is loud at night")


@dataclass(frozen=True, slots=True)
class InProcessSize:
    """Sizes of the comparison.

    Attributes:
        max_running: sequences that a model runs at once.
        max_tokens: limit of each answer.
        turns: number of runs of each arm.
    """

    chats: int = 90
    map_reduces: int = 12
    agent_calls: int = 8
    most_width: int = 12
    models: int = 2
    max_running: int = 4
    max_tokens: int = 40
    load: float = 0.9
    turns: int = 3


def in_process_programs(size: InProcessSize, seed: int) -> tuple[MixedProgram, ...]:
    """Return the programs of a seed."""
    draw = Random(f"in process/{seed}")
    programs = []
    for number in range(size.chats):
        name = f"{CHAT}/{number}"
        text = f"Explain in {draw.randint(1, 6)} sentences what a {draw.choice(_THINGS)} is. ({number})"
        programs.append(MixedProgram(name, CHAT, draw.random(), (MixedQuery(name, CHAT, (text,)),)))
    for number in range(size.map_reduces):
        name, width = f"{MAP_REDUCE}/{number}", recorded.pareto(draw, 3, 1.1, size.most_width)
        texts = tuple(_passage(draw) for _ in range(width))
        programs.append(MixedProgram(name, MAP_REDUCE, draw.random(), (MixedQuery(name, MAP_REDUCE, texts),)))
    texts, queries = ("You are an agent. Say what you do next.\n",), []
    for turn in range(size.agent_calls):
        texts = (*texts, _passage(draw))
        queries.append(MixedQuery(f"{AGENT}/{turn}", AGENT, texts, recorded.tool_s(draw) if turn else 0.0))
    programs.append(MixedProgram(AGENT, AGENT, 0.0, tuple(queries)))
    return tuple(sorted(programs, key=lambda one: (one.at, one.name)))


def in_process_part(
    size: InProcessSize, model: str, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions
) -> tuple[list[Row], list[Goal]]:
    """Compare the default order with that of arrival.

    Args:
        model: path of a checkpoint, or name of a fetched model.
    """
    rows: list[Row] = []
    gains: list[float] = []
    num_different = num_answers = 0
    for seed in seeds:
        options.say(f"{TABLE}, seed {seed}")
        scene = _Scene(size, model, seed, cells)
        for turn in range(size.turns):
            found = {arm: scene.run(arm, turn) for arm in (ARMS if turn % 2 == 0 else ARMS[::-1])}
            figures = {arm: scene.figures(found[arm]) for arm in ARMS}
            rows += [Row(TABLE, f"seed {seed}, turn {turn + 1}, {arm}", figures[arm]) for arm in ARMS]
            gains.append(float(figures[ARRIVAL]["mean_s"]) / float(figures[OURS]["mean_s"]))
            first, second = (found[arm]["answers"] for arm in ARMS)
            num_answers += len(first)
            num_different += sum(first[query] != second[query] for query in first)
    spread: dict[str, Value] = {"median": median(gains), "least": min(gains), "most": max(gains)}
    rows.append(Row(f"{TABLE}: mean, arrival order over the default order", f"{len(gains)} turns", spread))
    return rows, [
        Goal(f"{TABLE}: least gain of the mean", min(gains), 1.0, "higher"),
        Goal(f"{TABLE}: answers that differ, of {num_answers}", num_different, 0, "lower"),
    ]


class _Scene:
    """The programs of one seed, at a share of what the models do when all come at once."""

    def __init__(self, size: InProcessSize, model: str, seed: int, cells: Cells) -> None:
        self._size = size
        self._model = model
        self._seed = seed
        self._cells = cells
        self._programs = in_process_programs(size, seed)
        self._counted = {one.name for one in self._programs if one.at >= WARM_SHARE}
        times = self._stored("capacity", ARRIVAL, 0, 0.0)["times"]
        busy_s = max(end_s for name, (_, end_s) in times.items() if name != AGENT)
        self._duration_s = busy_s / size.load

    def run(self, arm: str, turn: int) -> Mapping[str, Any]:
        """Return the run of an arm in one of its turns."""
        return self._stored(arm, arm, turn, self._duration_s)

    def figures(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Return the figures of a run."""
        seconds = {name: end_s - at_s for name, (at_s, end_s) in found["times"].items()}
        counted = [seconds[name] for name in seconds if name in self._counted]
        last_s = max(end_s for _, end_s in found["times"].values())
        chats = [seconds[name] for name in self._counted if name.startswith(CHAT)]
        return {
            "mean_s": fmean(counted),
            "p95_s": quantile(counted, 0.95),
            "chats_mean_s": fmean(chats),
            "agent_s": seconds[AGENT],
            "tokens_per_s": found["num_output"] / last_s,
        }

    def _stored(self, what: str, arm: str, turn: int, duration_s: float) -> Mapping[str, Any]:
        def run() -> Mapping[str, Any]:
            engines = engines_of(self._size, self._model, arm)
            found = uvloop.run(run_on_models(engines, self._size, self._programs, duration_s))
            return {
                "times": {name: (one.at_s, one.end_s) for name, one in found.run.times.items()},
                "num_output": sum(usage.num_output_tokens for usage in found.run.usages.values()),
                "answers": {query: digest_of(answer) for query, answer in found.answers.items()},
            }

        settings = {**asdict(self._size), "model": self._model, "turn": turn}
        return self._cells.get(CellKey(what, "in_process", self._size.load, self._seed, settings), run)


def engines_of(size: InProcessSize, model: str, arm: str) -> list[Deployment]:
    """Return the models as an engine that serves in the order of an arm."""
    replica = replace(llm_replica(model, runs_in="process"), threads=1)
    llm = llm_deployment([replica] * size.models).changed(max_running=size.max_running, timeout_s=None)
    return with_policy([llm], contestant(arm).policy)


async def run_on_models(
    engines: Sequence[Deployment],
    size: InProcessSize,
    programs: Sequence[MixedProgram],
    duration_s: float,
) -> RealRun:
    """Run programs on engines of this machine, each of which has answered one short query."""
    found = RealRun()
    library = OnLibrary(engines, found, size.max_tokens)
    warm_up = MixedQuery("warm-up", CHAT, ("Good morning.",))
    async with Runtime(engines, observers=[library], max_queries=MOST_QUERIES) as runtime:
        library.runtime = runtime
        for number in range(size.models):
            await library.ask(MixedProgram(f"warm-up {number}", CHAT, 0.0, (warm_up,)), warm_up)
        await run_programs(programs, duration_s, library.ask, found)
    return found


def _passage(draw: Random) -> str:
    sentences = (f"The {draw.choice(_THINGS)} {draw.choice(_FACTS)}." for _ in range(8))
    return " ".join(sentences) + "\n"
