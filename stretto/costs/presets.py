"""Costs that come with the project: fitted numbers of models and machines, with their sources.

A preset is a JSON file in `presets/` with these optional keys:

    hardware, kernels  the device, and how the engine computes
    models             sizes of the models
    numbers            numbers fitted to each model, by "model|tp1"
    shared             numbers for all other models, by number of devices
    regressions        names of Preble's regressions, by model
    loading            times to start an instance
    engines            profiles of other engines
    stands_in          preset whose numbers these are, if the device was not measured
    about              what was measured, and on what
    sources, licence   whose measurements they are
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from stretto.costs.kv_room import check_fits
from stretto.costs.loading import LoadingCost, Source, StartTimes, Storage
from stretto.costs.output_lengths import LengthsBySource, OutputLengths
from stretto.costs.preble import preble_cost
from stretto.costs.shape import Hardware, LLMModel
from stretto.costs.step import LLMStepCost, StepCost
from stretto.costs.step_features import Kernels, StepFeatures
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile

_LENGTHS = "output_lengths"
_KEYS = {"name", "about", "sources", "licence", "hardware", "kernels", "models", "numbers", "shared"} | {
    "regressions",
    "loading",
    "engines",
    "stands_in",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """Known costs of one kind of machine: how long steps and starts of LLMs, and other engines, take.

    Attributes:
        about: what was measured, and on what.
        numbers: numbers fitted to each model, by "model|tp1" (name and number of devices).
        shared: numbers for all other models, by number of devices.
        regressions: names of Preble's regressions of step times, by "model|tp1".
        loading: times to start an instance.
        engines: latency profiles of other engines.
        stands_in: name of the preset whose numbers these are, if the device itself was not measured.
    """

    name: str
    about: str
    hardware: Hardware | None
    kernels: Kernels
    models: Mapping[str, LLMModel]
    numbers: Mapping[str, Mapping[str, float]]
    shared: Mapping[int, Mapping[str, float]]
    regressions: Mapping[str, str]
    loading: LoadingCost | None
    engines: Mapping[str, Profile]
    stands_in: str | None = None

    @property
    def has_steps(self) -> bool:
        """Whether it has step times of LLMs."""
        return self.hardware is not None and bool(self.numbers or self.shared or self.regressions)

    def has_steps_on(self, tensor_parallel: int) -> bool:
        """Return whether it has step times of some LLM on so many devices."""
        by_model = (*self.numbers, *self.regressions)
        return tensor_parallel in self.shared or any(
            key.endswith(f"|tp{tensor_parallel}") for key in by_model
        )

    def model(self, name: str) -> LLMModel:
        """Return the sizes of one of the LLMs that this preset has, by the model's name.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.models:
            raise ConfigError(f"preset {self.name} has no model {name!r}; it has {', '.join(self.models)}")
        return self.models[name]

    def step_cost(self, model: LLMModel, tensor_parallel: int = 1) -> StepCost:
        """Return the prediction of a model's step times on this kind of machine, with `tensor_parallel`
        devices.

        It is one of Preble's regressions if there is one for the model, else the physical formula with fitted
        numbers.

        Raises:
            ConfigError: the model does not fit, or no numbers are known for that many devices.
        """
        hardware = self._hardware_for(model, tensor_parallel)
        if regression := self.regressions.get(f"{model.name}|tp{tensor_parallel}"):
            return preble_cost(regression)
        numbers = self.step_numbers(model, tensor_parallel)
        return LLMStepCost(StepFeatures(model, hardware, tensor_parallel, self.kernels), numbers)

    def step_numbers(self, model: LLMModel, tensor_parallel: int = 1) -> Mapping[str, float]:
        """Return the fitted factors of the physical formula that predicts a model's step times, by name.

        They are the model's own if it was measured, else those shared by all models.

        Raises:
            ConfigError: the model does not fit, or no numbers are known for that many devices.
        """
        self._hardware_for(model, tensor_parallel)
        numbers = self.numbers.get(f"{model.name}|tp{tensor_parallel}", self.shared.get(tensor_parallel))
        if numbers is None:
            raise ConfigError(
                f"preset {self.name} has no step costs of {model.name} on {tensor_parallel} devices"
            )
        return numbers

    def loading_s(self, model: LLMModel, tensor_parallel: int = 1) -> float | None:
        """Return the seconds to start an instance of a model on `tensor_parallel` devices of this kind of
        machine; None if the preset has no times of starts.
        """
        return None if self.loading is None else self.loading.seconds(model, tensor_parallel)

    def start(self, model: LLMModel, tensor_parallel: int, source: Source, storage: Storage) -> StartTimes:
        """Return how long a start of an instance takes if its weights are in this place before; no time if
        the preset has no times of starts.
        """
        if self.loading is None:
            return StartTimes(0.0)
        return self.loading.start(model, tensor_parallel, source, storage)

    def _hardware_for(self, model: LLMModel, tensor_parallel: int) -> Hardware:
        if self.hardware is None:
            raise ConfigError(f"preset {self.name} has no step costs")
        check_fits(model, self.hardware, tensor_parallel)
        return self.hardware


