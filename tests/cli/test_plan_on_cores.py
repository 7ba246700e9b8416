"""Plans for the cores of this machine: models are measured once, and answer as they do without a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import CommandLine

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto.cli import cores


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    monkeypatch.setattr(cores, "MEASURING_S", 0.5)
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text(
        "name: pair\n"
        "nodes:\n"
        "  - {name: writer, model: mini, max_tokens: 12}\n"
        "  - {name: judge, model: mini, max_tokens: 8, inputs: [writer]}\n",
        "utf-8",
    )
    lines = (json.dumps({"custom_id": str(at), "prompt": f"The guild moved in {at}."}) for at in range(4))
    requests.write_text("\n".join(lines), "utf-8")
    return app, requests


def test_models_are_measured_once_and_answer_as_without_a_plan(
    stretto: CommandLine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--machine", "cpu", "--json")
    assert ended.code == 0, ended
    assert "measuring model mini" in ended.err
    plan = json.loads(ended.out)
    assert "of this machine" in plan["machine"]
    assert {span["node"] for span in plan["spans"]} == {"writer", "judge"}

    planned, plain = tmp_path / "planned.jsonl", tmp_path / "plain.jsonl"
    ended = stretto("run-plan", app, "--requests", requests, "--machine", "cpu", "--out", planned)
    assert ended.code == 0, ended
    assert "measuring" not in ended.err
    assert "4 requests answered" in ended.err
    ended = stretto("run-plan", app, "--requests", requests, "--out", plain)
    assert ended.code == 0, ended
    assert sorted(planned.read_text("utf-8").splitlines()) == sorted(plain.read_text("utf-8").splitlines())

    kept = cores.core_costs_file()
    kept.write_text(json.dumps({key: {} for key in json.loads(kept.read_text("utf-8"))}), "utf-8")
    message = stretto.refuses("plan", app, "--requests", requests, "--machine", "cpu")
    assert f"{kept} is not a file of costs" in message
    kept.write_text("[1]", "utf-8")
    message = stretto.refuses("plan", app, "--requests", requests, "--machine", "cpu")
    assert f"{kept} is not a file of costs; remove it" in message
