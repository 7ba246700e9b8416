"""`stretto ask --record`, and `stretto replay` of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import CommandLine


def test_a_question_is_recorded_and_replayed(stretto: CommandLine, doc: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    asked = stretto(
        "ask", "Where did the captain live?", "--docs", doc, "--llm", "stand-in", "--record", record
    )
    assert asked.code == 0, asked.err
    assert "Admiral" not in record.read_text()
    replayed = stretto("replay", record, "--passes", "none", "--json")
    assert replayed.code == 0, replayed.err
    result = json.loads(replayed.out)
    assert result["queries"] == 1
    assert all(summary["queries"] == 1 for summary in result["latency"].values())
    missing = tmp_path / "nowhere" / "run.jsonl"
    assert "--record" in stretto.refuses("ask", "Who?", "--docs", doc, "--record", missing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full disk at hand")
def test_a_full_disk_costs_the_recording_and_not_the_answer(stretto: CommandLine, doc: Path) -> None:
    asked = stretto(
        "ask",
        "Where did the captain live?",
        "--docs",
        doc,
        "--llm",
        "stand-in",
        "--json",
        "--record",
        "/dev/full",
    )
    assert asked.code == 1
    assert json.loads(asked.out)["answer"]
