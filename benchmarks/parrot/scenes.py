"""The scenes of the evaluation: figures of the paper, their loads, machines and contestants, and what it
says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.parrot.contestants import CAPACITIES, OURS, is_there

Quantity = Literal["mean_s", "per_token_s", "decode_s"]
CALL_LEVEL = ("latency", "throughput")
CACHED = ("static", "automatic")
PARTS = "3a call by its parts"


@dataclass(frozen=True, slots=True)
class Scene:
    """One load on one set of machines.

    Attributes:
        figure: the figure or section of the paper.
        load, settings: name of the load, and its settings.
        machine: name of the kind of machine.
        kinds: kinds of workflows.
    """

    figure: str
    name: str
    load: str
    settings: Mapping[str, Any]
    machine: str
    num_instances: int
    contestants: tuple[str, ...]
    kinds: tuple[str, ...]

    def present(self) -> list[str]:
        """Return the contestants whose policies exist."""
        return [name for name in self.contestants if is_there(name)]


@dataclass(frozen=True, slots=True)
class Claim:
    """A speed-up that the paper reports.

    Attributes:
        over: contestant that ours is compared with.
        paper: how many times better the paper's system is.
        scenes: scenes of the figure of which the best counts; all if empty.
    """

    figure: str
    over: str
    paper: float
    kind: str
    quantity: Quantity = "mean_s"
    ours: str = "stretto"
    scenes: tuple[str, ...] = ()


_CHAINS = ("latency", "automatic", *OURS)
_MAPS = (*CALL_LEVEL, "automatic", *OURS)
_COPILOT = ("throughput", *CACHED, "no kernel", *OURS)
_GPTS = ("throughput", *CACHED, "no affinity", "no kernel", *OURS)
_AGENTS = (*CALL_LEVEL, *CACHED, "no sharing", "no kernel", *OURS)


def _one(figure: str, app: str, name: str, contestants: tuple[str, ...], **settings: Any) -> Scene:
    return Scene(figure, name, "one_by_one", {"app": app, **settings}, "A100, 13B", 1, contestants, (app,))


def full_scenes() -> tuple[Scene, ...]:
    """Return all scenes of the paper's evaluation."""
    outputs, chunks = (25, 50, 75, 100), (512, 1024, 1536, 2048)
    return (
        *(_in_parts(num, 3) for num in (150, 1000, 2000, 4000)),
        *(_chats(rate) for rate in (0.5, 1.0, 1.5)),
        *(_one("11a chain", "chain", f"output {n}", _CHAINS, num_output=n) for n in outputs),
        *(_one("11b chain", "chain", f"chunk {n}", _CHAINS, chunk_tokens=n) for n in chunks),
        *(_in_chats(rate, 5) for rate in (0.0, 0.5, 1.0, 1.5, 2.0)),
        *(_at_once(num) for num in (10, 15, 20, 25)),
        *(_one("14a map-reduce", "map-reduce", f"output {n}", _MAPS, num_output=n) for n in outputs),
        *(_one("14b map-reduce", "map-reduce", f"chunk {n}", _MAPS, chunk_tokens=n) for n in chunks),
        *(_copilot(num) for num in (8, 16, 32, 64)),
        *(_gpts(rate, 200) for rate in (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16)),
        *(_agents(num) for num in (4, 8, 12, 16)),
        _mixed(40),
    )


def quick_scenes() -> tuple[Scene, ...]:
    """Return a few scenes, each smaller than the paper's."""
    return (
        _one("11a chain", "chain", "output 50", _CHAINS, num=2),
        _at_once(6),
        _one("14a map-reduce", "map-reduce", "output 50", _MAPS, num=3),
        _copilot(16),
        *(_gpts(rate, 40) for rate in (1, 4)),
        _agents(4),
        _mixed(10),
    )


def _chats(rate_per_s: float) -> Scene:
    names, settings = tuple(one.name for one in CAPACITIES), {"rate_per_s": rate_per_s}
    return Scene("10 capacity", f"{rate_per_s:g}/s", "chats", settings, "A100, 13B", 1, names, ("chat",))


