"""Checks that a server answers a neutral load generator without errors: AIPerf, with sessions and a trace.

    python -m checks.aiperf_load --url URL [--model NAME] [--requests N] [--at-once N] [--aiperf COMMAND]

AIPerf runs in an environment of its own (`make aiperf-env`). It drives the server with three loads: sessions
that fork, spawn and join (`dag_jsonl`, chat API), requests at fixed times that share prefixes (Mooncake,
completions API), and chats. Answers are streamed. The exit code is 1 if a request had an error or
was not sent.

AIPerf needs a tokenizer to make and count texts, and takes it from a cache of the Hugging Face hub alone. So
the check writes such a cache with the tokenizer of the model that ships with Stretto, and forbids the
network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.mini_model import MINI
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.engines.openai_server.discovery import find_model
from stretto.engines.openai_server.http import Http
from stretto.model.errors import ConfigError, EngineFailure, StrettoError

AIPERF = Path(".venv-aiperf/bin/aiperf")
TOKENIZER = "stretto/mini"
_TIMEOUT_S = 600
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Load:
    """One load, and the arguments of AIPerf that belong to it.

    Attributes:
        lines: lines of its file; AIPerf makes the texts if there are none.
        expected: number of requests.
    """

    name: str
    lines: Sequence[Mapping[str, Any]]
    arguments: tuple[str, ...]
    expected: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What AIPerf reports about one load. Times are milliseconds."""

    expected: int
    answered: int
    errors: tuple[str, ...]
    first_token_ms: float | None
    latency_ms: float | None

    @property
    def is_good(self) -> bool:
        """Whether every request was answered."""
        return not self.errors and self.answered == self.expected


def loads(num_chats: int, at_once: int = 50) -> tuple[Load, ...]:
    """Return the loads: sessions, a trace, and chats, so many of them at once."""
    return (
        Load(
            "dag_jsonl",
            _sessions(),
            (
                *("--custom-dataset-type", "dag_jsonl", "--endpoint-type", "chat"),
                *("--num-conversations", "1", "--concurrency", "8"),
            ),
            11,
        ),
        Load(
            "mooncake",
            _trace(),
            (
                *("--custom-dataset-type", "mooncake_trace", "--endpoint-type", "completions"),
                *("--fixed-schedule", "--isl-block-size", str(_BLOCK_TOKENS)),
            ),
            12,
        ),
        Load(
            "chats",
            (),
            (
                *("--endpoint-type", "chat", "--request-count", str(num_chats)),
                *("--concurrency", str(min(num_chats, at_once))),
                *("--synthetic-input-tokens-mean", "200", "--synthetic-input-tokens-stddev", "100"),
                *("--output-tokens-mean", "24", "--output-tokens-stddev", "12"),
            ),
            num_chats,
        ),
    )


def _sessions() -> list[Mapping[str, Any]]:
    def turn(text: str, **fields: object) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **fields}

    late = {"children": ["check"], "join_at": 2}
    return [
        {
            "session_id": "plan",
            "turns": [
                turn("Plan the work.", spawns=["read", "search", late]),
                turn("Put the notes together.", delay=100),
                turn("Answer.", forks=["shorter", "longer"]),
            ],
        },
        {"session_id": "read", "turns": [turn("Read the report."), turn("Read on.", delay=50)]},
        {"session_id": "search", "turns": [turn("Search the archive.")]},
        {"session_id": "check", "turns": [turn("Check the sources."), turn("Check them again.")]},
        {"session_id": "shorter", "turns": [turn("Say it in one sentence.")]},
        {"session_id": "longer", "turns": [turn("Say more."), turn("Say even more.")]},
    ]


def _trace() -> list[Mapping[str, Any]]:
    return [
        {
            "timestamp": 100 * number,
            "input_length": _BLOCK_TOKENS + 100 + number,
            "output_length": 8 + number,
            "hash_ids": [number % 2, 10 + number],
        }
        for number in range(12)
    ]


def write_hub_cache(home: Path) -> None:
    """Write a cache of the Hugging Face hub that holds nothing but the tokenizer `TOKENIZER`."""
    repository = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = repository / "snapshots" / "local"
    snapshot.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(MINI / name, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("local")


def run_load(load: Load, aiperf: Path, url: str, model: str, folder: Path) -> Outcome:
    """Run AIPerf with one load against the server, with its files in `folder`.

    Raises:
        EngineFailure: AIPerf fails without a report, or does not end.
    """
    home, file, out = folder / "hf", folder / f"{load.name}.jsonl", folder / load.name
    if not home.exists():
        write_hub_cache(home)
    command = [
        *(str(aiperf), "profile", "--model", model, "--url", url, "--tokenizer", TOKENIZER, "--streaming"),
        *("--output-artifact-dir", str(out), "--ui", "none", "--use-server-token-count", *load.arguments),
    ]
    if load.lines:
        file.write_text("".join(json.dumps(line) + "\n" for line in load.lines))
        command += ["--input-file", str(file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailure(f"{load.name}: AIPerf did not end within {_TIMEOUT_S} s") from error
    report = out / "profile_export_aiperf.json"
    if not report.is_file():
        tail = (ended.stdout + ended.stderr)[-2000:]
        raise EngineFailure(f"{load.name}: AIPerf ended with {ended.returncode} and no report:\n{tail}")
    return read_report(json.loads(report.read_text()), load.expected)


def read_report(report: Mapping[str, Any], expected: int) -> Outcome:
    """Return what one of AIPerf's reports (`profile_export_aiperf.json`) says; its `request_count` counts
    requests without errors.

    Args:
        expected: number of requests that the load has.
    """

    def mean(name: str) -> float | None:
        return (report.get(name) or {}).get("avg")

    return Outcome(
        expected,
        round(mean("request_count") or 0),
        tuple(json.dumps(error) for error in report.get("error_summary") or ()),
        mean("time_to_first_token"),
        mean("request_latency"),
    )


async def _model_of(url: str) -> str:
    http = Http(OpenAIServerConfig(url))
    try:
        return (await find_model(http, None)).id
    finally:
        await http.aclose()


def main() -> int:
    """Run all loads and print a line for each; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", required=True, help="URL of the server")
    parser.add_argument("--model", help="its model; default: the first that it lists")
    parser.add_argument("--requests", type=int, default=2000, help="number of chats; default: 2,000")
    parser.add_argument("--at-once", type=int, default=50, help="chats at once; default: 50")
    parser.add_argument("--aiperf", type=Path, default=AIPERF, help=f"command; default: {AIPERF}")
    options = parser.parse_args()
    try:
        if not options.aiperf.is_file():
            raise ConfigError(f"there is no {options.aiperf}; run `make aiperf-env`, or give --aiperf")
        model = options.model or asyncio.run(_model_of(options.url))
        with tempfile.TemporaryDirectory() as folder:
            found = {
                load.name: run_load(load, options.aiperf.absolute(), options.url, model, Path(folder))
                for load in loads(options.requests, options.at_once)
            }
    except StrettoError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for name, outcome in found.items():
        print(f"{name}: {outcome.answered} of {outcome.expected} requests answered")
        if outcome.first_token_ms is not None and outcome.latency_ms is not None:
            print(f"  first token {outcome.first_token_ms:.1f} ms, all {outcome.latency_ms:.1f} ms (means)")
        for problem in outcome.errors:
            print(f"  {problem}")
    return 0 if all(outcome.is_good for outcome in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
