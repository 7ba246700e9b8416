"""A Ray cluster of two nodes loses one in the middle of its work. Are all answers still right?

    python -m checks.ray_check

Each node has a real embedding engine (all-MiniLM-L6-v2) and a real LLM server: the small model that ships
with Stretto, on the in-process engine, behind HTTP. Each of 40 queries embeds its question and completes it.
Their answers are compared with those of the same engines without Ray.

While answers are being decoded, the daemon of one node (its raylet) is killed. Then all processes of that
node's server have to end and its port has to refuse, replacements have to start on the other node, and all
answers have to be right. At the end no process of any server may be left. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.mini_model import MINI
from checks import llm_http_server
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.engine import ServerProcess
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.graph.compile import compile_graph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Piece
from stretto.runtime.runtime import Runtime
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

NUM_QUERIES = 40
IN_FLIGHT = 8
KILL_AFTER = 12
TOLERANCE = 1e-5
"""Vectors depend on their batch by rounding."""
WAIT_S = 20.0
LOAD_S = 180.0
"""Longest that loading engines may take. Several load at once."""
MARK = "STRETTO_RAY_CHECK"
"""A variable that every process of this run inherits."""
STORE_BYTES = 80 * 2**20

APP = compile_graph(
    parse_graph(
        """
        graph ask(%question: text)
          %vector = embed(%question) : vector @embedding
          %kv     = prefill([%question]) : kv @llm
          %answer = decode(%kv) {max_tokens=96, ignore_eos=true} : text @llm
          return %answer, %vector
        """
    ),
    {},
)
SUBJECTS = (
    "a river",
    "the north wind",
    "an old mill",
    "rye bread",
    "the harbour",
    "a clock",
    "moss",
    "copper",
)
FORMS = ("Tell me of {}.", "{} was seen at dawn,", "Why does {} matter?", "Once {} had gone,", "About {}:")
QUESTIONS = [form.format(subject) for form in FORMS for subject in SUBJECTS][:NUM_QUERIES]


@dataclass(frozen=True, slots=True)
class Server:
    """A running LLM server, and the raylet of its node."""

    pid: int
    port: int
    raylet: int

    @property
    def group(self) -> list[int]:
        """All its processes."""
        return [pid for pid, stat in _stats().items() if stat.group == self.pid]


@dataclass(frozen=True, slots=True)
class Stat:
    """What the kernel says of a process."""

    parent: int
    group: int


class RayCheck:
    """One run.

    Attributes:
        problems: what is wrong.
        groups: process groups of all servers that were seen.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.groups: set[int] = set()

    def expect(self, is_right: bool, what: str) -> None:
        """Print what was checked, and whether it holds."""
        print(f"  {'right' if is_right else 'WRONG'}  {what}", flush=True)
        if not is_right:
            self.problems.append(what)

    def servers(self) -> list[Server]:
        """Servers that listen now. Each is a child of its keeper, of its worker, of its node's raylet."""
        found = []
        stats = _stats()
        for pid in stats:
            command = _command(pid)
            if command[1:2] == [llm_http_server.__file__] and stats[pid].group == pid:
                worker = stats[stats[pid].parent].parent
                port = int(command[command.index("--port") + 1])
                found.append(Server(pid, port, stats[worker].parent))
        self.groups |= {server.pid for server in found}
        return found


def engines(runs_in: str) -> list[Deployment]:
    """Two replicas of each engine in Ray, or one of each here."""
    embedding = EmbeddingConfig(num_threads=1)
    if runs_in != "ray":
        return [
            deploy("embedding", Embedding, embedding),
            deploy("llm", TransformerLLM, TransformerConfig(MINI), contract="llm"),
        ]
    server = ServerProcessConfig(
        "vllm",
        str(MINI),
        command=(sys.executable, llm_http_server.__file__),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        tokenizer="none",
        warms_prefixes=False,
        grace_s=5.0,
    )
    return [
        deploy("llm", ServerProcess, server, contract="llm", runs_in="ray", threads=1, instances=2),
        deploy("embedding", Embedding, embedding, runs_in="ray", threads=1, instances=2),
    ]


async def ask_all(runtime: Runtime) -> list[Mapping[str, Any] | BaseException]:
    """The answers to all questions, a few at a time; streamed, so that a kill finds them half told."""
    places = asyncio.Semaphore(IN_FLIGHT)

    async def ask(question: str) -> Mapping[str, Any]:
        async with places:
            return await (await runtime.submit(APP, {"question": question}))

    return await asyncio.gather(*map(ask, QUESTIONS), return_exceptions=True)