def _in_parts(prompt_tokens: int, num: int) -> Scene:
    settings = {"prompt_tokens": prompt_tokens, "rate_per_s": 1.0, "num": num}
    name, contestants = f"prompt {prompt_tokens}", ("latency", "stretto")
    return Scene(PARTS, name, "chains_in_parts", settings, "A100, 13B", 1, contestants, ("chain", "chat"))


def _in_chats(rate_per_s: float, num: int) -> Scene:
    settings = {"rate_per_s": rate_per_s, "num": num}
    name = f"{rate_per_s:g} chats/s"
    kinds = ("chain", "chat") if rate_per_s else ("chain",)
    return Scene("12a chain beside chats", name, "chain_in_chats", settings, "A100, 13B", 1, _CHAINS, kinds)


def _at_once(num: int) -> Scene:
    name, settings = f"{num} apps", {"num": num}
    return Scene("12b chains at once", name, "chains_at_once", settings, "A100, 13B", 1, _CHAINS, ("chain",))


def _copilot(num: int) -> Scene:
    name, settings = f"batch {num}", {"num": num}
    return Scene("15 search chat", name, "copilot", settings, "A100, 7B", 1, _COPILOT, ("search chat",))


def _gpts(rate_per_s: float, num: int) -> Scene:
    settings = {"rate_per_s": rate_per_s, "num": num}
    return Scene("17 GPTs", f"{rate_per_s:g}/s", "gpts", settings, "A6000, 7B", 4, _GPTS, ("GPTs",))


def _agents(num: int) -> Scene:
    name, settings = f"{num} files", {"num_files": num}
    return Scene("18 agents", name, "agents", settings, "A100, 13B", 1, _AGENTS, ("coding",))


def _mixed(num: int) -> Scene:
    kinds = ("chat", "map-reduce")
    return Scene("19 mixed", f"{num} apps", "mixed", {"num": num}, "A6000, 7B", 4, _MAPS, kinds)


_LATENCY, _THROUGHPUT = CALL_LEVEL
CLAIMS = (
    Claim("11a chain", _LATENCY, 1.38, "chain"),
    Claim("11b chain", _LATENCY, 1.2, "chain"),
    Claim("12a chain beside chats", _LATENCY, 2.38, "chain"),
    Claim("12b chains at once", _LATENCY, 1.68, "chain"),
    Claim("14a map-reduce", _LATENCY, 2.37, "map-reduce"),
    Claim("14b map-reduce", _LATENCY, 2.37, "map-reduce"),
    Claim("15 search chat", _THROUGHPUT, 1.8, "search chat", scenes=("batch 8",)),
    Claim("15 search chat", _THROUGHPUT, 2.4, "search chat", scenes=("batch 16",)),
    Claim("15 search chat", "static", 1.7, "search chat"),
    Claim("15 search chat", "static", 1.58, "search chat", "per_token_s", scenes=("batch 32",)),
    Claim("15 search chat", "static", 1.84, "search chat", "per_token_s", scenes=("batch 64",)),
    Claim("18 agents", _LATENCY, 11.7, "coding"),
    Claim("18 agents", _THROUGHPUT, 2.45, "coding"),
    Claim("18 agents", "no sharing", 2.35, "coding"),
    Claim("18 agents", "no kernel", 1.2, "coding"),
    Claim("19 mixed", _LATENCY, 5.5, "chat", "per_token_s"),
    Claim("19 mixed", _THROUGHPUT, 1.23, "chat", "per_token_s"),
    Claim("19 mixed", _THROUGHPUT, 1.72, "chat", "decode_s"),
    Claim("19 mixed", _LATENCY, 3.7, "map-reduce"),
    Claim("19 mixed", _THROUGHPUT, 1.05, "map-reduce"),
)
"""What the paper says of its own system, next to its baselines."""

RATE_CLAIMS = (
    ("throughput", 12.0),
    ("no affinity", 4.0),
    ("no kernel", 2.4),
)
"""How many times the rate of these contestants the paper's system sustains with "GPTs". It sustains 12 times
the baseline's rate, and 3 times without affinity.
"""
