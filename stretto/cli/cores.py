"""Costs of models on this machine's cores, which are measured once and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stretto.model.errors import ConfigError, UserError
from stretto.model.user_folders import cache_dir
from stretto.planner.core_costs import CoreCost, CoreModel, core_cost_of, measure_on_cores
from stretto.planner.cores import CPU, core_model, cores_machine, usable_cores
from stretto.planner.given_machine import given_machine
from stretto.planner.machine import PlanMachine, planned_model

MEASURING_S = 8.0
"""Seconds for the steps of a model."""


def measured_cores(models: Mapping[str, CoreModel], say: Callable[[str], None]) -> PlanMachine:
    """Return the cores of this machine as a machine, with the costs of these models.

    Raises:
        EngineFailure: a process that measures has died.
        ConfigError: a model cannot be used.
    """
    return cores_machine(core_costs(models, say), len(usable_cores()))


def model_check(machine: str) -> Callable[[str], object]:
    """Return what checks that a model can be planned on a machine. It raises ConfigError if not."""
    if machine.casefold() == CPU:
        return core_model
    return partial(planned_model, machine=given_machine(machine))


def core_costs(
    models: Mapping[str, CoreModel],
    say: Callable[[str], None],
    measure: Callable[[CoreModel, Sequence[int], float], CoreCost] = measure_on_cores,
) -> dict[str, CoreCost]:
    """Return the costs of models on the cores of this machine, by the name that an application gives them.

    Those that are not known are measured, and kept for later runs.

    Args:
        say: told what is being done.
        measure: measures a model on cores, given the seconds for its steps.

    Raises:
        ConfigError: the file of kept costs cannot be read.
        UserError: it cannot be written.
    """
    cores, path = usable_cores(), core_costs_file()
    kept = _kept(path)
    found: dict[str, CoreCost] = {}
    for name, model in models.items():
        key = _key(model, cores)
        if key not in kept:
            say(
                f"measuring model {name} on {len(cores)} cores, for {MEASURING_S:.0f} s and its start, "
                f"three times as long on a busy machine; kept in {path}"
            )
            kept[key] = measure(model, cores, MEASURING_S).as_json()
            _keep(path, kept)
        try:
            found[name] = core_cost_of(kept[key])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} is not a file of costs ({error!r}); remove it") from error
    return found


def core_costs_file() -> Path:
    """Return the path of the file where measured costs of models on cores are kept."""
    return cache_dir() / "core_costs.json"


def _kept(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a file of costs ({error}); remove it") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a file of costs; remove it")
    return found


def _keep(path: Path, costs: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".new")
        written.write_text(json.dumps(costs, indent=2), "utf-8")
        written.replace(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _key(model: CoreModel, cores: tuple[int, ...]) -> str:
    """Return a text that differs for models, machines and versions of what runs them."""
    from stretto.engines.transformer.config import read_raw_config

    files = [model.path] if model.path.is_file() else model.path.glob("*.safetensors")
    weights = sorted((file.name, file.stat().st_size) for file in files)
    facts = (
        json.dumps(read_raw_config(model.path)),
        weights,
        len(cores),
        _processor(),
        version("torch"),
        version("stretto"),
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _processor() -> str:
    """Return the name of this machine's processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")
