"""The devices and models that can be emulated: those whose costs come with the project."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stretto.costs.known_models import KNOWN_MODELS
from stretto.costs.presets import Preset, all_presets, read_preset
from stretto.costs.shape import LLMModel, model_of
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import nearest_name

NO_COSTS = "there are no costs of the"
"""First words of the refusal of a model or device."""


def llm_device(name: str) -> Preset:
    """Return the costs of a device that LLMs can run on.

    A device is named by its preset, in any case; or by the path of a file like one, which ends in ".json".

    Raises:
        ConfigError: there are none; the message names the nearest device that has some.
    """
    if name.endswith(".json"):
        preset = read_preset(Path(name))
        if not preset.has_steps:
            raise ConfigError(f"preset {name}: has no step costs")
        return preset
    able = {known: preset for known, preset in all_presets().items() if preset.has_steps}
    return able[nearest_name(name, able, f"{NO_COSTS} device")]


def llm_model(name: str, device: Preset) -> LLMModel:
    """Return the sizes of a model that can run on a device.

    A model is named as in a preset, in any case, with or without the ending "-hf" and its owner; or by a
    directory with a `config.json`, if the device has costs for models that were not measured. A model in a
    directory that has the name of a measured one, but other sizes, gets another name.

    Raises:
        ConfigError: there are no costs of it; the message names the nearest model that has some, and what
            else can be named.
    """
    if name in device.models:
        return device.models[name]
    folder = Path(name)
    if not device.shared:
        return model_named(name, device)
    if (folder / "config.json").is_file():
        return _model_in(folder, device)
    try:
        return model_named(name, device)
    except ConfigError as error:
        if folder.is_dir():
            raise ConfigError(f"model {name}: the folder has no config.json") from error
        message = f"{error.message}; or name the folder of its config.json"
        raise ConfigError(message) from error


def _model_in(folder: Path, device: Preset) -> LLMModel:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        found = model_of(folder.resolve().name, config)
    except ConfigError as error:
        raise ConfigError(f"model {folder}: its config.json cannot be used: {error.message}") from error
    except KeyError as error:
        raise ConfigError(f"model {folder}: its config.json cannot be used: there is no {error}") from error
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"model {folder}: its config.json cannot be used: {error}") from error
    measured = device.models.get(found.name)
    if measured is None or replace(found, max_context_tokens=measured.max_context_tokens) == measured:
        return found
    return replace(found, name=f"{found.name} (other sizes)")


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
