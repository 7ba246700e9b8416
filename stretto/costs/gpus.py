"""Peak figures of GPUs, by their data sheets: operations in 16 bits without sparsity, and the memory that the
driver reports.

Data sheets do not tell the bandwidth of caches. Presets have that of A100 and H100; for other chips it is as
many times the memory's as on A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.costs.shape import Hardware

_MIB = 2**20
_CACHE_TIMES = 2.4


@dataclass(frozen=True, slots=True)
class GPU:
    """A kind of GPU.

    Attributes:
        reported: names that its driver reports, without the maker's.
        has_nvlink: whether machines with several usually join them by NVLink.
    """

    hardware: Hardware
    reported: tuple[str, ...]
    has_nvlink: bool = False


def peak_figures(
    name: str,
    memory_bytes: float,
    bandwidth_bytes_s: float,
    flops: float,
    num_cores: int,
    cache_bandwidth_bytes_s: float | None = None,
) -> Hardware:
    """Return the hardware with these figures.

    Args:
        cache_bandwidth_bytes_s: bandwidth of its cache; None where it is not known.
    """
    cache = cache_bandwidth_bytes_s or _CACHE_TIMES * bandwidth_bytes_s
    return Hardware(name, memory_bytes, bandwidth_bytes_s, cache, flops, num_cores)


GPUS: Mapping[str, GPU] = {
    gpu.hardware.name: gpu
    for gpu in (
        GPU(
            peak_figures("A100-40G", 40960 * _MIB, 1.555e12, 312e12, 108, 4.9e12),
            ("A100-SXM4-40GB", "A100-PCIE-40GB"),
            has_nvlink=True,
        ),
        GPU(
            peak_figures("A100-80G", 81920 * _MIB, 2.04e12, 312e12, 108, 4.9e12),
            ("A100-SXM4-80GB", "A100 80GB PCIe"),
            has_nvlink=True,
        ),
        GPU(
            peak_figures("H100-80G", 81559 * _MIB, 3.35e12, 989e12, 132, 5.5e12),
            ("H100 80GB HBM3",),
            has_nvlink=True,
        ),
        GPU(
            peak_figures("H100-PCIe", 81559 * _MIB, 2.0e12, 756e12, 114, 5.5e12),
            ("H100 PCIe",),
        ),
        GPU(peak_figures("H200", 143771 * _MIB, 4.8e12, 989e12, 132, 5.5e12), ("H200",), has_nvlink=True),
        GPU(peak_figures("B200", 183359 * _MIB, 8.0e12, 2250e12, 148), ("B200",), has_nvlink=True),
        GPU(
            peak_figures("MI300X", 196592 * _MIB, 5.3e12, 1307e12, 304), ("Instinct MI300X",), has_nvlink=True
        ),
        GPU(peak_figures("A6000", 49140 * _MIB, 0.768e12, 154.8e12, 84), ("RTX A6000",)),
        GPU(peak_figures("A40", 46068 * _MIB, 0.696e12, 149.7e12, 84), ("A40",)),
        GPU(peak_figures("A10", 23028 * _MIB, 0.6e12, 125e12, 72), ("A10",)),
        GPU(peak_figures("L40S", 46068 * _MIB, 0.864e12, 362e12, 142), ("L40S",)),
        GPU(peak_figures("L4", 23034 * _MIB, 0.3e12, 121e12, 58), ("L4",)),
        GPU(peak_figures("RTX-3090", 24576 * _MIB, 0.936e12, 71e12, 82), ("GeForce RTX 3090",)),
        GPU(peak_figures("RTX-4090", 24564 * _MIB, 1.008e12, 165.2e12, 128), ("GeForce RTX 4090",)),
    )
}
"""GPUs by the names that machines call them."""
