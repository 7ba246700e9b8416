"""How long this thread has waited for a core, because other programs used them."""

from __future__ import annotations

from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def core_wait_s() -> float:
    """Return the seconds that the calling thread was ready to run and no core was free for it; 0 where the
    system does not tell (other systems than Linux).
    """
    try:
        _, waited_ns, _ = _SCHEDSTAT.read_text("ascii").split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_ns) / 1e9
