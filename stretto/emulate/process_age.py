"""How long this process has been running."""

from __future__ import annotations

import os
import time


def process_age_s() -> float:
    """Return the seconds since this process was started; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        started_s = int(fields[_START]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, LookupError, ValueError):
        return 0.0


_START = 19  # the 22nd field of the file, counted from the one after the program's name
