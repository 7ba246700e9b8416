"""Runs a command until it ends or is to end, and leaves none of its processes behind.

    python keeper.py GRACE_S COMMAND [ARGUMENT...]

Whoever starts it holds the other end of its standard input. When something is written there, or that process
goes away, killed or not, the command is told to end (SIGTERM); after `GRACE_S` seconds its whole process
group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

_LOOK_S = 0.1
_TIDYING_S = 2.0


def main() -> int:
    """Keep the command; returns its exit code."""
    grace_s = float(sys.argv[1])
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_in_time, args=(command, grace_s), daemon=True).start()
    code = command.wait()
    _wait_for_others(command.pid, min(grace_s, _TIDYING_S))
    _kill_group(command.pid)
    return code


def _end_in_time(command: subprocess.Popen[bytes], grace_s: float) -> None:
    os.read(0, 1)
    command.terminate()
    time.sleep(grace_s)
    _kill_group(command.pid)


def _wait_for_others(group: int, patience_s: float) -> None:
    """Children that outlive the command may still be tidying up."""
    for _ in range(int(patience_s / _LOOK_S)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(_LOOK_S)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
