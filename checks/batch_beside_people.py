"""Do people wait for a batch, in real time: `python -m checks.batch_beside_people [--speed S] [--seconds S]`.

Runs two emulated servers of Llama-2-7b on A100s, and `stretto serve` before them. People ask again as soon as
they are answered: alone, then beside a batch that was uploaded as a file of 20,000 lines, then alone again
after it was cancelled. In between the batch has the servers for itself.

Prints how much longer people's requests take beside the batch (goal: 1.1 times at the 95th percentile), and
its lines a second over those of the best fixed rule in virtual time (goal: 0.9), which is what people leave.
The exit code is 1 if a goal is missed, and 2 if the servers were late by more than 5 % of the time in which
clients waited: this machine was then too slow for `--speed`, and the figures do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.batches.benchmark import LEAST, LONGEST, compared
from benchmarks.batches.simulated import Load
from benchmarks.router.contestants import free_port
from checks.door_soak import MODEL
from checks.served import Served
from stretto.trace.summary import quantile
from stretto.wire.metric_table import LATE_S, WAITED_S
from stretto.wire.metrics import read_samples

_PATH = "/v1/completions"
_SERVERS = 2
_MAX_LAG = 0.05
_CHARS = 4
"""Characters of a token at emulated servers."""
_WARM_S = 12.0
"""Emulated seconds that do not count after people or the batch have begun."""


class Door:
    """A service before emulated servers, as its people and the owner of a batch see it."""

    def __init__(self, url: str, workers: Sequence[str], load: Load, seed: int) -> None:
        self._url, self._workers, self._load = url, workers, load
        self._random = Random(seed)

    async def people(self, seconds: float, http: httpx.AsyncClient) -> list[float]:
        """Let people ask; return the seconds of the requests that began after the first ones."""
        from_s = time.monotonic() + _WARM_S / self._load.speed
        found: list[float] = []

        async def ask() -> None:
            while (begun_s := time.monotonic()) < from_s + seconds:
                prompt = self._text(self._random.randint(*self._load.prompt))
                await self._post(http, _PATH, _body(prompt, self._random.randint(*self._load.output)))
                if begun_s >= from_s:
                    found.append(time.monotonic() - begun_s)

        await asyncio.gather(*(ask() for _ in range(self._load.people)))
        return sorted(found)

    async def begin_batch(self, num_lines: int, http: httpx.AsyncClient) -> str:
        """Upload a file and have it answered; return the batch's id."""
        text = "".join(
            json.dumps({"custom_id": str(number), "method": "POST", "url": _PATH, "body": body}) + "\n"
            for number in range(num_lines)
            for body in [_body(f"{number} {self._text(self._load.line_prompt)}", self._load.line_output)]
        )
        files = {"file": ("in.jsonl", text.encode())}
        sent = (await self._post(http, "/v1/files", data={"purpose": "batch"}, files=files))["id"]
        asked = {"input_file_id": sent, "endpoint": _PATH, "completion_window": "24h"}
        return str((await self._post(http, "/v1/batches", asked))["id"])

    async def num_lines(self, batch: str, http: httpx.AsyncClient) -> int:
        """Return how many lines of a batch are answered.

        Raises:
            SystemExit: some have failed.
        """
        answer = await http.get(f"{self._url}/v1/batches/{batch}")
        counts = answer.raise_for_status().json()["request_counts"]
        if counts["failed"]:
            raise SystemExit(f"lines of the batch have failed: {counts}")
        return int(counts["completed"])

    async def cancel(self, batch: str, http: httpx.AsyncClient) -> None:
        """Cancel a batch."""
        await self._post(http, f"/v1/batches/{batch}/cancel", {})

    async def late_and_waited(self, http: httpx.AsyncClient) -> tuple[float, float]:
        """Return the seconds by which parts of answers came late at the servers so far, and those for which
        clients waited for them.
        """
        found = {LATE_S.name: 0.0, WAITED_S.name: 0.0}
        answer = await http.get(f"{self._workers[0]}/metrics")  # the same of both, which are one process
        for sample in read_samples(answer.text, found):
            found[sample.name] = sample.value
        return found[LATE_S.name], found[WAITED_S.name]

    async def _post(self, http: httpx.AsyncClient, path: str, body: Any = None, **more: Any) -> Any:
        answer = await http.post(f"{self._url}{path}", json=body, **more)
        return answer.raise_for_status().json()

    def _text(self, num_tokens: int) -> str:
        num = num_tokens * _CHARS // 5
        return " ".join(f"{self._random.randrange(10_000):04}" for _ in range(num))


