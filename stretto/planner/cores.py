"""The cores of this machine as devices of a plan: a replica is a process with one thread on a core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from stretto.costs.loading import LoadingCost
from stretto.costs.presets import Preset
from stretto.costs.shape import model_of
from stretto.costs.step_features import Kernels
from stretto.engines.llms import checkpoint_path, llm_replica
from stretto.model.errors import ConfigError
from stretto.planner.application import Application
from stretto.planner.core_costs import CoreCost, CoreModel, core_hardware
from stretto.planner.machine import PlanMachine

CPU = "cpu"
"""Name of the machine whose devices are the cores of this one."""
_FLOAT32_BYTES = 4
_MOST_BYTES = 16 * 2**30
"""Most memory of a core: models that a core serves well do not need more."""


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def core_models(app: Application) -> dict[str, CoreModel]:
    """Return the models of an application, by the name that its nodes give.

    Raises:
        ConfigError: a model is no checkpoint, the in-process engine cannot run it, or packages are missing.
    """
    found: dict[str, CoreModel] = {}
    for node in app.nodes:
        if node.model not in found:
            try:
                found[node.model] = core_model(node.model)
            except ConfigError as error:
                raise ConfigError(f"node {node.name!r}: {error.message}") from error
    return found


def core_model(name: str) -> CoreModel:
    """Return a model that a replica on a core can run. Raises ConfigError as `core_models`."""
    path = checkpoint_path(name)
    if not path.exists():
        raise ConfigError(
            f"model {name!r} is no checkpoint (a folder, a GGUF file, or the name of a fetched model), as "
            "models on cores must be"
        )
    replica = llm_replica(name)
    from stretto.engines.transformer.config import read_config, read_raw_config
    from stretto.engines.transformer.engine_config import TransformerConfig

    if not isinstance(replica.config, TransformerConfig):
        raise ConfigError(f"model {name!r} is of a kind that cannot be planned on cores")
    read_config(path)  # refuses kinds of models that the engine does not know, before their sizes are read
    sizes = model_of(name, read_raw_config(path))
    return CoreModel(path, replace(sizes, dtype_bytes=_FLOAT32_BYTES), replica)


def cores_machine(costs: Mapping[str, CoreCost], num_cores: int) -> PlanMachine:
    """Return the machine of this many cores, with measured costs of models by the names that applications
    give them.
    """
    main_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    measured = {f"{name}|tp1": cost for name, cost in costs.items()}
    starts = {key: cost.start_s for key, cost in measured.items()}
    preset = Preset(
        name="a core of this machine",
        about="measured on this machine",
        hardware=core_hardware(min(main_bytes / num_cores, _MOST_BYTES)),
        kernels=Kernels(),
        models={name: replace(cost.model, name=name) for name, cost in costs.items()},
        numbers={key: cost.numbers for key, cost in measured.items()},
        shared={},
        regressions={},
        loading=LoadingCost(max(starts.values()), 0.0, 0.0, starts),
        engines={},
    )
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    return PlanMachine(f"{cores} of this machine", num_cores, preset, device="core")
