"""Does one door serve a mixture of unmodified programs, with the answers of a single server, and how fast?

    python -m checks.door_mixture [--servers N] [--arms] [--seeds N] [--json FILE]

Chats of the client `openai`, retrieval by LangGraph, agents of the OpenAI Agents SDK with a tool, and offline
work of Stretto's library come to `stretto serve` before emulated servers. Offline work comes at once, all
else within seconds. Emulated servers answer a prompt with the same text wherever it runs, so that all answers
must equal those of one such server alone. With `--arms`, `stretto route` and the routers by others that are
installed (`make router-env`) get the same mixture by turns, at a load under which servers are busy.

Prints for each arm and kind of program the mean and the 95th percentile of their seconds, and the mean
slowdown: the seconds over those of such programs on an idle server. Exit code 1 if an answer differs or a
program fails.

Clients run in the environments of `checks/openai_clients_check.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.request import urlopen

from benchmarks.door.arms import Arm, arms, before
from benchmarks.report import commit
from checks.mixture_programs import HEAD, KINDS, REPLIES, Kind
from checks.openai_clients_check import EXAMPLES, LIMIT_S, install, running
from stretto.trace.summary import quantile

_MODEL = "llama-2-7b"
_SERVE = "stretto serve"
_MAX_LAG = 0.05


@dataclass(frozen=True)
class Load:
    """How many programs come, and within how many seconds those that are not offline do.

    Attributes:
        agents: number of agents; there are as many of each other kind as its weight says.
        num_apis: 1 if agents ask by chat alone, 2 if also by responses, which not all routers pass on as they
            come.
    """

    agents: int
    within_s: float
    seed: int
    num_apis: int

    def words(self, kind: Kind) -> list[str]:
        """Return the arguments of the programs of a kind."""
        return [str(self.agents * kind.weight), str(self.within_s), str(self.seed), str(self.num_apis)]


_ALONE = ["5", "10", "0", "1"]
"""Arguments of a few programs that hardly meet."""


def run(name: str, url: str, words: Sequence[str], work: Path) -> list[tuple[Any, float]]:
    """Run the programs of a kind against a server; return each one's answer and seconds.

    Raises:
        SystemExit: one fails.
    """
    kind = KINDS[name]
    python = str(install(kind.client, EXAMPLES[kind.client].packages)) if kind.client else sys.executable
    path = work / f"program_{name}.py"
    path.write_text(HEAD + kind.program, "utf-8")
    variables = {one: value for one, value in os.environ.items() if not one.startswith("PYTHON")}
    if not kind.client:
        variables["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    command = [python, str(path), url, _MODEL, *words]
    ended = subprocess.run(
        command, cwd=work, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{name} has failed:\n{ended.stderr}")
    return [(answer, seconds) for answer, seconds in json.loads(ended.stdout.splitlines()[-1])]


class Mixture:
    """Runs of the same programs, on servers that are new for each.

    Args:
        work: folder for what servers and programs are given.
    """

    def __init__(self, num_servers: int, work: Path) -> None:
        self._num_servers = num_servers
        self._work = work
        (work / "replies.json").write_text(json.dumps(REPLIES), "utf-8")
        with self._servers(1) as (url,):
            self._alone_s = {
                name: median(spent_s for _, spent_s in run(name, url, _ALONE, work)) for name in KINDS
            }

    def expected(self, load: Load) -> dict[str, list[Any]]:
        """Return the answers of one server, kind after kind."""
        with self._servers(1) as (url,):
            return {
                name: [answer for answer, _ in run(name, url, load.words(kind), self._work)]
                for name, kind in KINDS.items()
            }

    def measured(self, arm: Arm | None, load: Load, expected: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Run all kinds at once before servers of their own; return figures by kind, and the servers' lag.

        Args:
            arm: router before the servers; None for `stretto serve`.
        """
        with ExitStack() as stack:
            urls = stack.enter_context(self._servers(self._num_servers))
            if arm is None:
                workers = [word for url in urls for word in ("--worker", url)]
                door = stack.enter_context(running("serve", "--port", "0", *workers))
            else:
                (door,) = stack.enter_context(before(arm, urls))
            with ThreadPoolExecutor(len(KINDS)) as threads:
                ends = threads.map(lambda name: run(name, door, load.words(KINDS[name]), self._work), KINDS)
                found = dict(zip(KINDS, ends, strict=True))
            lag = max(map(_lag, urls))
        return {"lag": lag, **{name: self._figures(name, ends, expected) for name, ends in found.items()}}

    def _figures(
        self, name: str, ends: Sequence[tuple[Any, float]], expected: Mapping[str, list[Any]]
    ) -> dict[str, float]:
        seconds = sorted(spent_s for _, spent_s in ends)
        return {
            "answers": len(ends),
            "apart": sum(one != other for (one, _), other in zip(ends, expected[name], strict=True)),
            "mean_s": fmean(seconds),
            "p95_s": quantile(seconds, 0.95),
            "slowdown": fmean(seconds) / self._alone_s[name],
        }

    @contextmanager
    def _servers(self, number: int) -> Iterator[list[str]]:
        settings = ("--loading-s", "0", "--port", "0", "--replies", str(self._work / "replies.json"))
        with ExitStack() as stack:
            emulate = ("emulate", "--model", _MODEL, *settings)
            yield [stack.enter_context(running(*emulate)).rstrip("/") for _ in range(number)]


def _lag(url: str) -> float:
    """Return the lateness of an emulated server, as a share of the time that it has waited."""
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    late_s, waited_s = (
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"stretto_emulate:{name}_s"))
        for name in ("late", "waited")
    )
    return late_s / max(1e-9, waited_s)


def main() -> int:
    """Run the mixture at each arm and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--servers", type=int, default=3, help="number of emulated servers behind the door")
    parser.add_argument("--arms", action="store_true", help="routers beside `stretto serve`, and more load")
    parser.add_argument("--seeds", type=int, default=1, help="number of draws")
    parser.add_argument("--json", type=Path, help="file for all figures")
    given = parser.parse_args()
    compared: list[Arm | None] = [None]
    if given.arms:
        compared += [arm for arm in arms(()) if arm.router is not None and not arm.with_ids]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stretto-mixture-") as folder:
        mixture = Mixture(given.servers, Path(folder))
        for seed in range(given.seeds):
            load = Load(80, 30.0, seed, 1) if given.arms else Load(6, 3.0, seed, 2)
            expected = mixture.expected(load)
            for arm in compared:
                name = _SERVE if arm is None else arm.name
                row = mixture.measured(arm, load, expected)
                rows.append({"arm": name, "seed": seed, **row})
                late = f", lag {row['lag']:.1%}: does not count" if row["lag"] > _MAX_LAG else ""
                print(f"{name}, draw {seed}{late}")
                for kind in KINDS:
                    print(f"  {kind}: {', '.join(f'{key} {value:.3g}' for key, value in row[kind].items())}")
    if given.json is not None:
        found = {"name": "door_mixture", "commit": commit(), "origin": "measured", "rows": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    num_apart: int = sum(row[kind]["apart"] for row in rows for kind in KINDS)
    return min(1, num_apart)


if __name__ == "__main__":
    sys.exit(main())
