"""Runs agents whose tools misbehave against an emulated server, and kills the process that runs them.

python -m checks.agent_runs                  200 runs, whose process is killed three times
python -m checks.agent_runs --runs 20 --kills 1

Each turn has random calls: good ones, arguments that do not fit, tools that raise, hang or return a million
characters, and tools with effects that do the same. Half of the runs send tools to the server, the others
have calls in words. What must hold: every run ends with a record, and no effect happens twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto import Runtime, ToolJournal
from stretto.apps import agent
from stretto.components import AgentRun, Tool, tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.llms import llm_engine

_SIDE_BY_SIDE = 20
_HANG_S = 0.05
_SPEED = 20.0
"""Emulated seconds per real second: how long replies take is no matter here."""
_MAX_TURNS = 3
_CALLS: Sequence[tuple[str, Callable[[str], object]]] = (
    ("look", lambda key: {"key": key}),
    ("look", lambda key: {"wrong": key}),
    ("look", lambda key: {"key": ["a", "list"]}),
    ("look", lambda key: "no object"),
    ("no_such_tool", lambda key: {"key": key}),
    ("fail", lambda key: {"key": key}),
    ("hang", lambda key: {"key": key}),
    ("wait", lambda key: {"key": key}),
    ("huge", lambda key: {"key": key}),
    ("act", lambda key: {"key": key, "how": "well"}),
    ("act", lambda key: {"key": key, "how": "raise"}),
    ("act", lambda key: {"key": key, "how": "hang"}),
    ("act", lambda key: {"key": key, "how": "huge"}),
    ("act", lambda key: {"key": key, "how": "never heard of"}),
)


def script(num_runs: int, seed: int) -> list[dict[str, object]]:
    """Return what the emulated server replies to each run: some turns of random calls, then an answer.

    Some runs want more turns than they have. A turn follows when the result of the turn before is read.
    """
    source = random.Random(seed)
    replies: list[dict[str, object]] = []
    for run in range(num_runs):
        num_turns = source.randint(0, _MAX_TURNS + 1)
        for turn in range(num_turns):
            calls: list[dict[str, object]] = [{"name": "step", "arguments": {"run": run, "turn": turn}}]
            for number in range(source.randint(0, 4)):
                name, arguments = source.choice(_CALLS)
                calls.append({"name": name, "arguments": arguments(f"{run}.{turn}.{number}")})
            source.shuffle(calls)
            replies.append({"when": _when(run, turn), "tool_calls": calls})
        replies.append({"when": _when(run, num_turns), "content": f"Run {run} is done."})
    return replies


def _when(run: int, turn: int) -> str:
    return f"<question {run}>" if turn == 0 else f"<step {turn - 1} of {run}>"


def tools_of(folder: Path) -> list[Tool]:
    """Return the tools, whose effects are lines of a file."""
    lock = threading.Lock()

    def happen(key: str) -> None:
        with lock, (folder / "effects").open("a") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())

    @tool
    def step(run: int, turn: int) -> str:
        return f"<step {turn} of {run}>"

    @tool
    def look(key: str) -> str:
        return f"{key} is here"

    @tool
    def fail(key: str) -> str:
        raise LookupError(key)

    @tool(timeout_s=_HANG_S)
    def hang(key: str) -> None:
        threading.Event().wait()

    @tool(timeout_s=_HANG_S)
    async def wait(key: str) -> None:
        await asyncio.Event().wait()

    @tool
    def huge(key: str) -> str:
        return key * 250_000

    @tool(effects=True, timeout_s=1.0)
    def act(key: str, how: str) -> str:
        happen(key)
        if how == "raise":
            raise LookupError(key)
        if how == "hang":
            threading.Event().wait()
        return key * 250_000 if how == "huge" else key

    return [step, look, fail, hang, wait, huge, act]


async def run_all(url: str, folder: Path, num_runs: int) -> None:
    """Run the agents that have not ended yet, and write a line for each that ends."""
    tools = tools_of(folder)
    ended = {row["run"] for row in read_rows(folder / "ended")}
    chats = llm_engine(url, api="chat")
    words = llm_engine(url, api="completions").changed(name="words")
    engines = [chats, words, tools_engine(tools, records=ToolJournal(folder / "journal"))]
    slots = asyncio.Semaphore(_SIDE_BY_SIDE)
    settings: dict[str, Any] = {
        "max_turns": _MAX_TURNS,
        "max_calls": 6,
        "call_tokens": 1024,
        "named_run": True,
    }
    apps = [agent(tools, **settings), agent(tools, engine="words", **settings)]
    async with Runtime(engines) as runtime:

        async def run_one(run: int) -> None:
            async with slots:
                asked = {"question": f"<question {run}>", "run_name": f"run {run}"}
                found = (await runtime.run(apps[run % 2], asked))["run"]
                assert isinstance(found, AgentRun)
            outcomes = Counter(call.outcome for call in found.calls)
            row = {"run": run, "ended": found.ended, "answer": found.answer, "outcomes": outcomes}
            with (folder / "ended").open("a") as file:
                file.write(f"{json.dumps(row)}\n")

        async with asyncio.TaskGroup() as group:
            for run in range(num_runs):
                if run not in ended:
                    group.create_task(run_one(run))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON; none if it is not there."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class Report:
    """What came of all runs.

    Attributes:
        ended: number of runs by how they ended.
        outcomes: number of calls by what came of them.
        num_effects: number of effects that happened.
        repeated: effects that happened more than once.
        lost: runs without a record.
    """

    ended: Counter[str]
    outcomes: Counter[str]
    num_effects: int
    repeated: list[str]
    lost: list[int]


def report(folder: Path, num_runs: int) -> Report:
    """Read what the runs have left in a folder."""
    rows = {row["run"]: row for row in read_rows(folder / "ended")}
    effects = (folder / "effects").read_text().split() if (folder / "effects").exists() else []
    outcomes: Counter[str] = Counter()
    for row in rows.values():
        outcomes.update(row["outcomes"])
    return Report(
        Counter(row["ended"] for row in rows.values()),
        outcomes,
        len(effects),
        [key for key, number in Counter(effects).items() if number > 1],
        [run for run in range(num_runs) if run not in rows],
    )


def run_killed(url: str, folder: Path, num_runs: int, num_kills: int) -> None:
    """Run all in a process, which is killed whenever some more effects have happened, and started again."""
    command = [sys.executable, "-m", "checks.agent_runs", "--runs", str(num_runs), "--at", url, str(folder)]
    log = folder / "effects"
    for kill in range(num_kills + 1):
        with subprocess.Popen(command) as process:
            num_before = log.stat().st_size if log.exists() else 0
            wanted = num_before + num_runs  # bytes: a few effects later
            while kill < num_kills and process.poll() is None:
                if log.exists() and log.stat().st_size >= wanted:
                    process.kill()
                    break
                time.sleep(0.001)
        if kill == num_kills and process.returncode:
            raise SystemExit(f"the runs have failed: {process.returncode}")


def check(num_runs: int, num_kills: int, seed: int) -> Report:
    """Run an emulated server and all agents, and return what came of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        replies, port = folder / "replies.json", folder / "port"
        replies.write_text(json.dumps(script(num_runs, seed)))
        command = [sys.executable, "-m", "checks.agent_runs", "--serve", str(replies), str(port)]
        with subprocess.Popen(command) as server:
            try:
                while not port.exists():
                    if server.poll() is not None:
                        raise SystemExit("the emulated server has ended")
                    time.sleep(0.01)
                run_killed(port.read_text(), folder, num_runs, num_kills)
            finally:
                server.terminate()
        return report(folder, num_runs)


