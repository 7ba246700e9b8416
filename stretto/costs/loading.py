"""Time to start an LLM instance: a fixed cost, and the weights at the speed at which they come.

Measured starts have the weights in the page cache. From the disk, which all starts share, they may come more
slowly; from locked memory of the host, or if an engine sleeps, at the speed of the device's link.

Source: SamuLLM §2 has a table by model and plan. Differs: the table is used where a start was measured, and a
line fitted to it elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stretto.costs.shape import LLMModel
from stretto.model.errors import ConfigError

Source: TypeAlias = Literal["cache", "disk", "host", "asleep"]
"""Place of the weights before a start: page cache, disk, locked host memory, or an engine that sleeps."""


PCIE_BYTES_S = 25e9
"""Usual speed of the link of one device to the host's memory, and to devices that NVLink does not join:
PCIe 4.0 with 16 lanes, less what it never reaches."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The speeds at which a machine moves weights.

    Attributes:
        disk_bytes_s: bytes per second of its disk, which all starts share.
        link_bytes_s: bytes per second from the host's memory to one device, which has a link of its own.
    """

    disk_bytes_s: float
    link_bytes_s: float


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The times of one start of an LLM instance.

    Attributes:
        seconds: whole time, if the disk does not hold it up.
        reading_s: part of it, at its end, in which weights are read.
        disk_s: seconds that the disk needs for the weights; 0 if they are in memory.
    """

    seconds: float
    reading_s: float = 0.0
    disk_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadingCost:
    """A prediction of the time to start an LLM instance: measured times, and a line fitted to them for other
    models.

    Attributes:
        start_s: seconds for process, libraries and memory, equal for all models.
        group_s: additional seconds if the instance uses several devices.
        byte_s: seconds per byte of weights; several devices load their shares at the same time.
        measured_s: measured seconds by model and number of devices, as in "model|tp1"; preferred to the line.
    """

    start_s: float
    group_s: float
    byte_s: float
    measured_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = {"start_s": self.start_s, "group_s": self.group_s, "byte_s": self.byte_s, **self.measured_s}
        for name, value in times.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"loading: {name} must be finite and not negative, got {value}")

    def seconds(self, model: LLMModel, tensor_parallel: int = 1) -> float:
        """Return the seconds that one start of an instance takes: as measured, or else estimated from the
        model's size.
        """
        known = self.measured_s.get(f"{model.name}|tp{tensor_parallel}")
        return self.estimated_s(model, tensor_parallel) if known is None else known

    def estimated_s(self, model: LLMModel, tensor_parallel: int = 1) -> float:
        """Return the seconds that one start of an instance takes by the fitted line, even if it was
        measured.
        """
        return self._process_s(tensor_parallel) + self.byte_s * model.weight_bytes / tensor_parallel

    def start(self, model: LLMModel, tensor_parallel: int, source: Source, storage: Storage) -> StartTimes:
        """Return how long a start of an instance takes if the weights are in this place before."""
        share = model.weight_bytes / tensor_parallel
        if source in ("host", "asleep"):
            process_s = self._process_s(tensor_parallel) if source == "host" else 0.0
            return StartTimes(process_s + share / storage.link_bytes_s)
        seconds = self.seconds(model, tensor_parallel)
        if source == "cache":
            return StartTimes(seconds)
        return StartTimes(
            seconds, min(seconds, self.byte_s * share), model.weight_bytes / storage.disk_bytes_s
        )

    def _process_s(self, tensor_parallel: int) -> float:
        return self.start_s + (self.group_s if tensor_parallel > 1 else 0.0)
