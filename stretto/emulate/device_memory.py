"""The memory of emulated devices while servers run: servers that sleep give theirs up, and want it back."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.model.errors import CapacityError


class DeviceMemory:
    """The free memory of emulated devices, in bytes by device."""

    def __init__(self, total: Mapping[str, int]) -> None:
        self._free = dict(total)

    def acquire(self, wanted: Mapping[str, int]) -> None:
        """Take memory of some devices, or none at all. Raises CapacityError if a device has too little."""
        for device, num_bytes in wanted.items():
            free = self._free[device]
            if num_bytes > free:
                raise CapacityError(
                    f"CUDA out of memory: {num_bytes / 2**30:.2f} GiB wanted, {device} has "
                    f"{free / 2**30:.2f} GiB free"
                )
        for device, num_bytes in wanted.items():
            self._free[device] -= num_bytes

    def release(self, held: Mapping[str, int]) -> None:
        """Give memory back."""
        for device, num_bytes in held.items():
            self._free[device] += num_bytes
