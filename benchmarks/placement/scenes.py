"""What is simulated: workloads, arrivals and instances, in the groups of the Preble paper's evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.placement.machines import machine
from benchmarks.placement.simulated import Instances
from benchmarks.placement.workloads import Request, make_requests, poisson_s
from stretto.sim.traces import read_azure

Group = Literal[
    "workloads", "Azure mixture", "unlike GPUs", "a straggler", "no sharing", "no chunked prefill", "ablation"
]
POLICIES = (
    *("round_robin", "least_loaded", "prefix_threshold", "loadaware", "kv_cost", "lmetric", "scorers"),
    *("e2", "oracle_partition", "stretto"),
)
ORACLES = ("oracle by load", "oracle")
"""Partitions of all prefixes: into parts of equal load, or of as many key portions each, as in the paper."""
ABLATION = (*ORACLES, "e2 alone", "with load adjustment", "with prefill balancing", "with priority groups")
"""Steps of the paper's ablation, after a harder baseline; each adds one mechanism to the one before."""
_ARRIVALS_SCALE = 0.7


@dataclass(frozen=True, slots=True)
class Scene:
    """One workload on some instances; it is simulated for several seeds and policies.

    Attributes:
        num: number of requests.
        rate_per_s: requests a second for each instance; 0 takes the arrivals of Azure's traces.
        machines: kinds of the instances.
        zipf: exponent of the popularity of groups; None for the workload's own.
        slowness: factor by which the first instance is slower than its kind.
        contestants: the policies, or steps of the ablation.
    """

    group: Group
    workload: str
    num: int
    rate_per_s: float
    machines: tuple[str, ...]
    zipf: float | None = None
    slowness: float = 1.0
    step_policy: str = "chunked"
    contestants: tuple[str, ...] = POLICIES

    @property
    def name(self) -> str:
        """What is simulated, in words."""
        kinds = " + ".join(
            f"{self.machines.count(kind)} x {machine(kind).name}" for kind in dict.fromkeys(self.machines)
        )
        total_per_s = self.rate_per_s * len(self.machines)
        return f"{self.workload}, {f'{total_per_s:g}/s' if total_per_s else 'as they came'}, {kinds}"

    def instances(self, num_groups: int = 10) -> Instances:
        """Return the instances of the scene."""
        slowness = {} if self.slowness == 1.0 else {0: self.slowness}
        return Instances([machine(kind) for kind in self.machines], slowness, self.step_policy, num_groups)

    def requests(self, seed: int, data: Path | None) -> tuple[list[Request], list[float]]:
        """Return the requests of a seed and their times of arrival in seconds."""
        if self.group == "Azure mixture":
            assert data is not None, "Azure's traces are in the folder of data"
            return _azure_mixture(self.num, seed, data)
        if self.group == "no sharing":
            requests = _unshared(make_requests(self.workload, self.num, seed, data))
        else:
            requests = make_requests(self.workload, self.num, seed, data, self.zipf)
        return requests, poisson_s(self.num, self.rate_per_s * len(self.machines), seed)


def _unshared(requests: Sequence[Request]) -> list[Request]:
    """Return requests of the same lengths whose prompts differ from the first block on."""
    made = []
    for number, request in enumerate(requests):
        mark = f"[{number:08}]".encode()
        made.append(Request((mark + request.text[len(mark) :],), request.output_tokens, number))
    return made


def _azure_mixture(num: int, seed: int, data: Path) -> tuple[list[Request], list[float]]:
    """Return requests at the times of Azure's: tools where code came, videos where conversations came.

    Times are 0.7 times those of the traces. Each seed begins elsewhere.

    Source: Preble §5.3, Azure trace and mixed workloads.
    """
    files = {"toolbench": "azure_llm_2023_code.csv", "video": "azure_llm_2023_conv.csv"}
    arrivals = sorted(
        (one.arrival_s, name) for name, file in files.items() for one in read_azure(data / "traces" / file)
    )
    start = (200 + 1000 * seed) % (len(arrivals) - num)
    taken = arrivals[start : start + num]
    made = {
        name: iter(make_requests(name, max(20, sum(kind == name for _, kind in taken)), seed, data))
        for name in files
    }
    begun_s = taken[0][0]
    times_s = [_ARRIVALS_SCALE * (at_s - begun_s) for at_s, _ in taken]
    return [next(made[name]) for _, name in taken], times_s


