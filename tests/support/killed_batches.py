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
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from stretto.emulate.serve import EmulatedServers
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.runtime.journal.lines import parse_entry
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.serve import run_service
from support.emulated import MODEL, fleet_of

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
    finally:
        os._exit(1)


def serve(port: int, worker: str, state: Path) -> None:
    """Run the service until it is killed."""
    config = ServiceConfig(port=port)
    pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=worker, num_slots=16),)), config)
    run_service([pool.deployment], config, lambda line: None, pool=pool, state=state)


def emulate(port: int) -> None:
    """Run an emulated server until it is killed."""
    fleet = fleet_of(speed=10_000.0, port=port)

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


def main(state: Path, num_lines: int, num_kills: int, seed: int) -> None:
    """Run a batch under kills, and print what came of it."""
    rng = random.Random(seed)
    ports = free_port(), free_port()
    worker = forked(lambda: emulate(ports[1]))
    url = f"http://127.0.0.1:{ports[1]}"
    began_s = time.monotonic()
    service = forked(lambda: serve(ports[0], url, state))
    lines: list[dict[str, object]] = [
        {
            "custom_id": f"q{number}",
            "method": "POST",
            "url": _CHAT,
            "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 4},
        }
        for number in range(num_lines)
    ]
    file = asked(ports[0], "POST", "/v1/files", upload(lines), "multipart/form-data; boundary=x")["id"]
    wanted = {"input_file_id": file, "endpoint": _CHAT, "completion_window": "24h"}
    batch = asked(ports[0], "POST", "/v1/batches", json.dumps(wanted).encode())
    journal = state / "answers" / f"{batch['id']}.journal"
    num_killed = num_repeated = num_early = 0
    for _ in range(num_kills):
        time.sleep(rng.random() * _MOST_LIFE_S)
        os.kill(service, signal.SIGKILL)
        os.waitpid(service, 0)
        num_killed += 1
        counts = saved(journal)
        num_early += 0 < len(counts) < num_lines
        num_repeated += sum(count > 1 for count in counts.values())
        service = forked(lambda: serve(ports[0], url, state))
    while (found := asked(ports[0], "GET", f"/v1/batches/{batch['id']}"))["status"] != "completed":
        assert found["status"] in ("validating", "in_progress", "finalizing"), found
        time.sleep(0.05)
    output = asked(ports[0], "GET", f"/v1/files/{found['output_file_id']}/content")
    answered = Counter(json.loads(line)["custom_id"] for line in output.splitlines())
    for process in (service, worker):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    print(
        json.dumps(
            {
                "kills": num_killed,
                "kills amid the batch": num_early,
                "counts": found["request_counts"],
                "lost": sum(answered[f"q{number}"] == 0 for number in range(num_lines)),
                "answered twice": sum(count > 1 for count in answered.values()) + num_repeated,
                "seconds": round(time.monotonic() - began_s, 1),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
