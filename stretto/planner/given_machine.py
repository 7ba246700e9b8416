"""Machines as users give them: a name, this machine, or a file.

    name: workstation
    gpu: L40S              # or its peak figures: {name: …, bandwidth_gb_s: …, tflops: …, cores: …}
    count: 4
    memory_gib: 45         # of each GPU; default: all that it has
    nvlink: false          # default: as usual for such GPUs
    disk_gb_s: 6
    link_gb_s: 25          # between the host's memory and each GPU

Instead of `gpu`, `costs` may name a file with measured costs, as presets have them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any

from stretto.costs.gpus import GPUS, peak_figures
from stretto.costs.known_costs import llm_device
from stretto.costs.loading import Storage
from stretto.costs.shape import Hardware
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import nearest_name
from stretto.planner.detected import detect_machine
from stretto.planner.machine import USUAL_STORAGE, PlanMachine, machine_of
from stretto.planner.yaml_file import YAML_ERRORS, read_yaml

HERE = "here"
_ENDINGS = (".yaml", ".yml", ".json")
_FIELDS = ("name", "gpu", "costs", "count", "memory_gib", "nvlink", "disk_gb_s", "link_gb_s")
_GPU_FIELDS = ("name", "bandwidth_gb_s", "tflops", "cores")
_GPU_WORDS = ", ".join(_GPU_FIELDS)
_MAX_DEVICES = 1024
_MAX_NUMBER = 1e6
_GB = 1e9
_GIB = 2**30


def given_machine(text: str) -> PlanMachine:
    """Return the machine of this name, that of a file (which ends in .yaml, .yml or .json), or this one
    ("here").

    Raises:
        ConfigError: there is none, or a field of its file is missing, unknown or impossible.
    """
    if text.casefold() == HERE:
        return detect_machine()
    if text.casefold().endswith(_ENDINGS):
        return read_machine(Path(text))
    try:
        return machine_of(text)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}; or name a machine file (.yaml), '{HERE}' for the GPUs of this machine, or "
            "'cpu' for its cores"
        ) from error


def read_machine(path: Path) -> PlanMachine:
    """Read a machine from its file.

    Raises:
        ConfigError: it cannot be read, or a field is missing, unknown or impossible; the message names it.
    """
    try:
        found = read_yaml(path)
    except YAML_ERRORS as error:
        raise ConfigError(f"machine {path}: {error}") from error
    try:
        return _machine(found, path)
    except ConfigError as error:
        raise ConfigError(f"machine {path}: {error.message}") from error


def _machine(found: Any, path: Path) -> PlanMachine:
    _check_fields(found, _FIELDS, "a machine")
    name = found.get("name", path.stem)
    if not (isinstance(name, str) and name and name.isprintable()):
        raise ConfigError(f"name must be a text, got {short(name)}")
    if ("gpu" in found) == ("costs" in found):
        raise ConfigError("needs either gpu or costs")
    if "costs" in found:
        gpu: str | Hardware = _costs_file(found["costs"], path)
        if "nvlink" in found:
            raise ConfigError(
                "nvlink has no use beside costs, which were measured with the links that there are"
            )
        has_nvlink = True
    else:
        gpu = _gpu(found["gpu"], found)
        usual = isinstance(gpu, str) and GPUS[gpu].has_nvlink
        has_nvlink = found.get("nvlink", usual)
        if not isinstance(has_nvlink, bool):
            raise ConfigError(f"nvlink must be true or false, got {short(has_nvlink)}")
    count = found.get("count")
    if type(count) is not int or not 1 <= count <= _MAX_DEVICES:
        raise ConfigError(f"count must be a number of GPUs from 1 to {_MAX_DEVICES}, got {short(count)}")
    return PlanMachine(
        name,
        count,
        gpu,
        Storage(
            _number(found, "disk_gb_s", USUAL_STORAGE.disk_bytes_s / _GB) * _GB,
            _number(found, "link_gb_s", USUAL_STORAGE.link_bytes_s / _GB) * _GB,
        ),
        memory_bytes=_number(found, "memory_gib") * _GIB if "memory_gib" in found else None,
        has_nvlink=has_nvlink,
    )


def _gpu(value: Any, machine: Mapping[str, Any]) -> str | Hardware:
    """Return the name of a GPU that is known, or the peak figures of another one."""
    if isinstance(value, str):
        try:
            return nearest_name(value, GPUS, "gpu: there are no figures of the GPU")
        except ConfigError as error:
            raise ConfigError(f"{error.message}; or give a mapping with its {_GPU_WORDS}") from error
    _check_fields(value, _GPU_FIELDS, "gpu, if it is not a name,")
    name, cores = value.get("name"), value.get("cores")
    if not (isinstance(name, str) and name and name.isprintable()):
        raise ConfigError(f"gpu: name must be a text, got {short(name)}")
    if type(cores) is not int or not 1 <= cores <= _MAX_NUMBER:
        raise ConfigError(f"gpu: cores must be its number of multiprocessors, got {short(cores)}")
    if "memory_gib" not in machine:
        raise ConfigError("memory_gib is needed for a gpu with peak figures")
    memory_bytes = _number(machine, "memory_gib") * _GIB
    bandwidth, tflops = (_number(value, key, place="gpu: ") for key in ("bandwidth_gb_s", "tflops"))
    return peak_figures(name, memory_bytes, bandwidth * _GB, tflops * 1e12, cores)


def _costs_file(value: Any, path: Path) -> str:
    if not (isinstance(value, str) and value.endswith(".json")):
        raise ConfigError(f"costs must be the path of a file that ends in .json, got {short(value)}")
    file = str(path.parent / value)
    try:
        llm_device(file)
    except ConfigError as error:
        raise ConfigError(f"costs: {error.message}") from error
    return file


def _number(found: Mapping[str, Any], key: str, default: float | None = None, place: str = "") -> float:
    value = found.get(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MAX_NUMBER or math.isnan(value):
        raise ConfigError(
            f"{place}{key} must be a number above 0, at most {_MAX_NUMBER:.0f}, got {short(value)}"
        )
    return float(value)


def _check_fields(found: Any, known: tuple[str, ...], what: str) -> None:
    if not isinstance(found, dict):
        raise ConfigError(f"{what} must be a mapping with {', '.join(known)}; got {short(found)}")
    for field in found:
        if field not in known:
            raise ConfigError(f"{what} has the unknown field {short(field)}; known are {', '.join(known)}")