async def serve(replies: Path, address: Path) -> None:
    """Run an emulated server until the process ends; write its URL into a file."""
    from stretto.emulate.fleet import check_fleet
    from stretto.emulate.serve import EmulatedServers
    from stretto.emulate.wanted import WantedFleet, WantedServer

    wanted = WantedServer(devices=(0,), port=0, model="llama-2-7b", loading_s=0.0, replies=replies)
    servers = EmulatedServers(check_fleet(WantedFleet(("A100-80G",), (wanted,), speed=_SPEED)))
    async with servers:
        await servers.ready()
        unfinished = address.with_suffix(".part")
        unfinished.write_text(servers.urls[0])
        unfinished.replace(address)
        await asyncio.Event().wait()


def main() -> int:
    """Check, print what came of the runs, and return 1 if one has not ended or an effect happened twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
    elif options.at:
        url, folder = options.at
        asyncio.run(run_all(url, Path(folder), options.runs))
    else:
        found = check(options.runs, options.kills, options.seed)
        print(f"{options.runs} runs, {options.kills} kills, seed {options.seed}")
        print("ended:", dict(found.ended), "without a record:", found.lost)
        print("calls:", dict(found.outcomes))
        print(f"effects: {found.num_effects}, repeated: {found.repeated}")
        return 1 if found.lost or found.repeated else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
