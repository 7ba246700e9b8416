"""Four small models in processes on two devices, which are cores of this machine with one thread each.

Nothing is known of this machine beforehand: the steps of each model and the time that a process needs to
start are measured first, and plans are made with what was measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common.checkpoint import Shape, build_checkpoint
from benchmarks.offline.measured import Measured, Work, run_measured
from benchmarks.twin.steps import measure_steps_apart
from stretto.core import Segment
from stretto.costs.fit import MeasuredStep, fit_step_cost
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.costs.shape import Hardware, model_of
from stretto.costs.step import StepFeatures
from stretto.deployment import Deployment, Engine, Replica
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.planner.application import Application, Node, Request
from stretto.planner.machine import Machine
from stretto.planner.plan import PlannedReplica
from stretto.planner.planners.table import ALL_PLANNERS
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.run_request import Message, RunRequest
from stretto.runtime.runtime import Runtime
from stretto.tasks import Decode, LLMTask

NUM_DEVICES = 2
SHAPES: Mapping[str, Shape] = {
    "small": Shape(hidden=64, intermediate=192, layers=3, heads=4, kv_heads=2, vocabulary=1024),
    "middle": Shape(hidden=128, intermediate=384, layers=6, heads=4, kv_heads=2, vocabulary=1024),
    "deep": Shape(hidden=128, intermediate=384, layers=12, heads=4, kv_heads=2, vocabulary=1024),
    "large": Shape(hidden=256, intermediate=768, layers=9, heads=8, kv_heads=4, vocabulary=1024),
}
_HARDWARE = Hardware("a core", 2**34, 2e10, 1e11, 5e10)
"""Hardware whose numbers only set the units of the fitted numbers."""
_WIDTHS = (1, 4, 16, 48)
_MAX_RUNNING = 512  # as planners have it
_KV_BYTES = 256 * 2**20
_KV_TOKENS = 1 << 16
_ANSWER_TOKENS = (16, 240)
_PROMPT_WORDS = (8, 60)
_CAP = 256


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """Two cores as devices, with what was measured of them.

    Attributes:
        configs: configuration of each model's engine.
        cores: numbers of the cores.
        machine: the machine as planners see it.
        loading_s: measured seconds from the start of a process until its model is loaded.
    """

    configs: Mapping[str, TransformerConfig]
    cores: Sequence[int]
    machine: Machine
    loading_s: float

    def make(self, planned: PlannedReplica) -> Replica:
        """Return the replica of a planned one: a process on its device."""
        return _replica(self.configs[planned.node], self.cores[planned.devices[0]])

    def run(self, work: Work, planner: str) -> Measured:
        """Plan the work with a planner of this name, and run it."""
        lengths = LengthsBySource({(name, ""): output_lengths({_CAP: 1.0}) for name in self.configs})
        replanner = Replanner(work.app, self.machine, lengths, ALL_PLANNERS[planner])
        with TemporaryDirectory() as name:
            return run_measured(work, replanner, self.make, Path(name))


def measure_machine(folder: Path, seed: int, max_s: float) -> LocalMachine:
    """Build the models, and measure their steps and the start of a process.

    Both cores measure at the same time, because both will be busy in the runs.

    Args:
        max_s: seconds for the steps of each model.
    """
    cores = sorted(os.sched_getaffinity(0))[:NUM_DEVICES]
    words = _words(random.Random(seed))
    configs = {
        name: TransformerConfig(
            build_checkpoint(folder / name, [" ".join(words)], shape=shape, seed=at),
            max_running=_MAX_RUNNING,
            max_batch_tokens=shape.context_tokens,
            block_tokens=16,
            kv_bytes=_KV_BYTES,
            policy="prefill_first",
        )
        for at, (name, shape) in enumerate(SHAPES.items())
    }
    tasks = _tasks(random.Random(seed + 1), words)
    numbers: dict[str, Mapping[str, float]] = {}
    models = {
        name: model_of(name, json.loads((Path(config.path) / "config.json").read_text("utf-8")))
        for name, config in configs.items()
    }
    for name, config in configs.items():
        steps = _steps(config, cores, tasks, max_s)
        numbers[f"{name}|tp1"] = fit_step_cost(StepFeatures(models[name], _HARDWARE), steps).numbers
    loading_s = asyncio.run(_start_s([_replica(configs["middle"], core) for core in cores]))
    preset = {
        "name": "this machine",
        "about": "measured for this run",
        "hardware": asdict(_HARDWARE),
        "models": {
            name: {key: value for key, value in asdict(model).items() if key != "name"}
            for name, model in models.items()
        },
        "numbers": numbers,
        "loading": {
            "start_s": loading_s,
            "group_s": 0.0,
            "byte_s": 0.0,
            "measured_s": dict.fromkeys(numbers, loading_s),
        },
    }
    path = folder / "preset.json"
    path.write_text(json.dumps(preset), "utf-8")
    return LocalMachine(configs, cores, Machine("two cores", NUM_DEVICES, str(path)), loading_s)


def local_works(seed: int) -> Iterator[Work]:
    """Yield three applications of the four models."""
    random_numbers = random.Random(seed)
    words = _words(random.Random(seed))
    names = list(SHAPES)
    nodes = [Node(name, name, _CAP) for name in names]
    yield Work("ensemble", Application("ensemble", nodes), _requests(random_numbers, words, 48))
    counts = {"small": 150, "middle": 40, "deep": 60, "large": 30}
    routed = [
        one
        for name, count in counts.items()
        for one in _requests(random_numbers, words, count, f"{name} ", (name,))
    ]
    yield Work("routing", Application("routing", nodes), routed)
    judged = [
        *(Node(name, name, _CAP) for name in names[:3]),
        Node("large", "large", _CAP, inputs=("small", "deep")),
    ]
    yield Work("judged", Application("judged", judged), _requests(random_numbers, words, 48))


def _requests(
    numbers: random.Random, words: Sequence[str], count: int, prefix: str = "", nodes: tuple[str, ...] = ()
) -> list[RunRequest]:
    """Return requests whose answers have lengths that are known: the models end nothing by themselves."""
    found = []
    for at in range(count):
        text = " ".join(numbers.choices(words, k=numbers.randint(*_PROMPT_WORDS)))
        num_output = numbers.randint(*_ANSWER_TOKENS)
        answers = dict.fromkeys(nodes or SHAPES, num_output)
        planned = Request(f"{prefix}{at}", 1 + len(text.split()), (), nodes, answers)
        decode = {"max_tokens": num_output, "ignore_eos": True}
        found.append(RunRequest(planned, (Message(None, text),), (), decode))
    return found


def _words(numbers: random.Random) -> list[str]:
    """Return words that the tokenizers, trained on them, take for about a token each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(numbers.choices(letters, k=numbers.randint(3, 6))) for _ in range(400)]


