"""Measures times on a GPU and describes it; on the CPU the same functions use the clock, for trials."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata

import torch

from benchmarks.report import Value

_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Place:
    """The device to measure on, and the end of the time for it.

    Attributes:
        stop_s: time on the clock `time.monotonic` after which no measurement is started.
    """

    device: torch.device
    stop_s: float
    say: Callable[[str], None] = lambda _: None

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, so that times are meaningful."""
        return self.device.type == "cuda"

    def has_time(self, needed_s: float = 0.0) -> bool:
        """Whether there is time for a measurement of `needed_s` seconds."""
        return time.monotonic() + needed_s < self.stop_s


def hardware(device: torch.device) -> dict[str, Value]:
    """Describe the device and its software."""
    found: dict[str, Value] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        found["triton"] = metadata.version("triton")
    except metadata.PackageNotFoundError:
        found["triton"] = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = properties.name
        found["memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["multiprocessors"] = properties.multi_processor_count
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["driver"] = _driver()
    return found


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip()


def times_ms(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Measure how long `work` takes on the device, each time with a cache that has none of its data.

    `work` is captured as a CUDA graph, so that the host's time is not included; it must not wait for the
    device.
    """
    if device.type != "cuda":
        return [_clocked_ms(work) for _ in range(repeats)]
    for _ in range(2):
        work()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()
    pairs = []
    for _ in range(_WARM_UP + repeats):
        start, end = event(), event()
        _displacing(device).sum()  # during this read, the host enqueues the following work
        start.record()
        graph.replay()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    del kept
    return [start.elapsed_time(end) for start, end in pairs[_WARM_UP:]]


def event() -> torch.cuda.Event:
    """Make an event that takes the time on the device."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@cache
def _displacing(device: torch.device) -> torch.Tensor:
    """Tensor several times as large as the largest cache."""
    return torch.zeros(2**27, dtype=torch.float32, device=device)


def _clocked_ms(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start_s)


def copy_bytes_per_s(device: torch.device, num_bytes: int) -> list[float]:
    """Measure bytes read and written per second in copies of `num_bytes`."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = times_ms(lambda: target.copy_(source), device, 10)
    return [2 * num_bytes / (time_ms / 1000) for time_ms in times]
