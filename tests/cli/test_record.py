"""`stretto ask --record`, and `stretto replay` of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

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
