"""The devices and models that can be emulated: those whose costs come with the project."""

from __future__ import annotations

import json
from pathlib import Path

from stretto.costs.known_models import KNOWN_MODELS
from stretto.costs.presets import Preset, all_presets
from stretto.costs.shape import LLMModel, model_of
from stretto.errors import ConfigError
from stretto.nearest_name import nearest_name

NO_COSTS = "there are no costs of the"
"""First words of the refusal of a model or device."""


def llm_device(name: str) -> Preset:
    """Return the costs of a device that LLMs can run on, by the name of its preset in any case.

    Raises:
        ConfigError: there are none; the message names the nearest device that has some.
    """
    able = {known: preset for known, preset in all_presets().items() if preset.shared or preset.regressions}
    return able[nearest_name(name, able, f"{NO_COSTS} device")]


def llm_model(name: str, device: Preset) -> LLMModel:
    """Return the sizes of a model that can run on a device.

    A model is named as in a preset, in any case, with or without the ending "-hf" and its owner; or by a
    directory with a `config.json`, if the device has costs for models that were not measured.

    Raises:
        ConfigError: there are no costs of it; the message names the nearest model that has some.
    """
    if device.shared and (Path(name) / "config.json").is_file():
        try:
            return model_of(Path(name).name, json.loads((Path(name) / "config.json").read_text("utf-8")))
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"model {name}: its config.json cannot be used: {error}") from error
    return model_named(name, device)


def model_named(name: str, device: Preset) -> LLMModel:
    """Return the sizes of a model that can run on a device, named as in a preset, in any case, with or
    without the ending "-hf" and its owner.

    Raises:
        ConfigError: there are no costs of it; the message names the nearest model that has some.
    """
    models = dict(device.models)
    if device.shared:  # with these, its costs are those of any model
        for preset in all_presets().values():
            models = {**preset.models, **models}
        models = {**KNOWN_MODELS, **models}
    wanted = name.rpartition("/")[2]
    known = {one.casefold() for one in models}
    if wanted.casefold() not in known and f"{wanted}-hf".casefold() in known:
        wanted = f"{wanted}-hf"
    return models[nearest_name(wanted, models, f"{NO_COSTS} model")]


def batch_device(name: str, engine: str) -> Preset:
    """Return the costs of a device that have a profile of an engine such as "embedding".

    Raises:
        ConfigError: there are none; the message names the devices that have some.
    """
    able = {known: preset for known, preset in all_presets().items() if engine in preset.engines}
    return able[nearest_name(name, able, f"{NO_COSTS} engine {engine!r} on the device")]