def _tasks(numbers: random.Random, words: Sequence[str]) -> list[LLMTask]:
    tasks = []
    for at in range(2 * max(_WIDTHS)):
        text = " ".join(numbers.choices(words, k=numbers.randint(*_PROMPT_WORDS)))
        decode = Decode(max_tokens=numbers.randint(*_ANSWER_TOKENS), ignore_eos=True)
        tasks.append(LLMTask(at, f"query {at}", "", (Segment(text),), decode))
    return tasks


def _steps(
    config: TransformerConfig, cores: Sequence[int], tasks: Sequence[LLMTask], max_s: float
) -> list[MeasuredStep]:
    """Measure a model's steps on all cores at once, in a process each."""
    with ThreadPoolExecutor(len(cores)) as pool:
        each = pool.map(
            lambda core: measure_steps_apart(config, tasks, _WIDTHS, max_s, partial(_pinned, core)), cores
        )
        return [step for steps in each for step in steps]


def _pinned(core: int, config: TransformerConfig) -> TransformerLLM:
    """Return an engine in this process, which is confined to a core from now on."""
    os.sched_setaffinity(0, {core})
    return TransformerLLM(config)


def _replica(config: TransformerConfig, core: int) -> Replica:
    devices = (f"cpu:{core}",)
    return Replica(
        TransformerLLM, config, runs_in="process", devices=devices, threads=1, kv_tokens=_KV_TOKENS
    )


async def _start_s(replicas: Sequence[Replica]) -> float:
    """Return the seconds in which replicas start at the same time."""
    begin_s = time.monotonic()
    async with Runtime([Deployment(Engine("start", contract="llm"), tuple(replicas))]):
        return time.monotonic() - begin_s
