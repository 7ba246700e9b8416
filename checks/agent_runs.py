"""Runs agents whose tools misbehave, with an emulated server or a model in the process, which is killed.

python -m checks.agent_runs                  200 runs, whose process is killed three times
python -m checks.agent_runs --runs 20 --kills 1
python -m checks.agent_runs --llm FOLDER     with a checkpoint in the process, in place of the server

Each turn has random calls: good ones, arguments that do not fit, tools that raise, hang or return a million
characters, and tools with effects that do the same. Half of the runs send tools to the server, the others
have calls in words. A model in the process draws calls of its own at a temperature of 1, held to the schemas
of a few tools; in every fourth run it is not held. What must hold: every run ends with a record, and no
effect happens twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.agent_tools import tools_of
from checks.agents_in_process import agents_of
from stretto import Deployment, Runtime, Template, ToolJournal
from stretto.apps import agent
from stretto.components import AgentRun, Tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.llms import llm_engine
from stretto.model.tools import ToolResult

_SIDE_BY_SIDE = 20
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


def agents_at(url: str, tools: list[Tool], num_runs: int) -> tuple[list[Deployment], list[Template]]:
    """Return the LLM engines at a server, and the agents of all runs."""
    chats = llm_engine(url, api="chat")
    words = llm_engine(url, api="completions").changed(name="words")
    settings: dict[str, Any] = {"max_turns": _MAX_TURNS, "max_calls": 6, "call_tokens": 1024}
    apps = [agent(tools, engine=engine, named_run=True, **settings) for engine in ("llm", "words")]
    return [chats, words], [apps[run % 2] for run in range(num_runs)]


async def run_all(at: str, folder: Path, num_runs: int) -> None:
    """Run the agents that have not ended yet, and write a line for each that ends."""
    tools = tools_of(folder)
    ended = {row["run"] for row in read_rows(folder / "ended")}
    model = Path(at)
    llms, apps = (
        agents_of(model, tools, num_runs, _MAX_TURNS) if model.exists() else agents_at(at, tools, num_runs)
    )
    engines = [*llms, tools_engine(tools, records=ToolJournal(folder / "journal"))]
    slots = asyncio.Semaphore(_SIDE_BY_SIDE)
    async with Runtime(engines) as runtime:

        async def run_one(run: int) -> None:
            async with slots:
                asked = {"question": f"<question {run}>", "run_name": f"run {run}"}
                found = (await runtime.run(apps[run], asked))["run"]
                assert isinstance(found, AgentRun)
            outcomes = Counter(call.outcome for call in found.calls)
            acts = [json.loads(call.arguments)["key"] for call in found.calls if _acts(call)]
            row = {"run": run, "ended": found.ended, "outcomes": outcomes, "acts": acts}
            with (folder / "ended").open("a") as file:
                file.write(f"{json.dumps(row)}\n")

        async with asyncio.TaskGroup() as group:
            for run in range(num_runs):
                if run not in ended:
                    group.create_task(run_one(run))


def _acts(call: ToolResult) -> bool:
    """Return whether an effect may have happened by a call."""
    return call.name in ("act", "choose") and call.outcome != "refused"


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
        repeated: effects that happened more often than there were calls for them.
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
    effects = (folder / "effects").read_text().splitlines() if (folder / "effects").exists() else []
    outcomes: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    for row in rows.values():
        outcomes.update(row["outcomes"])
        acts.update(json.dumps(key) for key in row["acts"])
    return Report(
        Counter(row["ended"] for row in rows.values()),
        outcomes,
        len(effects),
        [key for key, number in Counter(effects).items() if number > acts[key]],
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


def check(num_runs: int, num_kills: int, seed: int, model: Path | None = None) -> Report:
    """Run all agents, with a model in their process or else an emulated server, and return what came of
    them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if model is not None:
            run_killed(str(model.resolve()), folder, num_runs, num_kills)
            return report(folder, num_runs)
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
    parser.add_argument("--llm", type=Path)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
    elif options.at:
        url, folder = options.at
        asyncio.run(run_all(url, Path(folder), options.runs))
    else:
        found = check(options.runs, options.kills, options.seed, options.llm)
        print(f"{options.runs} runs, {options.kills} kills, seed {options.seed}")
        print("ended:", dict(found.ended), "without a record:", found.lost)
        print("calls:", dict(found.outcomes))
        print(f"effects: {found.num_effects}, repeated: {found.repeated}")
        return 1 if found.lost or found.repeated else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
