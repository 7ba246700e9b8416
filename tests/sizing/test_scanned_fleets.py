"""The cheapest fleet that the search finds, beside a scan of all fleets, each simulated."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from stretto.costs.shape import StepShape
from stretto.sizing.answer import answers
from stretto.sizing.asked import parse_servers
from stretto.sizing.fleets import place_by_price
from stretto.sizing.load import Load
from stretto.sizing.objectives import parse_objectives
from stretto.sizing.sources import read_traffic
from stretto.sizing.study import Study
from stretto.sizing.traffic import Traffic
from stretto.sizing.traffic_of_trace import traffic_of
from stretto.sizing.trial import TriedFleet


@dataclass(frozen=True)
class SlowCost:
    """Steps of a slow server: seconds of each, and more for each token that is computed."""

    base_s: float
    token_s: float

    def step_s(self, shape: StepShape) -> float:
        return self.base_s + self.token_s * (shape.prefill_tokens + 30 * shape.num_decodes)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        return num_repeats * self.step_s(shape)


KINDS = tuple(
    replace(server, cost=SlowCost(base_s, token_s), kv_tokens=kv_tokens)
    for server, base_s, token_s, kv_tokens in zip(
        parse_servers("A100,L40S,RTX-4090", "Llama-2-7b-hf"),
        (0.1, 0.12, 0.15),
        (3e-4, 6e-4, 9e-4),
        (30_000, 20_000, 15_000),
        strict=True,
    )
)
MOST = 3
"""Servers of a fleet, at most."""


def sessions(path: Path, draw: Random) -> Traffic:
    """Sessions of a few turns, whose prompts grow."""
    num_turns, blocks, output = draw.randint(1, 4), draw.randint(1, 3), draw.choice([10, 20, 40])
    lines = [
        {
            "session_id": f"s{number}",
            "input_length": 512 * blocks * (turn + 1),
            "output_length": output,
            "hash_ids": list(range(100 * number, 100 * number + blocks * (turn + 1))),
            **({"delay": draw.choice([0, 3000])} if turn else {"timestamp": 700 * number}),
        }
        for number in range(6)
        for turn in range(num_turns)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return traffic_of(read_traffic(path))


def check_case(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compare the search with the scan; return whether a fleet serves the load."""
    draw = Random(seed)
    kinds = draw.sample(KINDS, draw.choice([2, 2, 3]))
    prices = [round(draw.uniform(1, 2) * server.kv_tokens / 15_000, 2) for server in kinds]
    traffic = sessions(folder / f"{seed}.jsonl", draw)
    objectives = parse_objectives(draw.choice(["p90 per_token 250ms", "p90 first_token 3s", "mean job 30s"]))
    study = Study(traffic, objectives, "sessions", draws=1, num_samples=40)
    monkeypatch.setattr("stretto.sizing.answer.MOST_SERVERS", MOST)
    (*_, first) = answers(study, kinds, None, None, with_variants=False)
    capacities = [one.capacity.middle for one in first.alone]
    wanted = Load("sessions", max(1, round(draw.uniform(0.8, 2.2) * max(capacities))))
    (*_, answer) = answers(study, kinds, wanted, prices, with_variants=False)
    counts = (one for one in itertools.product(range(MOST + 1), repeat=len(kinds)) if 1 <= sum(one) <= MOST)
    cheapest = None
    for one in sorted(counts, key=lambda one: place_by_price(one, prices)):
        fleet = TriedFleet(tuple(pair for pair in zip(kinds, one, strict=True) if pair[1]))
        if study.serves(fleet, wanted):
            cheapest = fleet, place_by_price(one, prices)[0]
            break
    assert answer.fleets.best == cheapest, f"seed {seed}"
    assert answer.fleets.is_over
    assert not answer.fleets.num_left
    return cheapest is not None


@pytest.mark.long
def test_the_cheapest_fleets_of_twenty_cases_are_those_of_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = [check_case(seed, tmp_path, monkeypatch) for seed in range(20)]
    assert sum(served) >= 12
