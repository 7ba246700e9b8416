"""Emulated servers for the harness, in a process of their own: their start, their lag, and their faults."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.fleet.layout import Layout
from benchmarks.fleet.work import ServerUrls
from stretto.emulate.faults import ServerFault
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.server_process.kept import KeptProcess
from stretto.model.errors import EngineTimeout, EngineUnavailable
from stretto.wire.metric_table import LATE_S, SLIPPED_S, WAITED_S
from stretto.wire.metrics import read_samples

_START_S = 60.0
_LOOK_S = 0.1
_TOTALS = (LATE_S.name, WAITED_S.name, SLIPPED_S.name)


@dataclass(frozen=True, slots=True)
class Lag:
    """Real seconds that parts of answers came late, that clients waited for them, and that the clock slipped,
    since the start."""

    late_s: float
    waited_s: float
    slipped_s: float

    def since(self, before: Lag) -> Lag:
        """Return what has come to it since an earlier reading."""
        return Lag(
            self.late_s - before.late_s, self.waited_s - before.waited_s, self.slipped_s - before.slipped_s
        )

    @property
    def share(self) -> float:
        """Seconds of lateness for each second that clients waited."""
        return self.late_s / self.waited_s if self.waited_s else 0.0


class RunningFleet:
    """A fleet that runs: its addresses, and what can be asked of it."""

    def __init__(self, urls: ServerUrls, http: httpx.Client) -> None:
        self.urls = urls
        self._http = http

    def empty_caches(self) -> None:
        """Let all LLM servers forget the prefixes that they hold."""
        for url in self.urls.llm:
            self._http.post(f"{url}/reset_prefix_cache").raise_for_status()

    def lag(self) -> Lag:
        """Return how late the process of the servers has been."""
        text = self._http.get(f"{self.urls.embedding}/metrics").raise_for_status().text
        found = {sample.name: sample.value for sample in read_samples(text, _TOTALS)}
        return Lag(*(found[name] for name in _TOTALS))

    def request(self, server: int, fault: ServerFault) -> None:
        """Let a fault happen to one of the LLM servers. Its seconds are real ones."""
        url = f"{self.urls.llm[server]}/emulator/faults"
        self._http.post(url, json=fault.to_json()).raise_for_status()


@contextmanager
def running_fleet(layout: Layout, speed: float, lengths: Path) -> Iterator[RunningFleet]:
    """Context with a fleet that answers; at its end its process is ended.

    Args:
        lengths: file with counted lengths of answers.

    Raises:
        EngineUnavailable: the servers ended before they answered; the message has their last output.
        EngineTimeout: they did not answer in time.
    """
    ports = _free_ports(layout.num_gpus)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    addresses = ServerUrls(tuple(urls[: layout.num_llms]), *urls[layout.num_llms :])
    with TemporaryDirectory() as folder, httpx.Client(timeout=10.0) as http:
        file = Path(folder) / "fleet.toml"
        file.write_text(fleet_toml(layout.wanted(ports, speed)), "utf-8")
        options = ["--fleet", str(file), "--speed", str(speed), "--output-lengths", str(lengths)]
        process = KeptProcess(
            [sys.executable, "-m", "stretto.cli.main", "emulate", *options], os.environ, grace_s=5
        )
        try:
            _wait(process, urls, http)
            yield RunningFleet(addresses, http)
        finally:
            process.end()


def fleet_toml(wanted: WantedFleet) -> str:
    """Return the file that describes a fleet to `stretto emulate`."""
    lines = ["[machine]", f"devices = {json.dumps(wanted.devices)}"]
    for server in wanted.servers:
        lines += ["", "[[replica]]", *_settings(server)]
    return "\n".join(lines) + "\n"


def _settings(server: WantedServer) -> list[str]:
    names = ["devices", "kind", "port", "max_sequences", "scheduling"]
    names += ["model"] if server.model else []
    names += [] if server.loading_s is None else ["loading_s"]
    return [f"{name} = {json.dumps(getattr(server, name))}" for name in names]


def _free_ports(number: int) -> tuple[int, ...]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = tuple(one.getsockname()[1] for one in sockets)
    for one in sockets:
        one.close()
    return ports


def _wait(process: KeptProcess, urls: list[str], http: httpx.Client) -> None:
    until_s = time.monotonic() + _START_S
    for url in urls:
        while True:
            if (code := process.poll()) is not None:
                raise EngineUnavailable(f"the emulated servers ended with {code}: {process.last_words()}")
            try:
                if http.get(f"{url}/health").is_success:
                    break
            except httpx.TransportError:
                pass
            if time.monotonic() > until_s:
                raise EngineTimeout(f"{url} did not answer in {_START_S:.0f} s: {process.last_words()}")
            time.sleep(_LOOK_S)
