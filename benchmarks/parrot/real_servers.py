"""What runs where the clients are not: four emulated servers, and before them our service or our router."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias
from urllib.request import urlopen

from benchmarks.parrot.machines import a6000
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.server_process.kept import KeptProcess, take_port
from stretto.model.errors import EngineTimeout, EngineUnavailable
from stretto.wire.engine_metrics import VLLM_CACHE_HITS, VLLM_PROMPT_TOKENS
from stretto.wire.metrics import read_samples

MODEL, DEVICE = "Llama-2-7b-hf", "A6000"
Front: TypeAlias = Literal["serve", "route"]
"""The command of Stretto that stands before the servers."""

_MAX_SEQUENCES = 256
_MEMORY_SHARE = 0.9
_START_S = 60.0
_LOOK_S = 0.1


def planned_servers(number: int) -> PlannedFleet:
    """Return a fleet of equal servers that answer at once."""
    servers = tuple(
        WantedServer(
            devices=(place,),
            model=MODEL,
            port=0,
            loading_s=0.0,
            max_sequences=_MAX_SEQUENCES,
            memory_share=_MEMORY_SHARE,
        )
        for place in range(number)
    )
    return check_fleet(WantedFleet((DEVICE,) * number, servers))


@contextmanager
def front(command: Front, urls: Sequence[str]) -> Iterator[int]:
    """Run our service or our router before servers, as a process of its own; yield its port.

    Both place requests by the policy `stretto`, with the same predicted seconds and the same limits.

    Raises:
        EngineUnavailable: it ended before it answered; the message has its last output.
        EngineTimeout: it did not answer in time.
    """
    text = {"serve": _engines_toml, "route": _router_toml}[command](urls)
    with TemporaryDirectory() as folder:
        file, port = Path(folder) / "front.toml", take_port(None)
        file.write_text(text, "utf-8")
        option = {"serve": "--engines", "route": "--config"}[command]
        arguments = [command, option, str(file), "--port", str(port)]
        process = KeptProcess([sys.executable, "-m", "stretto.cli.main", *arguments], os.environ, grace_s=5)
        try:
            _wait(process, port)
            yield port
        finally:
            process.end()


def prompt_and_cached_tokens(urls: Sequence[str]) -> tuple[int, int]:
    """Return how many prompt tokens servers have got, and how many of these they found in their caches."""
    counts = {VLLM_PROMPT_TOKENS.name: 0.0, VLLM_CACHE_HITS.name: 0.0}
    for url in urls:
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for sample in read_samples(text, tuple(counts)):
            counts[sample.name] += sample.value
    return round(counts[VLLM_PROMPT_TOKENS.name]), round(counts[VLLM_CACHE_HITS.name])


def _engines_toml(urls: Sequence[str]) -> str:
    lines = ["[[engine]]", 'name = "llm"', 'contract = "llm"', 'placement = "stretto"']
    lines.append(f"max_running = {_MAX_SEQUENCES}")
    for url in urls:
        config: dict[str, object] = {"url": url, "model": MODEL, "api": "completions", "tokenizer": "none"}
        config["max_connections"] = _MAX_SEQUENCES
        lines += ["", "[[replica]]", 'engine = "llm"', 'executable = "openai"']
        lines += [f"kv_tokens = {_kv_tokens()}", f"profile = {_table(_profile())}"]
        lines.append(f"config = {_table(config)}")
    return "\n".join(lines) + "\n"


def _router_toml(urls: Sequence[str]) -> str:
    lines = ["[router]", 'placement = "stretto"']
    for url in urls:
        lines += ["", "[[router.worker]]", f"url = {json.dumps(url)}", f"num_slots = {_MAX_SEQUENCES}"]
        lines += [f"kv_tokens = {_kv_tokens()}", f"profile = {_table(_profile())}"]
    return "\n".join(lines) + "\n"


def _profile() -> Mapping[str, object]:
    profile = a6000().profile
    names = ("base_s", "per_unit_s", "max_efficient_batch", "per_output_s", "per_neighbour_s")
    return {name: getattr(profile, name) for name in names}


def _kv_tokens() -> int:
    service = planned_servers(1).servers[0].service
    assert isinstance(service, PlannedLLM)
    config = service.simulated.scheduler
    return config.num_blocks * config.block_tokens


def _table(values: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + " }"


def _wait(process: KeptProcess, port: int) -> None:
    until_s = time.monotonic() + _START_S
    while True:
        if (code := process.poll()) is not None:
            raise EngineUnavailable(f"it ended with {code} before it answered: {process.last_words()}")
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError as error:
            if time.monotonic() > until_s:
                raise EngineTimeout(f"no answer in {_START_S:.0f} s: {process.last_words()}") from error
        time.sleep(_LOOK_S)
