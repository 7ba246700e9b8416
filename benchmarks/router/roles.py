"""When is it of use to compute prompts at other servers than answers? `python -m benchmarks.router.roles`

Simulates four servers of Llama-2-7b on an A100 behind the router, in virtual time: all of them mixed, or some
for prompts and the others for answers, with KV that takes its bytes over a network of 25 GB/s. Requests
arrive at random; each has a prompt of its own, or goes on with a conversation. Loads are the same for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

from stretto.emulate.kv_transfers import LINK_BYTES_S
from stretto.emulate.llm_plan import check_llm
from stretto.emulate.wanted import WantedServer
from stretto.model.profile import Profile
from stretto.router.config import RouterConfig
from stretto.router.roles import Role
from stretto.router.virtual_door import ServedTimes, serve_virtually
from stretto.router.worker_config import WorkerConfig
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.trace.agents.requests import After, AgentRequest, AgentTrace, SizedPrompt, checked_trace

FLEETS: dict[str, tuple[Role, ...]] = {
    "4 mixed": ("mixed",) * 4,
    "1 + 3": ("prefill", *("decode",) * 3),
    "2 + 2": (*("prefill",) * 2, *("decode",) * 2),
    "3 + 1": (*("prefill",) * 3, "decode"),
}
"""Roles of the servers: for prompts + for answers."""
_BLOCK_TOKENS = 16
_PAUSE_S = 2.0
_PROFILE = Profile(base_s=0.0, per_unit_s=7e-5, per_output_s=0.012, per_neighbour_s=1e-4)
"""Seconds that the router believes: those of the model, roughly."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that arrive at random.

    Attributes:
        rate: first requests of conversations in a second.
        num_turns: requests of a conversation, each of which goes on from the one before.
        prompt_tokens, output_tokens: mean numbers of tokens, of new text and of answers.
    """

    name: str
    rate: float
    prompt_tokens: int
    output_tokens: int
    num_turns: int = 1

    def trace(self, num_requests: int, seed: int) -> tuple[AgentTrace, dict[str, str]]:
        """Return so many requests, and the conversation of each by its id."""
        source, fresh = Random(seed), count(1)
        found: list[AgentRequest] = []
        programs: dict[str, str] = {}
        at_s = 0.0
        while len(found) < num_requests:
            at_s += source.expovariate(self.rate)
            blocks: list[int] = []
            after: tuple[After, ...] = ()
            for _ in range(self.num_turns):
                num_new = max(1, round(source.uniform(0.5, 1.5) * self.prompt_tokens / _BLOCK_TOKENS))
                blocks += [next(fresh) for _ in range(num_new)]
                output = max(2, round(source.uniform(0.5, 1.5) * self.output_tokens))
                prompt = SizedPrompt(len(blocks) * _BLOCK_TOKENS, tuple(blocks), _BLOCK_TOKENS)
                name = str(len(found))
                programs[name] = str(blocks[0])
                arrival_s = 0.0 if after else at_s
                found.append(AgentRequest(name, len(found), prompt, arrival_s, after, output))
                after = (After(name, source.expovariate(1 / _PAUSE_S)),)
        return checked_trace(Path(self.name), found), programs


LOADS = (
    Load("long prompts, short answers", 3.0, 4000, 60),
    Load("the same, faster", 6.0, 4000, 60),
    Load("prompts and answers alike", 8.0, 1000, 250),
    Load("short prompts, long answers", 8.0, 250, 500),
    Load("conversations of 6 turns", 2.0, 600, 120, 6),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of requests: their first tokens, a token after the first, and whole answers."""

    first_p50_s: float
    first_p95_s: float
    token_p50_s: float
    token_p95_s: float
    whole_p50_s: float
    hits: float


def simulate(load: Load, roles: Sequence[Role], num_requests: int, seed: int) -> Outcome:
    """Run a load through a router to servers of some roles. The first and last tenth do not count."""
    planned = check_llm(WantedServer(devices=(0,), model="llama-2-7b"), "A100-80G")
    trace, programs = load.trace(num_requests, seed)
    lengths = {one.id: one.output_tokens or 1 for one in trace.requests}
    output = filler_output(lengths_by_query(lengths))
    model = replace(planned.simulated, output_source=output, takes_hints=False)
    kv_tokens = model.scheduler.num_blocks * model.scheduler.block_tokens
    workers = tuple(
        WorkerConfig(url=f"http://worker-{number}", role=role, kv_tokens=kv_tokens, profile=_PROFILE)
        for number, role in enumerate(roles)
    )
    kv_token_s = planned.sizes.kv_bytes_per_token / LINK_BYTES_S
    times = serve_virtually(trace, RouterConfig(worker=workers), model, programs, kv_token_s)
    rest = max(1, len(times) // 10)
    return _outcome(list(times.values())[rest:-rest])


def _outcome(times: Sequence[ServedTimes]) -> Outcome:
    firsts, tokens, wholes = [], [], []
    for one in times:
        assert one.first_s is not None
        assert one.ended_s is not None
        firsts.append(one.first_s - one.due_s)
        tokens.append((one.ended_s - one.first_s) / (one.usage.num_output_tokens - 1))
        wholes.append(one.ended_s - one.due_s)
    prompts = sum(one.usage.num_prompt_tokens for one in times)
    cached = sum(one.usage.num_cached_tokens for one in times)
    (first, first_95), (token, token_95) = (np.percentile(each, (50, 95)) for each in (firsts, tokens))
    return Outcome(first, first_95, token, token_95, median(wholes), cached / prompts)


def main() -> None:
    """Print a table for each load."""
    parser = argparse.ArgumentParser(prog="benchmarks.router.roles", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    given = parser.parse_args()
    print("| load | servers | first token, p50 | p95 | a further token, p50 | p95 | answer, p50 | cached |")
    print("|---|---|---|---|---|---|---|---|")
    for load in LOADS:
        for name, roles in FLEETS.items():
            found = [simulate(load, roles, given.requests, seed) for seed in given.seeds]
            first, first_95, token, token_95, whole, hits = (
                median(getattr(one, field) for one in found) for field in Outcome.__slots__
            )
            print(
                f"| {load.name} | {name} | {first:.2f} s | {first_95:.2f} s | {1e3 * token:.0f} ms "
                f"| {1e3 * token_95:.0f} ms | {whole:.1f} s | {hits:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
