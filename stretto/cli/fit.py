"""`stretto profile --fit`: fits a prediction of an LLM's step times to measured steps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stretto.costs.fit import fit_step_cost
from stretto.costs.kv_room import check_fits
from stretto.costs.presets import load_preset
from stretto.costs.shape import LLMModel, model_of
from stretto.costs.step_features import StepFeatures
from stretto.costs.steps_file import read_steps
from stretto.model.errors import ConfigError, DocumentError


def fit_steps(
    steps_file: Path,
    *,
    config_file: Path,
    preset: str,
    tensor_parallel: int,
    as_json: bool,
) -> None:
    """Fit a prediction of an LLM's step times to measured steps in a CSV file, and print it.

    Args:
        config_file: config.json of the measured model.
        preset: name of the preset with the hardware and starting values.
        tensor_parallel: number of devices of an instance.
    """
    machine = load_preset(preset)
    if machine.hardware is None:
        raise ConfigError(f"--preset {preset}: the preset has no accelerator")
    model = _model(config_file)
    check_fits(model, machine.hardware, tensor_parallel)
    steps = read_steps(steps_file)
    features = StepFeatures(model, machine.hardware, tensor_parallel, machine.kernels)
    try:
        cost = fit_step_cost(features, steps, machine.shared.get(tensor_parallel))
    except ConfigError as refused:
        raise ConfigError(f"{steps_file}, {len(steps)} steps: {refused.message}") from refused
    mean_error = sum(abs(cost.step_s(step.shape) / step.seconds - 1) for step in steps) / len(steps)
    if as_json:
        found: dict[str, Any] = {"model": asdict(model), "tensor_parallel": tensor_parallel}
        print(
            json.dumps(
                {**found, "preset": preset, "numbers": cost.numbers, "mean_error": {"fitted": mean_error}}
            )
        )
        return
    table = Table("number", "value", title=f"{model.name} on {tensor_parallel} × {machine.hardware.name}")
    for name, value in cost.numbers.items():
        table.add_row(name, f"{value:.4g}")
    console = Console(emoji=False)
    console.print(table)
    console.print(f"mean error of {len(steps)} steps, fitted: {mean_error:.1%}", highlight=False)


def _model(path: Path) -> LLMModel:
    try:
        config = json.loads(path.read_text("utf-8-sig"))
        return model_of(path.parent.resolve().name, config)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DocumentError(f"{path}: {error}") from error
    except KeyError as error:
        raise DocumentError(f"{path}: there is no {error}") from error
    except ConfigError as error:
        raise DocumentError(f"{path}: {error.message}") from error
