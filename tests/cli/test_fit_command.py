from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.step_costs import SMALL, shapes, true_cost

CONFIG = {
    "num_hidden_layers": SMALL.num_layers,
    "hidden_size": SMALL.hidden_size,
    "num_attention_heads": SMALL.num_heads,
    "intermediate_size": SMALL.intermediate_size,
    "vocab_size": SMALL.vocab_size,
    "hidden_act": "silu",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    rows = [{**shape._asdict(), "seconds": true_cost().step_s(shape)} for shape in shapes()]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_fits_a_step_cost_to_measured_steps(stretto: CommandLine, steps: Path, config: Path) -> None:
    ended = stretto("profile", "--fit", str(steps), "--model-config", str(config), "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["model"]["name"] == "small"
    assert found["mean_error"]["fitted"] < 0.1
    assert min(found["numbers"].values()) >= 0


def test_says_what_is_wrong(stretto: CommandLine, steps: Path, config: Path, tmp_path: Path) -> None:
    lines = steps.read_text().splitlines()
    steps.write_text("\n".join([*lines[:3], lines[3].rpartition(",")[0] + ",-1"]))
    ended = stretto("profile", "--fit", str(steps), "--model-config", str(config))
    assert ended.code == 2
    assert "row 4: seconds must be finite and not negative, got -1.0" in " ".join(ended.err.split())
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**CONFIG, "num_hidden_layers": 400}))
    ended = stretto("profile", "--fit", str(steps), "--model-config", str(large))
    assert "does not fit" in " ".join(ended.err.split())
    large.write_text("{}")
    ended = stretto("profile", "--fit", str(steps), "--model-config", str(large))
    assert "there is no 'num_attention_heads'" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "recursion"),
        (json.dumps({**CONFIG, "hidden_size": float("inf")}), "infinity"),
        (json.dumps({**CONFIG, "hidden_size": 10**400}), "a size is too large, more than"),
    ],
    ids=["deep", "endless", "huge"],
)
def test_a_configuration_that_is_none_is_refused(
    stretto: CommandLine, steps: Path, config: Path, text: str, reason: str
) -> None:
    config.write_text(text)
    assert reason in stretto.refuses("profile", "--fit", str(steps), "--model-config", str(config))


def test_too_few_steps_name_the_file(stretto: CommandLine, steps: Path, config: Path) -> None:
    steps.write_text("".join(steps.read_text().splitlines(keepends=True)[:4]))
    said = stretto.refuses("profile", "--fit", str(steps), "--model-config", str(config))
    assert "steps.csv, 3 steps: a step cost needs at least 8" in " ".join(said.split())


def test_needs_a_model_and_no_engine(stretto: CommandLine, steps: Path) -> None:
    assert "--model-config" in stretto("profile", "--fit", str(steps)).err
    assert "give an engine" in stretto("profile").err
