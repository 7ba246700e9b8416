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

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from stretto.costs.gpus import GPUS, peak_figures
from stretto.costs.known_costs import llm_device
from stretto.costs.loading import Storage
from stretto.costs.shape import Hardware
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import nearest_name
from stretto.model.wording import why_unreadable
from stretto.planner.detected import detect_machine
from stretto.planner.machine import USUAL_STORAGE, PlanMachine, machine_of
from stretto.planner.yaml_file import YAML_ERRORS, read_yaml
from stretto.schema.typed import read_as, words_for

HERE = "here"
_ENDINGS = (".yaml", ".yml", ".json")
_MAX_DEVICES = 1024
_MAX_NUMBER = 1e6
_GB = 1e9
_GIB = 2**30
_Amount: TypeAlias = Annotated[
    float, Meta(gt=0, le=_MAX_NUMBER, description=f"a number above 0, at most {_MAX_NUMBER:.0f}")
]
_Devices: TypeAlias = Annotated[
    int, Meta(ge=1, le=_MAX_DEVICES, description=f"a number of GPUs from 1 to {_MAX_DEVICES}")
]
_Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class _PeakFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Peak figures of a GPU, as a machine's file has them."""

    name: _Name
    bandwidth_gb_s: _Amount
    tflops: _Amount
    cores: Annotated[int, Meta(ge=1, le=int(_MAX_NUMBER))]


class _MachineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine as its file has it."""

    count: _Devices
    name: _Name | None = None
    gpu: str | _PeakFigures | None = None
    costs: str | None = None
    memory_gib: _Amount | None = None
    nvlink: bool | None = None
    disk_gb_s: _Amount = USUAL_STORAGE.disk_bytes_s / _GB
    link_gb_s: _Amount = USUAL_STORAGE.link_bytes_s / _GB


def given_machine(text: str) -> PlanMachine:
    """Return the machine of this name, that of a file (which ends in .yaml, .yml or .json), or this one
    ("here").

    Raises:
        ConfigError: there is none, or a field of its file is missing, unknown or impossible.
    """
    if text.casefold() == HERE:
        return detect_machine()
    if text.casefold().endswith(_ENDINGS):
        return read_machine_file(Path(text))
    try:
        return machine_of(text)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}; or name a machine file (.yaml), '{HERE}' for the GPUs of this machine, or "
            "'cpu' for its cores"
        ) from error


def read_machine_file(path: Path) -> PlanMachine:
    """Read a machine from its file.

    Raises:
        ConfigError: it cannot be read, or a field is missing, unknown or impossible; the message names it.
    """
    try:
        found = read_yaml(path)
    except YAML_ERRORS as error:
        raise ConfigError(f"machine {path}: {why_unreadable(error)}") from error
    try:
        return _machine(found, path)
    except ConfigError as error:
        raise ConfigError(f"machine {path}: {error.message}") from error


def _machine(found: Any, path: Path) -> PlanMachine:
    machine = read_as(_MachineFile, found)
    name = path.stem if machine.name is None else machine.name
    if not name.isprintable():
        raise ConfigError(f"name must have printable characters, got {name!r}")
    if (machine.gpu is None) == (machine.costs is None):
        raise ConfigError("needs either gpu or costs")
    memory_bytes = None if machine.memory_gib is None else machine.memory_gib * _GIB
    if machine.costs is not None:
        gpu: str | Hardware = _costs_file(machine.costs, path)
        if machine.nvlink is not None:
            raise ConfigError(
                "nvlink has no use beside costs, which were measured with the links that there are"
            )
        has_nvlink = True
    else:
        gpu = _gpu(machine.gpu, memory_bytes)
        usual = isinstance(gpu, str) and GPUS[gpu].has_nvlink
        has_nvlink = usual if machine.nvlink is None else machine.nvlink
    storage = Storage(machine.disk_gb_s * _GB, machine.link_gb_s * _GB)
    return PlanMachine(name, machine.count, gpu, storage, memory_bytes=memory_bytes, has_nvlink=has_nvlink)


def _gpu(given: str | _PeakFigures | None, memory_bytes: float | None) -> str | Hardware:
    """Return the name of a GPU that is known, or the peak figures of another one."""
    if isinstance(given, _PeakFigures):
        if memory_bytes is None:
            raise ConfigError("memory_gib is needed for a gpu with peak figures")
        bandwidth, flops = given.bandwidth_gb_s * _GB, given.tflops * 1e12
        return peak_figures(given.name, memory_bytes, bandwidth, flops, given.cores)
    try:
        return nearest_name(str(given), GPUS, "gpu: there are no figures of the GPU")
    except ConfigError as error:
        raise ConfigError(f"{error.message}; or give {words_for(_PeakFigures)}") from error


def _costs_file(costs: str, path: Path) -> str:
    if not costs.endswith(".json"):
        raise ConfigError(f"costs must be the path of a file that ends in .json, got {costs!r}")
    file = str(path.parent / costs)
    try:
        llm_device(file)
    except ConfigError as error:
        raise ConfigError(f"costs: {error.message}") from error
    return file
