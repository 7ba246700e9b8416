"""Runs a command until it ends or is stopped, and leaves none of its processes running.

    python keeper.py GRACE_S COMMAND [ARGUMENT...]

The process that starts the keeper holds the other end of the keeper's standard input. When it writes there,
or ends in any way, the keeper sends SIGTERM to the command. After `GRACE_S` seconds, it kills the command's
whole process group.
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
    """Run the command; returns its exit code."""
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
    """Wait for children of the command that may still be cleaning up after its end."""
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