def preset_names() -> list[str]:
    """Return the names of all presets (machines with known costs) that come with the project."""
    files = resources.files("stretto.costs").joinpath("presets").iterdir()
    names = (file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))
    return sorted(name for name in names if name != _LENGTHS)


def all_presets() -> dict[str, Preset]:
    """Return all presets that come with the project, by name."""
    return {name: preset_of(_read(name)) for name in preset_names()}


def load_preset(name: str) -> Preset:
    """Return the preset of this name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in preset_names():
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(preset_names())}")
    return preset_of(_read(name))


def read_preset(path: Path) -> Preset:
    """Read a preset from a file.

    Raises:
        ConfigError: the file cannot be read, or a value is missing, unknown or impossible.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"preset {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"preset {path}: must be a mapping")
    return preset_of(found)


def write_preset(preset: Preset, path: Path) -> None:
    """Write a preset to a file from which `read_preset` reads it."""
    found = {name: value for name, value in asdict(preset).items() if value or name == "about"}
    for model in found.get("models", {}).values():
        del model["name"]
    path.write_text(json.dumps(found), "utf-8")


def preset_of(found: Mapping[str, Any]) -> Preset:
    """Build a preset from the content of its file.

    Raises:
        ConfigError: a value is missing, unknown or impossible; the message names it.
    """
    name = found.get("name", "?")
    if unknown := set(found) - _KEYS:
        raise ConfigError(f"preset {name}: unknown keys {', '.join(sorted(unknown))}")
    try:
        hardware = Hardware(**found["hardware"]) if "hardware" in found else None
        models = {key: LLMModel(name=key, **fields) for key, fields in found.get("models", {}).items()}
        preset = Preset(
            name=found["name"],
            about=found["about"],
            hardware=hardware,
            kernels=Kernels(**found.get("kernels", {})),
            models=models,
            numbers=found.get("numbers", {}),
            shared={int(devices): numbers for devices, numbers in found.get("shared", {}).items()},
            regressions=found.get("regressions", {}),
            loading=LoadingCost(**found["loading"]) if "loading" in found else None,
            engines={key: Profile(**fields) for key, fields in found.get("engines", {}).items()},
            stands_in=found.get("stands_in"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"preset {name}: {error}") from error
    for key, regression in preset.regressions.items():
        preset.model(key.rpartition("|tp")[0])
        preble_cost(regression)
    for key, numbers in preset.numbers.items():
        model, _, devices = key.rpartition("|tp")
        if hardware is None or not devices.isdigit():
            raise ConfigError(
                f"preset {name}: numbers of {key!r} need hardware and a key of the form MODEL|tpN"
            )
        LLMStepCost(StepFeatures(preset.model(model), hardware, int(devices), preset.kernels), numbers)
    return preset


def load_output_lengths() -> LengthsBySource:
    """Read the distributions of answer lengths, as counted for 23 LLMs, that come with the project.

    A model that was measured with a second template has a distribution for that too.
    """
    found = _read(_LENGTHS)["models"]
    return LengthsBySource(
        {
            (model, template): OutputLengths(tuple(counts["lengths"]), tuple(counts["weights"]))
            for model, templates in found.items()
            for template, counts in templates.items()
        }
    )


def _read(name: str) -> Any:
    file = resources.files("stretto.costs").joinpath("presets", f"{name}.json")
    return json.loads(file.read_text("utf-8"))
