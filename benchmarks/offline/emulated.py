"""Three applications on eight emulated A100s, each planned replica a server process, in real time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.offline.measured import Measured, Work, run_measured
from benchmarks.planner.applications import ENSEMBLE, ROUTED, chain_summary, ensemble, routing
from stretto.costs.presets import load_output_lengths
from stretto.graph.one_call import PromptMessage
from stretto.planner.application import Application, AppRequest
from stretto.planner.machine import machine_of
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.running.replanner import Replanner
from stretto.planner.running.replicas import emulated_replicas
from stretto.planner.running.run_request import RunRequest
from stretto.sim.synthetic_output import filler

MACHINE = "8xA100-80G"
_ENSEMBLE = ENSEMBLE[4:]
_ROUTED = tuple(name for name in ROUTED if "70b" not in name)


def works(seed: int) -> Iterator[Work]:
    """Yield the applications of the planners' benchmark, with fewer models and requests: a run of any planner
    takes less than three minutes.
    """
    yield with_texts("ensemble", *_among(ensemble(600, 256, seed), _ENSEMBLE), seed)
    yield with_texts("routing", *_among(routing(512, seed, 0.1), _ROUTED), seed)
    yield with_texts("chain summary", *short_chains(*chain_summary(40, 200, 2, seed)), seed)


def _among(
    given: tuple[Application, list[AppRequest]], names: Sequence[str]
) -> tuple[Application, list[AppRequest]]:
    """Return an application with these of its models, and the requests that are for one of them."""
    app, requests = given
    nodes = [node for node in app.nodes if node.name in names]
    return Application(app.name, nodes), [
        one for one in requests if not one.nodes or set(one.nodes).intersection(names)
    ]


def short_chains(app: Application, requests: list[AppRequest]) -> tuple[Application, list[AppRequest]]:
    """Return the application with documents of at most ten chunks, whose longest would else take minutes."""
    return app, [AppRequest(one.id, one.prompt_tokens, one.chunks[:10]) for one in requests]


def with_texts(name: str, app: Application, requests: list[AppRequest], seed: int) -> Work:
    """Return the application with requests that have texts, of as many tokens as planners count."""

    def text(what: str, num_tokens: int) -> str:
        return filler(f"{seed} {name} {what}", num_tokens)

    return Work(
        name,
        app,
        [
            RunRequest(
                one,
                (PromptMessage(None, text(one.id, one.prompt_tokens)),) if one.prompt_tokens else (),
                tuple(text(f"{one.id} {at}", tokens) for at, tokens in enumerate(one.chunks)),
            )
            for one in requests
        ],
    )


def run_emulated(work: Work, planner: str, speed: float) -> Measured:
    """Plan the work with a planner of this name, and run it; seconds are of real time."""
    machine, lengths = machine_of(MACHINE).with_chunked_prefill(), load_output_lengths()
    problem = Problem(work.app, [one.planned for one in work.requests], machine, lengths)
    replanner = Replanner(work.app, machine, lengths, PLANNERS[planner], speed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        return run_measured(work, replanner, emulated_replicas(problem, speed, folder), folder)
