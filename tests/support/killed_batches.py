"""A service whose batch is answered while the service is killed again and again.

    python -m support.killed_batches FOLDER LINES KILLS SEED

Prints, as JSON, what came of it. The service and the emulated server are forked from one process that has
imported all they need, so that a life takes as long as its work.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from stretto.emulate.fleet import check_fleet
from stretto.emulate.serve import EmulatedServers
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.runtime.journal.lines import parse_entry
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.serve import ServedParts, run_service
from support.emulated import MODEL

_WAIT_S = 600.0
_MOST_LIFE_S = 1.0
_CHAT = "/v1/chat/completions"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def forked(work: Callable[[], None]) -> int:
    """Run something in a process of its own; return the id of the process."""
    if process := os.fork():
        return process
    try:
        work()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def serve(port: int, worker: str, state: Path) -> None:
    """Run the service until it is killed."""
    config = ServiceConfig(port=port)
    pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker, num_slots=16),)), config)
    parts = ServedParts(deployments=(pool.deployment,), config=config, pool=pool, state=state)
    run_service(parts, lambda line: None)


def emulate(port: int) -> None:
    """Run an emulated server until it is killed."""
    server = WantedServer(devices=(0,), port=port, model=MODEL, loading_s=0.0)
    fleet = check_fleet(WantedFleet(("A100-80G",), (server,), speed=10_000.0))

    async def run() -> None:
        async with EmulatedServers(fleet):
            await asyncio.Event().wait()

    asyncio.run(run())


def asked(
    port: int, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
) -> Any:
    """Return the answer to a request, which is repeated until the service is there."""
    end_s = time.monotonic() + _WAIT_S
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
            connection.request(method, path, body, {"content-type": kind} if body else {})
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            assert answer.status == 200, content
            return json.loads(content) if answer.getheader("content-type") == "application/json" else content
        except OSError:
            assert time.monotonic() < end_s, "the service does not come up"
            time.sleep(0.01)


def upload(lines: list[dict[str, object]]) -> bytes:
    """Return a form with a file of lines."""
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        b'content-disposition: form-data; name="file"; filename="in"\r\n\r\n' + content + b"\r\n--x--\r\n"
    )


def saved(journal: Path) -> Counter[str]:
    """Return how often each line stands in the journal of a batch."""
    if not journal.exists():
        return Counter()
    entries = map(parse_entry, journal.read_bytes().splitlines(keepends=True)[1:])
    return Counter(entry.key[0] for entry in entries if entry is not None)


class Lives:
    """The lives of a service, one after the other. A context manager, at whose end no process is left."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.port, worker_port = free_port(), free_port()
        self._worker_url = f"http://127.0.0.1:{worker_port}"
        self._worker = forked(lambda: emulate(worker_port))
        self._service = 0

    def __enter__(self) -> Lives:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        end(self._worker)

    def begin(self) -> None:
        self._service = forked(lambda: serve(self.port, self._worker_url, self._state))

    def kill(self) -> None:
        end(self._service)


def end(process: int) -> None:
    """Kill a process that this one has begun."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def lines_of(num_lines: int) -> list[dict[str, object]]:
    """Return the lines of a batch."""
    body = {"model": MODEL, "max_tokens": 4}
    return [
        {
            "custom_id": f"q{number}",
            "method": "POST",
            "url": _CHAT,
            "body": {**body, "messages": [{"role": "user", "content": f"{number}"}]},
        }
        for number in range(num_lines)
    ]


def main(state: Path, num_lines: int, num_kills: int, seed: int) -> None:
    """Run a batch under kills, and print what came of it."""
    rng, began_s = random.Random(seed), time.monotonic()
    num_amid = num_repeated = 0
    with Lives(state) as lives:
        port = lives.port
        form = upload(lines_of(num_lines))
        file = asked(port, "POST", "/v1/files", form, "multipart/form-data; boundary=x")["id"]
        wanted = {"input_file_id": file, "endpoint": _CHAT, "completion_window": "24h"}
        batch = asked(port, "POST", "/v1/batches", json.dumps(wanted).encode())["id"]
        for _ in range(num_kills):
            asked(port, "GET", "/health")
            time.sleep(rng.random() * _MOST_LIFE_S)
            lives.kill()
            counts = saved(state / "answers" / f"{batch}.journal")
            num_amid += 0 < len(counts) < num_lines
            num_repeated += sum(count > 1 for count in counts.values())
            lives.begin()
        end_s = time.monotonic() + _WAIT_S
        while (found := asked(port, "GET", f"/v1/batches/{batch}"))["status"] != "completed":
            assert time.monotonic() < end_s, found
            time.sleep(0.05)
        output = asked(port, "GET", f"/v1/files/{found['output_file_id']}/content")
    answered = Counter(json.loads(line)["custom_id"] for line in output.splitlines())
    figures = {
        "kills": num_kills,
        "kills amid the batch": num_amid,
        "counts": found["request_counts"],
        "lost": sum(answered[f"q{number}"] == 0 for number in range(num_lines)),
        "answered twice": sum(count > 1 for count in answered.values()) + num_repeated,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
