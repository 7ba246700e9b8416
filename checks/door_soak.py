"""Does a door stay as it is for as long as it runs: a soak with everything on, and faults.

    python -m checks.door_soak [--seconds S] [--clients N] [--seed N]

Runs three emulated workers, and `stretto serve` before them with an app, tenants and their keys, batches,
spans for a collector, lines of log, and somebody who reads its metrics and its live page. Clients ask in a
closed loop: chats that go on, streams, responses, completions, vectors, the app; some leave in mid-stream,
and some send bad bodies or no key of the door's. One tenant has one batch answered after the other. Now and
then a worker is killed and started anew.

Prints the door's memory and open files each minute, and what came of the requests. The exit code is 1 if a
request failed that no fault had met, or if memory or open files grew: the median of the last fifth of the
time is compared with that of the second fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.router.contestants import free_port
from benchmarks.watching.onlooker import onlooker
from checks.served import CLONE, Served
from checks.soak_batch import batch_end, end_of

MODEL = "llama-2-7b"
_BOOK = CLONE / "examples" / "documents" / "treasure-island-opening.txt"
_NUM_WORKERS = 3
_MAX_TURNS = 8
_SAMPLE_S = 5.0
_SAMPLES_TOLD = 12
"""Samples from one that is told to the next: a minute."""
_KILL_S = 25.0
"""Mean seconds between two kills of a worker."""
_DOWN_S = 5.0
_NEAR_S = 2.0
"""Seconds after a worker is up again in which the door may not know it yet."""
_MAX_GROWTH = 1.05
_MAX_MORE_FILES = 8
_KINDS = (
    "chat",
    "chat",
    "stream",
    "stream",
    "stream",
    "response",
    "text",
    "vector",
    "app",
    "leaves",
    "bad",
    "stranger",
)
_WITHOUT_WORKERS = frozenset(("vector", "bad", "stranger"))
"""Kinds of requests that no worker answers, so that none excuses their failures."""
_TENANTS = ("day", "evening", "night")
"""Tenants, whose keys are their names, doubled; the last one has batches."""
_BATCH_PAUSE_S = 20.0
_ADMIN = "STRETTO_SOAK_ADMIN_KEY"
_SETTINGS = f"""
[service]
admin_key_env = "{_ADMIN}"
""" + "".join(f'[[service.tenant]]\nname = "{name}"\nkeys = ["{name * 2}"]\n' for name in _TENANTS)
_BAD: tuple[bytes, ...] = (b"{", b"[]", b'{"model": "llama-2-7b"}', b'{"model": "none", "messages": []}')


@dataclass
class Soak:
    """The clients of a door, and what came of their requests.

    Attributes:
        ends: numbers of requests by their kind and their end.
        failures: what went wrong although no fault was near.
        faults_s: begin and end of each fault of a worker; the end is infinite while it lasts.
    """

    url: str
    until_s: float
    random: Random
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    faults_s: list[tuple[float, float]] = field(default_factory=list)

    async def client(self, number: int) -> None:
        """Ask until the end."""
        async with self._http(_TENANTS[number % len(_TENANTS)]) as http:
            messages: list[dict[str, str]] = []
            while time.monotonic() < self.until_s:
                kind = self.random.choice(_KINDS)
                begun_s = time.monotonic()
                try:
                    end = await self._ask(http, kind, messages, number)
                except httpx.HTTPError as error:
                    end = type(error).__name__
                self._note(kind, end, begun_s)
                await asyncio.sleep(self.random.random())

    async def batches(self) -> None:
        """Have one batch answered after the other, until the end."""
        async with self._http(_TENANTS[-1]) as http:
            for number in count():
                if time.monotonic() >= self.until_s:
                    return
                begun_s = time.monotonic()
                try:
                    end = await batch_end(http, MODEL, number, self.until_s)
                except httpx.HTTPError as error:
                    end = type(error).__name__
                if end:
                    self._note("batch", end, begun_s)
                await asyncio.sleep(_BATCH_PAUSE_S * self.random.random())

    def _http(self, tenant: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {tenant * 2}"}
        return httpx.AsyncClient(base_url=self.url, timeout=120, headers=headers)

    def _note(self, kind: str, end: str, begun_s: float) -> None:
        """Note how a request ended; it has failed if that was not to be, and no fault was near."""
        if end not in ("answered", "left", "refused"):
            if kind not in _WITHOUT_WORKERS and self._met_a_fault(begun_s, time.monotonic()):
                end = f"{end}, a worker was down"
            else:
                self.failures.append(f"{kind}: {end}")
        self.ends[kind, end] += 1

    async def _ask(
        self, http: httpx.AsyncClient, kind: str, messages: list[dict[str, str]], number: int
    ) -> str:
        """Send a request of a kind; return how it ended."""
        if len(messages) >= 2 * _MAX_TURNS:
            messages.clear()
        text = f"{number} {self.random.random()} " + "and so on " * self.random.randrange(100)
        limit = self.random.randrange(1, 40)
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": limit}
        match kind:
            case "vector":
                return end_of(
                    await http.post("/v1/embeddings", json={"model": "embedding", "input": text[:99]})
                )
            case "app":
                question = [{"role": "user", "content": "Who lived there?"}]
                app = {"model": "app:naive", "messages": question}
                return end_of(await http.post("/v1/chat/completions", json=app))
            case "bad":
                answer = await http.post("/v1/chat/completions", content=self.random.choice(_BAD))
                return "refused" if 400 <= answer.status_code < 500 else str(answer.status_code)
            case "stranger":
                body = {"model": MODEL, "prompt": text}
                answer = await http.post("/v1/completions", json=body, headers={"authorization": "Bearer x"})
                return "refused" if answer.status_code == 401 else str(answer.status_code)
            case "text":
                return end_of(await http.post("/v1/completions", json={**asked, "prompt": text}))
            case "response":
                one = {"model": MODEL, "input": text, "max_output_tokens": limit}
                return end_of(await http.post("/v1/responses", json=one))
        messages.append({"role": "user", "content": text})
        asked["messages"] = messages
        if kind == "chat":
            answer = await http.post("/v1/chat/completions", json=asked)
            messages.append({"role": "assistant", "content": answer.text[:200]})
            return end_of(answer)
        async with http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as answer:
            last = b""
            async for part in answer.aiter_bytes():
                last = (last + part)[-40:]
                if kind == "leaves" and self.random.random() < 0.2:
                    return "left"
            messages.append({"role": "assistant", "content": "It went on."})
            is_whole = answer.status_code == 200 and b"[DONE]" in last
            return "answered" if is_whole else f"{answer.status_code}, {last!r}"

    def _met_a_fault(self, begun_s: float, ended_s: float) -> bool:
        return any(begun_s < end_s + _NEAR_S and ended_s > at_s for at_s, end_s in self.faults_s)

    async def kill_workers(self, workers: list[Served]) -> None:
        """Kill a worker now and then, and start it anew."""
        while (now_s := time.monotonic()) < self.until_s - 2 * _DOWN_S:
            wait_s = min(self.random.expovariate(1 / _KILL_S), self.until_s - now_s)
            await asyncio.sleep(wait_s)
            worker = self.random.choice(workers)
            self.faults_s.append((time.monotonic(), float("inf")))
            worker.kill()
            await asyncio.sleep(_DOWN_S)
            await asyncio.to_thread(worker.start)
            self.faults_s[-1] = (self.faults_s[-1][0], time.monotonic())


async def _sample(door: Served, until_s: float) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    while time.monotonic() < until_s:
        await asyncio.sleep(_SAMPLE_S)
        found.append(door.sample())
        if len(found) % _SAMPLES_TOLD == 0:
            print("{:.0f} s: {:.1f} MB, {} open files".format(len(found) * _SAMPLE_S, *found[-1]), flush=True)
    return found


async def soak(door: Served, workers: list[Served], seconds: float, num_clients: int, seed: int) -> int:
    """Let clients ask for some seconds; print what came of it, and return the exit code."""
    one = Soak(door.url, time.monotonic() + seconds, Random(seed))
    clients = asyncio.gather(*map(one.client, range(num_clients)), one.batches())
    samples, *_ = await asyncio.gather(_sample(door, one.until_s), one.kill_workers(workers), clients)
    for (kind, end), number in sorted(one.ends.items()):
        print(f"{kind}: {end}: {number}")
    print(
        f"{one.ends.total()} requests, {len(one.faults_s)} kills, failed without a fault: {len(one.failures)}"
    )
    print(*one.failures[:20], sep="\n")
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    memory, files = [
        [statistics.median(sample[place] for sample in part) for part in (early, late)] for place in (0, 1)
    ]
    print("MB, then and at the end: {:.1f}, {:.1f}; open files: {:.0f}, {:.0f}".format(*memory, *files))
    is_flat = memory[1] <= _MAX_GROWTH * memory[0] and files[1] <= files[0] + _MAX_MORE_FILES
    return 0 if is_flat and not one.failures else 1


def main() -> int:
    """Run the check; return its exit code."""
    parser = argparse.ArgumentParser(prog="checks.door_soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="length of the load")
    parser.add_argument("--clients", type=int, default=16, help="clients that ask at once")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stretto-soak-")))

        def run(name: str, *command: str) -> Served:
            served = Served(folder / name, *command)
            stack.callback(served.kill)
            return served

        emulate = ("emulate", "--model", MODEL, "--loading-s", "0", "--port")
        workers = [run(f"worker-{n}", *emulate, str(free_port())) for n in range(_NUM_WORKERS)]
        port = free_port()
        os.environ[_ADMIN] = "the admin"
        collector = stack.enter_context(onlooker(port, looks=True, key=os.environ[_ADMIN]))
        (folder / "engines.toml").write_text(_SETTINGS)
        command = [
            "serve",
            "--engines",
            str(folder / "engines.toml"),
            "--port",
            str(port),
            "--app",
            "naive",
            "--docs",
            str(_BOOK),
            "--otel",
            collector,
        ]
        command += ["--state", str(folder / "state"), "--log-level", "info", "--log-format", "json"]
        command += [word for worker in workers for word in ("--worker", worker.url)]
        door = run("door", *command)
        return asyncio.run(soak(door, workers, given.seconds, given.clients, given.seed))


if __name__ == "__main__":
    sys.exit(main())
