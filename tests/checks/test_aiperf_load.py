"""The check with AIPerf: its loads, what it reads in a report, and how it runs the command."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks import aiperf_load
from checks.aiperf_load import Load, Outcome, loads, read_report, run_load
from stretto.model.errors import EngineFailure
from stretto.trace.agents.formats import agent_format, read_agent_trace

REPORT: Mapping[str, Any] = {
    "request_count": {"avg": 11.0},
    "time_to_first_token": {"avg": 20.5},
    "request_latency": {"avg": 41.0},
    "error_summary": [],
}


@pytest.mark.parametrize("load", loads(5)[:2])
def test_loads_of_lines_are_traces(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in load.lines))
    assert agent_format(path) == load.name
    assert len(read_agent_trace(path).requests) == load.expected


def test_a_report_is_good_if_all_requests_were_answered() -> None:
    assert read_report(REPORT, 11) == Outcome(11, 11, (), 20.5, 41.0)
    assert read_report(REPORT, 11).is_good
    assert not read_report(REPORT, 12).is_good
    failed = read_report({**REPORT, "error_summary": [{"count": 1}]}, 11)
    assert failed.errors == ('{"count": 1}',)
    assert not failed.is_good
    assert read_report({}, 1) == Outcome(1, 0, (), None, None)


SCRIPT = f"""#!{sys.executable}
import json, os, pathlib, sys
given = dict(zip(sys.argv[2::1], sys.argv[3::1]))
if given["--model"] == "broken":
    sys.exit("no such model")
home = pathlib.Path(os.environ["HF_HOME"]) / "hub" / "models--stretto--mini"
snapshot = home / "snapshots" / (home / "refs" / "main").read_text()
assert os.environ["HF_HUB_OFFLINE"] == "1"
assert json.loads((snapshot / "tokenizer.json").read_text())
out = pathlib.Path(given["--output-artifact-dir"])
out.mkdir()
file = given.get("--input-file")
num = len(pathlib.Path(file).read_text().splitlines()) if file else int(given["--request-count"])
(out / "profile_export_aiperf.json").write_text(json.dumps({{"request_count": {{"avg": num}}}}))
"""


def test_the_command_gets_an_offline_tokenizer_and_its_report_is_read(tmp_path: Path) -> None:
    script = tmp_path / "aiperf"
    script.write_text(SCRIPT)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    _, trace, chats = loads(7)
    assert run_load(trace, script, "http://127.0.0.1:1", "m", tmp_path).is_good
    assert run_load(chats, script, "http://127.0.0.1:1", "m", tmp_path).answered == 7
    (tmp_path / "other").mkdir()
    with pytest.raises(EngineFailure, match="mooncake: AIPerf ended with 1 and no report:\nno such model"):
        run_load(trace, script, "http://127.0.0.1:1", "broken", tmp_path / "other")


def test_a_missing_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["aiperf_load", "--url", "http://127.0.0.1:1", "--aiperf", str(tmp_path / "no")]
    monkeypatch.setattr(sys, "argv", argv)
    assert aiperf_load.main() == 2
    assert capsys.readouterr().err == (
        f"ConfigError: there is no {tmp_path / 'no'}; run `make aiperf-env`, or give --aiperf\n"
    )
