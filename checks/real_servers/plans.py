"""`stretto run-plan` over a Batch file at two real servers: results, a kill, a server that goes away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from checks.real_servers.lines import CHAT, COMPLETION, PAINT, chat, kinds
from checks.real_servers.outcome import Outcome
from stretto.wire.metrics import read_samples

_REPEATS = 6
_LIMIT_S, _LOOK_S = 1800.0, 0.2


def write_lines(path: Path, model: str) -> tuple[dict[str, tuple[str, dict[str, Any]]], set[str]]:
    """Write a Batch file of 60 lines; return the requests by their ids, and the ids that must fail."""
    asked = {
        f"{kind} {number}": request
        for number in range(_REPEATS)
        for kind, request in kinds(f"Say the number {number}.", seed=number).items()
    }
    wrong = {
        "stream": (CHAT, chat("a", stream=True)),
        "path": ("/v1/strange", {"input": "a"}),
        "temperature": (CHAT, chat("a", temperature=7)),
        "schema": (
            CHAT,
            chat(
                "a",
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "strange"}},
                },
            ),
        ),
        "too long": (CHAT, chat("word " * 9000)),
        "vectors": ("/v1/embeddings", {"input": "a ship"}),
    }
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"model": model, **body}}
        for name, (url, body) in {**asked, **wrong}.items()
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return asked, set(wrong)


def check_plans(
    urls: Sequence[str], model: str, folder: Path, end_server: Callable[[], None] | None
) -> Iterator[Outcome]:
    """Run a file whole with a kill in the middle, and once more while a server goes away.

    Args:
        end_server: ends the last server; None leaves that out.
    """
    file = folder / "in.jsonl"
    asked, wrong = write_lines(file, model)
    before = _num_asked(urls)
    out = folder / "out.jsonl"
    with _running(file, out, urls) as process:
        _wait(process, lambda: _count(out) >= len(asked) // 2)
        process.kill()
    journaled = _count(out.with_name("out.jsonl.journal")) - 1
    time.sleep(3)  # answers on their way end, or are aborted
    between = _num_asked(urls)
    with _running(file, out, urls) as process:
        process.wait(_LIMIT_S)
    after = _num_asked(urls)
    yield from _results(out, asked, wrong)
    again = after - between
    left = len(asked) - _count_of_kill(out)
    seen = (
        f"{between - before} chats and completions were asked before the kill, {again} after it, {journaled}"
    )
    yield Outcome("run-plan, killed and resumed", 0 < again <= left + 6, f"{seen} lines stood in the journal")
    if end_server is not None:
        out = folder / "lost.jsonl"
        with _running(file, out, urls) as process:
            _wait(process, lambda: _count(out) >= len(asked) // 3)
            end_server()
            process.wait(_LIMIT_S)
        yield from _results(out, asked, wrong, "one server gone, ")


def _count_of_kill(out: Path) -> int:
    """Return how many lines had been answered before the kill, as the second run has said."""
    words = out.with_suffix(".log").read_text()
    found = words.rpartition(" calls were answered before")[0].rpartition(" ")[2]
    return int(found.replace(",", "")) if found else 0


def _running(file: Path, out: Path, urls: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stretto", "run-plan", "--requests", str(file), "--out", str(out)]
    command += ["--failures", str(out.with_suffix(".failed"))]
    for url in urls:
        command += ["--url", url]
    with out.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _wait(process: subprocess.Popen[bytes], is_there: Callable[[], bool]) -> None:
    for _ in range(int(_LIMIT_S / _LOOK_S)):
        if is_there() or process.poll() is not None:
            return
        time.sleep(_LOOK_S)


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _num_asked(urls: Sequence[str]) -> int:
    """Return how many chats and completions the servers have answered, or begun to, by their own count."""
    samples = (
        sample
        for url in urls
        for sample in read_samples(httpx.get(f"{url}/metrics").text, ("http_requests_total",))
    )
    return round(
        sum(sample.value for sample in samples if sample.labels.get("handler") in (CHAT, COMPLETION))
    )


def _results(
    out: Path, asked: dict[str, tuple[str, dict[str, Any]]], wrong: set[str], when: str = ""
) -> Iterator[Outcome]:
    """Compare the files of results with OpenAI's documented fields."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    failed = [json.loads(line) for line in out.with_suffix(".failed").read_text().splitlines()]
    times = Counter(row["custom_id"] for row in rows)
    is_whole = set(times) == set(asked) and max(times.values()) == 1
    yield Outcome(f"run-plan, {when}every line once", is_whole, f"{len(rows)} answers of {len(asked)}")
    names = {row["custom_id"] for row in failed}
    yield Outcome(f"run-plan, {when}wrong lines fail alone", names == wrong, ", ".join(sorted(names)))
    faults = [fault for row in rows if (fault := _fault(row, *asked[row["custom_id"]]))]
    yield Outcome(f"run-plan, {when}fields of results", not faults, "; ".join(faults) or "all as documented")


def _fault(row: dict[str, Any], path: str, body: dict[str, Any]) -> str:
    """Return what is wrong with a line of results; "" for nothing."""
    from openai.types import Completion
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    name, response = row["custom_id"], row["response"]
    if set(row) != {"id", "custom_id", "response", "error"} or row["error"] is not None:
        return f"{name}: {row}"
    if set(response) != {"status_code", "request_id", "body"} or response["status_code"] != 200:
        return f"{name}: {response}"
    if path != CHAT:
        (Completion if path == COMPLETION else Response).model_validate(response["body"])
        return ""
    choices = ChatCompletion.model_validate(response["body"]).choices
    message = choices[0].message
    if len(choices) != body.get("n", 1) or ("logprobs" in body) != (choices[0].logprobs is not None):
        return f"{name}: {len(choices)} choices, logprobs {choices[0].logprobs}"
    if "tools" in body:
        made = [call.model_dump()["function"] for call in message.tool_calls or ()]
        calls = [(call["name"], json.loads(call["arguments"])) for call in made]
        good = [("weather", {"city": city}) for city in ("Oslo", "Rome")]
        good += [("clock", {"zone": zone}) for zone in ("UTC", "CET")]
        return "" if calls and all(call in good for call in calls) else f"{name}: {calls}"
    if "response_format" in body and choices[0].finish_reason == "stop":
        found = json.loads(message.content or "")
        fits = all(found[key] in PAINT["properties"][key]["enum"] for key in PAINT["required"])
        return "" if fits else f"{name}: {found}"
    return ""
