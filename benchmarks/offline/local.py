"""Four small models in processes on two devices, which are cores of this machine with one thread each.

Nothing is known of this machine beforehand: the steps of each model and the time that a process needs to
start are measured first, and plans are made with what was measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common.checkpoint import Shape, build_checkpoint
from benchmarks.offline.measured import Measured, Work, run_measured
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.graph.one_call import PromptMessage
from stretto.model.values import Segment
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.core_costs import CoreModel, measure_on_cores
from stretto.planner.cores import core_models, cores_machine, usable_cores
from stretto.planner.machine import PlanMachine
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import core_replicas
from stretto.planner.running.run_request import RunRequest

NUM_DEVICES = 2
SHAPES: Mapping[str, Shape] = {
    "small": Shape(hidden=64, intermediate=192, layers=3, heads=4, kv_heads=2, vocabulary=1024),
    "middle": Shape(hidden=128, intermediate=384, layers=6, heads=4, kv_heads=2, vocabulary=1024),
    "deep": Shape(hidden=128, intermediate=384, layers=12, heads=4, kv_heads=2, vocabulary=1024),
    "large": Shape(hidden=256, intermediate=768, layers=9, heads=8, kv_heads=4, vocabulary=1024),
}
_ANSWER_TOKENS = (16, 240)
_PROMPT_WORDS = (8, 60)
_CAP = 256


def _words(numbers: random.Random) -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(numbers.choices(letters, k=numbers.randint(3, 6))) for _ in range(400)]


WORDS = _words(random.Random(0))


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """Two cores as devices, with what was measured of them.

    Attributes:
        models: the models by their names.
    """

    models: Mapping[str, CoreModel]
    machine: PlanMachine

    def works(self, seed: int) -> Iterator[Work]:
        """Yield three applications of the models."""
        tokenizer = PromptTokenizer(self.models["small"].path)  # all have the same
        return local_works(seed, lambda text: len(tokenizer.encode((Segment(text),))))

    def run(self, work: Work, planner: str) -> Measured:
        """Plan the work with a planner of this name, and run it."""
        lengths = LengthsBySource({(name, ""): output_lengths({_CAP: 1.0}) for name in self.models})
        replanner = Replanner(work.app, self.machine, lengths, PLANNERS[planner])
        problem = Problem(work.app, [one.planned for one in work.requests], self.machine, lengths)
        with TemporaryDirectory() as name:
            return run_measured(work, replanner, core_replicas(problem, self.models), Path(name))


def measure_machine(folder: Path, max_s: float) -> LocalMachine:
    """Build the models, and measure their steps and starts.

    Args:
        max_s: seconds for the steps of each model.
    """
    cores = usable_cores()[:NUM_DEVICES]
    folders = {
        name: build_checkpoint(folder / name, [" ".join(WORDS)], shape=shape, seed=at, has_all_bytes=False)
        for at, (name, shape) in enumerate(SHAPES.items())
    }
    app = Application("all", [ModelNode(name, str(path), _CAP) for name, path in folders.items()])
    found = core_models(app)
    models = {name: found[str(path)] for name, path in folders.items()}
    costs = {name: measure_on_cores(one, cores, max_s) for name, one in models.items()}
    return LocalMachine(models, cores_machine(costs, len(cores)))


def local_works(seed: int, count: Callable[[str], int]) -> Iterator[Work]:
    """Yield three applications of the four models.

    Args:
        count: returns the number of tokens of a text.
    """
    numbers = random.Random(seed)
    names = list(SHAPES)
    nodes = [ModelNode(name, name, _CAP) for name in names]
    yield Work("ensemble", Application("ensemble", nodes), _requests(numbers, count, 48))
    counts = {"small": 150, "middle": 40, "deep": 60, "large": 30}
    routed = [
        one
        for name, num_requests in counts.items()
        for one in _requests(numbers, count, num_requests, f"{name} ", (name,))
    ]
    yield Work("routing", Application("routing", nodes), routed)
    judged = [
        *(ModelNode(name, name, _CAP) for name in names[:3]),
        ModelNode("large", "large", _CAP, inputs=("small", "deep")),
    ]
    yield Work("judged", Application("judged", judged), _requests(numbers, count, 48))


def _requests(
    numbers: random.Random,
    count: Callable[[str], int],
    num_requests: int,
    prefix: str = "",
    nodes: tuple[str, ...] = (),
) -> list[RunRequest]:
    """Return requests whose answers have lengths that are known: the models end nothing by themselves."""
    found = []
    for at in range(num_requests):
        text = " ".join(numbers.choices(WORDS, k=numbers.randint(*_PROMPT_WORDS)))
        num_output = numbers.randint(*_ANSWER_TOKENS)
        answers = dict.fromkeys(nodes or SHAPES, num_output)
        planned = AppRequest(f"{prefix}{at}", count(text), (), nodes, answers)
        decode = {"max_tokens": num_output, "ignore_eos": True}
        found.append(RunRequest(planned, (PromptMessage(None, text),), (), decode))
    return found
