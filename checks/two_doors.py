"""Are tenants and programs served before two doors as before one: `python -m checks.two_doors [--seconds S]`.

Runs two emulated workers, a router before them, and two more that tell each other what they send there. Two
tenants, one with thrice the clients of the other, ask for as much as they can:

shares     what each tenant gets: through one door, each at a door of its own, the greedy one at both, and
           both at both
room       agents whose prompts grow until the workers' KV memory cannot hold all of them, each request at the
           other door: what is found in caches, and tokens a second, beside all of it through one door

Of each it also says how much processor time a request took of the doors that it asks, together.

The exit code is 1 if the smaller tenant gets more than 10 % less through two doors than through one, or if
two doors find or serve more than 10 % less than one. Times are real ones: on a busy machine emulated workers
are late.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

import httpx

from benchmarks.router.contestants import free_port
from checks.door_soak import MODEL
from checks.served import Served

_WITHIN = 0.1
_NUM_SLOTS = 8
_CLIENTS = {"greedy": 36, "modest": 12}
_NUM_AGENTS = 24
_WARM_S = 8.0
"""Seconds that do not count."""
_MOST_CHARS = 12_000
"""Length at which an agent begins anew, below what the model takes."""
_WORDS = ("harbour", "lantern", "seven", "quietly", "river", "copper", "window", "north")
_WORKERS = (
    *("emulate", "--model", MODEL, "--replicas", "2", "--loading-s", "0"),
    *("--gpu-memory-utilization", "0.3", "--max-num-seqs", str(_NUM_SLOTS)),
)


@dataclass
class Got:
    """What some clients have got: tokens after the first seconds, and the number of all answers."""

    num_answers: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0


class Clients:
    """Clients of some doors, for a while.

    Args:
        seconds: time for which they ask, from `_WARM_S` after the first answer on.
    """

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._from_s = self._until_s = math.inf
        self._random = Random(seed)

    async def ask(self, tenant: str, urls: Sequence[str], got: Got, agent: str = "") -> None:
        """Ask one request after the other, at each of the doors in turn. An agent's prompts grow."""
        text = self._words(900 if agent else 60)
        headers = {"authorization": f"Bearer {tenant}"} | ({"x-stretto-program": agent} if agent else {})
        async with httpx.AsyncClient(timeout=120, headers=headers) as http:
            for url in cycle(urls):
                if time.monotonic() >= self._until_s:
                    return
                body = {"model": MODEL, "prompt": text, "max_tokens": 40, "ignore_eos": True}
                answer = await http.post(f"{url}/v1/completions", json=body)
                answer.raise_for_status()
                got.num_answers += 1
                if self._from_s == math.inf:
                    self._from_s = time.monotonic() + _WARM_S
                    self._until_s = self._from_s + self._seconds
                if self._from_s <= time.monotonic() < self._until_s:
                    usage = answer.json()["usage"]
                    got.prompt += usage["prompt_tokens"]
                    got.generated += usage["completion_tokens"]
                    got.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                text = f"{text} {self._words(120)}" if agent and len(text) < _MOST_CHARS else self._words(60)

    def _words(self, num: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=num))


async def shares(
    doors: Mapping[str, Sequence[str]], seconds: float, seed: int
) -> tuple[dict[str, float], int]:
    """Return the share of each tenant in the tokens that were generated, given the doors that it asks, and
    how many requests were answered.
    """
    clients, got = Clients(seconds, seed), {tenant: Got() for tenant in doors}
    async with asyncio.TaskGroup() as group:
        for tenant, urls in doors.items():
            for number in range(_CLIENTS[tenant]):
                turned = [*urls[number % len(urls) :], *urls[: number % len(urls)]]
                group.create_task(clients.ask(tenant, turned, got[tenant]))
    total = max(1, sum(one.generated for one in got.values()))
    parts = {tenant: one.generated / total for tenant, one in got.items()}
    return parts, sum(one.num_answers for one in got.values())


async def room(urls: Sequence[str], seconds: float, seed: int) -> tuple[float, float, int]:
    """Return which share of the prompts of agents was found in caches, their tokens a second, and how many
    requests were answered.
    """
    clients, got = Clients(seconds, seed), Got()
    async with asyncio.TaskGroup() as group:
        for number in range(_NUM_AGENTS):
            group.create_task(clients.ask("greedy", urls, got, f"agent-{seed}-{len(urls)}-{number}"))
    return got.cached / max(1, got.prompt), got.generated / seconds, got.num_answers


def _each_ms(seconds: float, num: int) -> str:
    return f"{1000 * seconds / max(1, num):.2f} ms of processor time a request"


def main() -> int:
    """Run the check and print what came of it; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each measurement")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stretto-doors-")))

        def run(name: str, *command: str) -> Served:
            served = Served(folder / f"{name}.log", *command)
            stack.callback(served.kill)
            return served

        port = free_port()
        run("workers", *_WORKERS, "--port", str(port))
        text = "".join(
            f'[[router.worker]]\nurl = "http://127.0.0.1:{port + number}"\nnum_slots = {_NUM_SLOTS}\n'
            for number in range(2)
        )
        (folder / "router.toml").write_text(text)
        route = ("route", "--config", str(folder / "router.toml"), "--port")
        peers = [f"ipc://{folder}/{name}" for name in "ab"]
        started = [
            run("one", *route, str(free_port())),
            run("a", *route, str(free_port()), "--announce", peers[0], "--peer", peers[1]),
            run("b", *route, str(free_port()), "--announce", peers[1], "--peer", peers[0]),
        ]
        one, *two = [door.url for door in started]

        def processor_s(*urls: str) -> float:
            return sum(door.processor_s() for door in started if door.url in urls)

        is_well, alone = True, 0.0
        for name, doors in (
            ("one door", {"greedy": [one], "modest": [one]}),
            ("a door each", {"greedy": two[:1], "modest": two[1:]}),
            ("the greedy one at both", {"greedy": two, "modest": two[1:]}),
            ("both at both", {"greedy": two, "modest": two}),
        ):
            asked = {url for urls in doors.values() for url in urls}
            before_s = processor_s(*asked)
            found, num = asyncio.run(shares(doors, given.seconds, given.seed))
            alone = alone or found["modest"]
            is_well &= found["modest"] >= alone * (1 - _WITHIN)
            parts = ", ".join(f"{who} {part:.3f}" for who, part in found.items())
            print(f"shares, {name}: {parts}, {_each_ms(processor_s(*asked) - before_s, num)}", flush=True)
        rooms = []
        for name, urls in (("one door", [one]), ("two doors", two)):
            before_s = processor_s(*urls)
            hits, rate, num = asyncio.run(room(urls, given.seconds, given.seed))
            rooms.append((hits, rate))
            cost = _each_ms(processor_s(*urls) - before_s, num)
            print(f"room, {name}: {hits:.3f} of prompts cached, {rate:.0f} tokens/s, {cost}", flush=True)
        is_well &= all(two >= one * (1 - _WITHIN) for one, two in zip(*rooms, strict=True))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
