"""Plans for the cores of this machine: models are measured once, and answer as they do without a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.command_line import CommandLine

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.common.mini_model import MINI
from stretto.cli import cores
from stretto.costs.step_terms import NUMBERS
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, ModelNode
from stretto.planner.core_costs import CoreCost, CoreModel
from stretto.planner.cores import core_models


class Measuring:
    """Takes the place of a measurement, which takes processes, and counts."""

    def __init__(self) -> None:
        self.num_measured = 0

    def __call__(self, model: CoreModel, on: Sequence[int], max_s: float) -> CoreCost:
        self.num_measured += 1
        return CoreCost(model.sizes, dict.fromkeys(NUMBERS, 0.5 * self.num_measured), 3.0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Path of the file of kept costs, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cores.core_costs_file()


def mini() -> dict[str, CoreModel]:
    return core_models(Application("app", [ModelNode("writer", str(MINI), 64)]))


def test_costs_of_a_gguf_file_are_kept(kept: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from checks.gguf_files import write_gguf

    path = write_gguf(MINI, tmp_path / "model.gguf", "F32")
    measure, models = Measuring(), core_models(Application("app", [ModelNode("writer", str(path), 64)]))
    for _ in range(2):
        cores.core_costs(models, print, measure)
    assert measure.num_measured == 1


def test_costs_are_measured_once_and_kept(kept: Path) -> None:
    measure, told = Measuring(), list[str]()
    first = cores.core_costs(mini(), told.append, measure)
    assert cores.core_costs(mini(), told.append, measure) == first
    assert measure.num_measured == 1
    (said,) = told
    assert said.startswith(f"measuring model {MINI}")
    assert str(kept) in said
    kept.write_text(json.dumps({"of another processor": first[str(MINI)].as_json()}), "utf-8")
    assert cores.core_costs(mini(), told.append, measure) != first, "they are measured again"
    assert len(json.loads(kept.read_text("utf-8"))) == 2


@pytest.mark.parametrize("text", ["[1]", "{", "", "[" * 10_000, "7"])
def test_a_file_that_holds_no_costs_is_named(kept: Path, text: str) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"is not a file of costs.*; remove it"):
        cores.core_costs(mini(), print, Measuring())


@pytest.mark.parametrize("entry", [{}, [], {"model": {}}, {"model": 1, "numbers": {}, "start_s": 1}])
def test_kept_costs_that_are_none_are_named(kept: Path, entry: object) -> None:
    cores.core_costs(mini(), print, Measuring())
    kept.write_text(json.dumps(dict.fromkeys(json.loads(kept.read_text("utf-8")), entry)), "utf-8")
    with pytest.raises(ConfigError, match=r"is not a file of costs.*; remove it"):
        cores.core_costs(mini(), print, Measuring())


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    monkeypatch.setattr(cores, "MEASURING_S", 0.5)
    app, requests = tmp_path / "app.yaml", tmp_path / "in.jsonl"
    app.write_text(
        "name: pair\n"
        "nodes:\n"
        f"  - {{name: writer, model: {MINI}, max_tokens: 12}}\n"
        f"  - {{name: judge, model: {MINI}, max_tokens: 8, inputs: [writer]}}\n",
        "utf-8",
    )
    lines = (json.dumps({"custom_id": str(at), "prompt": f"The guild moved in {at}."}) for at in range(4))
    requests.write_text("\n".join(lines), "utf-8")
    return app, requests


@pytest.mark.long  # six processes load torch
def test_models_are_measured_once_and_answer_as_without_a_plan(
    stretto: CommandLine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    app, requests = files
    ended = stretto("plan", app, "--requests", requests, "--machine", "cpu", "--json")
    assert ended.code == 0, ended
    assert f"measuring model {MINI}" in ended.err
    plan = json.loads(ended.out)
    assert "of this machine" in plan["machine"]
    assert {node for span in plan["spans"] for node in span["nodes"]} == {"writer", "judge"}

    planned, plain = tmp_path / "planned.jsonl", tmp_path / "plain.jsonl"
    ended = stretto("run-plan", app, "--requests", requests, "--machine", "cpu", "--out", planned)
    assert ended.code == 0, ended
    assert "measuring" not in ended.err
    assert "4 requests answered" in ended.err
    ended = stretto("run-plan", app, "--requests", requests, "--out", plain)
    assert ended.code == 0, ended
    assert sorted(planned.read_text("utf-8").splitlines()) == sorted(plain.read_text("utf-8").splitlines())