def _body(prompt: str, num_tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}


async def measure(door: Door, load: Load, num_lines: int, seconds: float) -> dict[str, float]:
    """Measure people alone, beside the batch and alone again, and the batch without them."""
    async with httpx.AsyncClient(timeout=600) as http:
        late_s, waited_s = await door.late_and_waited(http)
        alone = await door.people(seconds / 2, http)
        batch = await door.begin_batch(num_lines, http)

        async def lines_per_s(begin_s: float, seconds: float) -> float:
            await asyncio.sleep(begin_s)
            before, from_s = await door.num_lines(batch, http), time.monotonic()
            await asyncio.sleep(seconds)
            return (await door.num_lines(batch, http) - before) / (time.monotonic() - from_s)

        warm_s = _WARM_S / load.speed
        beside, lines = await asyncio.gather(door.people(seconds, http), lines_per_s(warm_s, seconds))
        lines_alone = await lines_per_s(warm_s, seconds / 4)
        await door.cancel(batch, http)
        alone = sorted(alone + await door.people(seconds / 2, http))
        late_now_s, waited_now_s = await door.late_and_waited(http)
    return {
        "lag": (late_now_s - late_s) / max(1e-9, waited_now_s - waited_s),
        "people alone": len(alone),
        "people beside": len(beside),
        "p50 alone": quantile(alone, 0.5),
        "p50 beside": quantile(beside, 0.5),
        "p95 alone": quantile(alone, 0.95),
        "p95 beside": quantile(beside, 0.95),
        "lines/s beside": lines,
        "lines/s without people": lines_alone,
    }


def main() -> int:
    """Run the check and print what came of it; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--lines", type=int, default=20_000, help="lines of the batch")
    parser.add_argument("--speed", type=float, default=0.25, help="emulated seconds per real second")
    parser.add_argument("--seconds", type=float, default=120.0, help="real seconds beside the batch")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load = Load(given.people, _SERVERS, speed=given.speed)
    virtual = compared(Load(given.people, _SERVERS), given.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stretto-batch-")))

        def run(name: str, *command: str) -> Served:
            served = Served(folder / f"{name}.log", *command)
            stack.callback(served.kill)
            return served

        port = free_port()
        emulate = ("emulate", "--model", MODEL, "--loading-s", "0", "--speed", str(given.speed))
        run("workers", *emulate, "--replicas", str(_SERVERS), "--port", str(port))
        workers = [f"http://127.0.0.1:{port + number}" for number in range(_SERVERS)]
        command = ["serve", "--port", str(free_port()), "--state", str(folder / "state")]
        door = run("door", *command, *(word for url in workers for word in ("--worker", url)))
        found = asyncio.run(
            measure(Door(door.url, workers, load, given.seed), load, given.lines, given.seconds)
        )
    times = found["p95 beside"] / found["p95 alone"]
    share = found["lines/s beside"] / (virtual["best_lines_per_s"] * given.speed)
    print(*(f"{name}: {value:.3f}" for name, value in found.items()), sep="\n")
    print(f"in virtual time: p95 {virtual['p95_times']:.3f} times, {virtual['of_best']:.3f} of the best rule")
    print(f"p95 beside the batch over alone: {times:.3f} (goal {LONGEST})")
    print(f"lines a second over the best fixed rule's: {share:.3f} (goal {LEAST})")
    if found["lag"] > _MAX_LAG:
        print(f"the servers were late: {found['lag']:.3f} of the time; try a lower --speed")
        return 2
    return 0 if times <= LONGEST and share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
