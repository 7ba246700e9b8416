"""`stretto check-prompts`: faults of prompts in recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

RULES = "\n".join(f"Rule {n}: an answer about matter number {n} is short and says why." for n in range(80))


def body(number: int, head: str = "x-billing-header: cch=") -> dict[str, Any]:
    """Return the body of a request with a line that changes at the head of it."""
    messages = [
        {"role": "system", "content": f"{head}{number * 7919 + 0xA1B2C:05x};\n{RULES}"},
        {"role": "user", "content": f"Mend the fault {number}."},
    ]
    return {"model": "m", "messages": messages}


def test_check_prompts_of_a_log_of_chats(tmp_path: Path, stretto: CommandLine) -> None:
    log = tmp_path / "chats.jsonl"
    log.write_text("".join(json.dumps({"request": body(number)}) + "\n" for number in range(8)), "utf-8")
    done = stretto("check-prompts", log)
    assert done.code == 0, done
    assert "id changes in messages[0], line 1" in done.out
    assert done.out.endswith("8 requests, 1 fault\n")
    clean = [{"request": {**body(number, ""), "messages": body(0)["messages"]}} for number in range(8)]
    log.write_text("".join(json.dumps(line) + "\n" for line in clean), "utf-8")
    assert stretto("check-prompts", log).out == "8 requests, 0 faults\n"


def test_check_prompts_of_what_is_no_recording(tmp_path: Path, stretto: CommandLine) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n', "utf-8")
    done = stretto("check-prompts", other)
    assert (done.code, "neither a record" in done.err) == (2, True)


def test_check_prompts_of_a_trace_without_texts(tmp_path: Path, stretto: CommandLine) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n', "utf-8")
    done = stretto("check-prompts", other)
    assert (done.code, "no texts" in done.err) == (2, True)


def test_check_prompts_of_a_record_of_the_router(tmp_path: Path, stretto: CommandLine) -> None:
    """A record has what was found, which is summed up by place."""
    fault: dict[str, object] = {
        "model": "m",
        "path": "/v1/chat/completions",
        "shape": "ab",
        "program": "7",
        "changes": "id",
    }
    fault |= {"place": "system", "line": 1, "at_tokens": 3, "sample": "id: ⟨id⟩", "advice": "drop it"}
    line = {"id": "r", "path": "/v1/chat/completions", "attempts": [], "completion_tokens": 5}
    told = [{"requests": n, "lost_tokens": 100 * n, "lost_s": 0.5, **fault} for n in (3, 4)]
    record = tmp_path / "record.jsonl"
    lines = [line, *({**line, "prompt_fault": one} for one in told)]
    record.write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")
    done = stretto("check-prompts", record)
    assert "lost: 700 tokens in 7 requests, 1.0 s of prefills" in done.out
    assert done.out.endswith("3 requests, 1 fault\n")


def test_check_prompts_of_a_record_that_no_router_wrote(tmp_path: Path, stretto: CommandLine) -> None:
    """Faults that are none are left out, and names of clients do not rule the terminal."""
    fault: dict[str, object] = {
        "model": "m\x1b[31m",
        "path": "/v1/completions",
        "shape": "ab",
        "program": "7",
        "changes": "id",
    }
    fault |= {"place": "system", "line": 1, "at_tokens": 3, "sample": "id: ⟨id⟩", "advice": "drop it"}
    loss = {"requests": 3, "lost_tokens": 300, "lost_s": 0.5}
    line = {"path": "/v1/completions", "attempts": []}
    bad = [loss, {**fault, **loss, "lost_s": float("nan")}, {**fault, **loss, "requests": "3"}, [], 5]
    record = tmp_path / "record.jsonl"
    lines = [line, *({**line, "prompt_fault": one} for one in ({**fault, **loss}, *bad))]
    record.write_text("".join(json.dumps(one) + "\n" for one in lines), "utf-8")
    done = stretto("check-prompts", record)
    assert done.out.endswith("7 requests, 1 fault\n")
    assert "\x1b" not in done.out
    record.write_text("")
    assert "no requests" in stretto("check-prompts", record).err