_RATES: Mapping[str, tuple[float, float, float]] = {
    "toolbench": (6.0, 12.0, 16.0),
    "embodied": (4.0, 7.5, 10.0),
    "programming": (0.5, 1.0, 1.5),
    "video": (0.6, 1.25, 1.8),
    "document": (0.2, 0.4, 0.55),
}
"""Requests a second for each A6000: a light load, a heavy one, and one near saturation."""
_NUM: Mapping[str, int] = {
    "toolbench": 300,
    "embodied": 300,
    "programming": 120,
    "video": 150,
    "document": 50,
}
"""Requests for each instance."""
_MOST_REQUESTS = 1200
_TP4_SPEED = 2.0
"""Requests a second of four H100 with Llama-3-70B over those of an A6000 with Mistral-7B."""
_FIGURE_9 = ("round_robin", "e2", "oracle_partition", "stretto")


def full_scenes(with_azure: bool) -> Iterator[Scene]:
    """Yield all scenes."""
    for workload, rates in _RATES.items():
        for num_instances, chosen in ((2, rates[1:2]), (4, rates), (8, rates[1:2])):
            for rate_per_s in chosen:
                yield _scene("workloads", workload, rate_per_s, ("A6000",) * num_instances)
        for rate_per_s in rates[1:]:
            yield _scene("workloads", workload, _TP4_SPEED * rate_per_s, ("4xH100",) * 2)
    if with_azure:
        yield Scene("Azure mixture", "tools and videos", 1000, 0.0, ("A6000",) * 4)
    for workload in ("toolbench", "video"):
        rate_per_s = _RATES[workload][1]
        yield _scene("unlike GPUs", workload, 1.5 * rate_per_s, ("A6000", "A6000", "A100", "A100"))
        yield _scene("a straggler", workload, 0.75 * rate_per_s, ("A6000",) * 4, slowness=3.0)
    for rate_per_s in (1.5, 2.5):
        yield _scene("no sharing", "toolbench", rate_per_s, ("A6000",) * 4)
    for rate_per_s in _RATES["video"]:
        yield _scene(
            "no chunked prefill",
            "video",
            rate_per_s,
            ("A6000",) * 2,
            step_policy="prefill_first",
            contestants=_FIGURE_9,
        )
    for rate_per_s in _RATES["toolbench"][1:]:
        yield _scene("ablation", "toolbench", rate_per_s, ("A6000",) * 4, zipf=1.1, contestants=ABLATION)


def quick_scenes() -> Iterator[Scene]:
    """Yield a few small scenes, of each group but Azure's."""
    few = ("round_robin", "least_loaded", "lmetric", "e2", "stretto")
    pair = ("A6000",) * 2
    yield Scene("workloads", "toolbench", 150, 8.0, pair, contestants=few)
    yield Scene("no sharing", "toolbench", 60, 1.5, pair, contestants=few)
    yield Scene(
        "no chunked prefill", "video", 80, 1.0, pair, step_policy="prefill_first", contestants=_FIGURE_9
    )
    yield Scene("ablation", "toolbench", 100, 8.0, pair, zipf=1.1, contestants=ABLATION)


def _scene(
    group: Group,
    workload: str,
    rate_per_s: float,
    machines: tuple[str, ...],
    *,
    zipf: float | None = None,
    slowness: float = 1.0,
    step_policy: str = "chunked",
    contestants: tuple[str, ...] = POLICIES,
) -> Scene:
    num = min(_MOST_REQUESTS, _NUM[workload] * len(machines))
    return Scene(group, workload, num, rate_per_s, machines, zipf, slowness, step_policy, contestants)
