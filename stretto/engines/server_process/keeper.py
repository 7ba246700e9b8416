"""Run a command until it ends or is to end, and leave none of its processes behind.

    python keeper.py GRACE_S PARENT[,WATCHED...] CORES COMMAND [ARGUMENT...]

The process PARENT starts it and holds the other end of its standard input. When something is written there,
or PARENT or a process WATCHED goes away, killed or not, the command is told to end (SIGTERM); after GRACE_S
seconds its whole process group is killed. CORES, as in "0,3", confines the command to these cores; empty
leaves it all.

The keeper itself may be killed, for Ray kills the children of its workers. So it forks a guard first, which
kills the command's group when the keeper is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

_LOOK_S = 0.1
_TIDYING_S = 2.0
_PARENT_LOOK_S = 1.0
_CANNOT_RUN = 127


def main() -> int:
    """Run the command given as arguments, end it when the process that started us ends, and return its exit
    code.
    """
    grace_s, cores = float(sys.argv[1]), sys.argv[3]
    parent, *watched = map(int, sys.argv[2].split(","))
    guard = _start_guard()
    try:
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        command = subprocess.Popen(sys.argv[4:], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"cannot run {sys.argv[4]}: {error}", flush=True)
        return _CANNOT_RUN
    os.write(guard, b"%d\n" % command.pid)
    threading.Thread(target=_end_in_time, args=(command, grace_s, parent, watched), daemon=True).start()
    code = command.wait()
    _wait_for_others(command.pid, min(grace_s, _TIDYING_S))
    _kill_group(command.pid)
    return code


def _start_guard() -> int:
    """Fork the guard; return where it reads the number of the command's group from, until we are gone."""
    ours, theirs = os.pipe()
    if os.fork() != 0:
        os.close(ours)
        return theirs
    os.setsid()
    os.close(theirs)
    os.close(0)  # the parent's pipe: the keeper alone is to hear of its end
    with os.fdopen(ours) as keeper:
        if group := keeper.read():
            _kill_group(int(group))
    os._exit(0)


def _end_in_time(
    command: subprocess.Popen[bytes], grace_s: float, parent: int, watched: Sequence[int]
) -> None:
    """Wait for a word, or for the end of the parent or of a process that is watched.

    A process that the parent forked holds the pipe too, so that its end alone is not to be relied on.
    """
    with contextlib.suppress(ProcessLookupError):
        ends = [0, *map(os.pidfd_open, watched)]
        while not select.select(ends, [], [], _PARENT_LOOK_S)[0] and os.getppid() == parent:
            pass
    command.terminate()
    time.sleep(grace_s)
    _kill_group(command.pid)


def _wait_for_others(group: int, wait_s: float) -> None:
    """Children that outlive the command may still be tidying up."""
    for _ in range(int(wait_s / _LOOK_S)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(_LOOK_S)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