class DecodeWatcher(Observer):
    """Calls `kill` once, in mid-decode: some answers are there, and pieces of others."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill: Callable[[], None] | None = kill
        self._num_pieces = 0

    def on_event(self, event: Event, now_s: float) -> None:
        """Count pieces."""
        if isinstance(event, LLMReport) and isinstance(event.event, Piece):
            self._num_pieces += 1
            if self._num_pieces >= KILL_AFTER * 60 and self._kill is not None:
                kill, self._kill = self._kill, None
                kill()


async def run(check: RayCheck) -> None:
    """The whole check."""
    print("without Ray", flush=True)
    async with Runtime(engines("thread")) as runtime:
        wanted = await ask_all(runtime)
    check.expect(not any(isinstance(answer, BaseException) for answer in wanted), "all are answered here")
    print("two nodes", flush=True)
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **sizes})
    try:
        nodes = [cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES) for _ in range(2)]
        await lose_a_node(check, cluster, nodes, wanted)
    finally:
        await asyncio.to_thread(cluster.shutdown)
        await _time_until(lambda: not _marked(), time.monotonic())
        left = _marked()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    check.expect(not left, f"no process of this run is left {left}")


async def lose_a_node(check: RayCheck, cluster: Any, nodes: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Ask all questions, and kill a node in the middle."""
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes}
    killed_s: list[float] = []
    lost: list[Server] = []
    lost_groups: list[int] = []

    def kill() -> None:
        lost.extend(servers[:1])
        lost_groups.extend(servers[0].group)
        killed_s.append(time.monotonic())
        os.kill(servers[0].raylet, signal.SIGKILL)

    started_s = time.monotonic()
    runtime = Runtime(engines("ray"), observers=[DecodeWatcher(kill)], ray_address=cluster.address)
    async with runtime:
        print(f"  engines ready after {time.monotonic() - started_s:.1f} s", flush=True)
        servers = check.servers()
        check.expect({s.raylet for s in servers} == set(raylets), "each node has an LLM server")
        check.expect(all(len(s.group) > 1 for s in servers), "each server has several processes")
        check.expect(
            all(_num_workers(raylet, "BatchWorker") == 1 for raylet in raylets),
            "each node has an embedding engine",
        )
        asking = asyncio.create_task(ask_all(runtime))
        while not lost and not asking.done():
            await asyncio.sleep(0.01)
        check.expect(bool(lost) and not asking.done(), "a node is killed while queries run")
        gone_s = await _time_until(lambda: not any(map(_is_running, lost_groups)), killed_s[0])
        check.expect(gone_s is not None, f"the {len(lost_groups)} processes of its server end ({_s(gone_s)})")
        refused_s = await _time_until(lambda: _refuses(lost[0].port), killed_s[0])
        check.expect(refused_s is not None, "its port refuses")
        (other,) = raylets.keys() - {lost[0].raylet}
        answers = await asking
        print(f"  last answer {time.monotonic() - killed_s[0]:.1f} s after the kill", flush=True)
        num_right = sum(map(_is_same, answers, wanted))
        check.expect(num_right == NUM_QUERIES, f"{num_right} of {NUM_QUERIES} answers are right")
        for answer in answers:
            if isinstance(answer, BaseException):
                print(f"  {type(answer).__name__}: {answer}", flush=True)
        back_s = await _time_until(
            lambda: (
                [s.raylet for s in check.servers()] == [other, other]
                and _num_workers(other, "BatchWorker") == 2
                and _num_serving(runtime) == 4
            ),
            killed_s[0],
            LOAD_S,
        )
        check.expect(back_s is not None, f"replacements serve on the other node ({_s(back_s)})")
        again = await ask_all(runtime)
        num_right = sum(map(_is_same, again, wanted))
        check.expect(num_right == NUM_QUERIES, f"{num_right} of {NUM_QUERIES} answers are right afterwards")
    check.expect(
        not any(stat.group in check.groups for stat in _stats().values()), "no process of a server is left"
    )


def _is_same(answer: Any, wanted: Any) -> bool:
    if isinstance(answer, BaseException) or isinstance(wanted, BaseException):
        return False
    is_near = np.allclose(answer["vector"], wanted["vector"], atol=TOLERANCE)
    return bool(is_near and answer["answer"] == wanted["answer"])


def _num_serving(runtime: Runtime) -> int:
    return sum(len(scheduler.instances.fleet.serving) for scheduler in runtime.system.schedulers.values())


async def _time_until(holds: Callable[[], bool], since_s: float, within_s: float = WAIT_S) -> float | None:
    """Seconds until `holds`, None if it does not in time."""
    while time.monotonic() < since_s + within_s:
        if holds():
            return time.monotonic() - since_s
        await asyncio.sleep(0.1)
    return None


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _num_workers(raylet: int, kind: str) -> int:
    children = [pid for pid, stat in _stats().items() if stat.parent == raylet]
    return sum(f"ray::{kind}" in " ".join(_command(pid)) for pid in children)


def _stats() -> dict[int, Stat]:
    """All processes that run. A zombie does not."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state != "Z":
            found[int(path.parent.name)] = Stat(int(parent), int(group))
    return found


def _marked() -> list[int]:
    """Processes of this run, without this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for pid in _stats():
        try:
            if pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def _is_running(pid: int) -> bool:
    return pid in _stats()


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _refuses(port: int) -> bool:
    import ray

    with socket.socket() as one:
        return one.connect_ex((ray.util.get_node_ip_address(), port)) != 0


def main() -> int:
    """Run the check; return the exit code."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ[MARK] = str(os.getpid())
    check = RayCheck()
    asyncio.run(run(check))
    print("all right" if not check.problems else f"{len(check.problems)} problems")
    return 1 if check.problems else 0


if __name__ == "__main__":
    sys.exit(main())
