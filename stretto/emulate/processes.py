"""Runs each emulated server in a process of its own, so that it can be killed alone."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import resource_tracker
from threading import Thread

from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.prepared import AnswerTokens
from stretto.emulate.serve import end_process, run_servers
from stretto.model.errors import StrettoError


def run_processes(fleet: PlannedFleet, answer_tokens: AnswerTokens, say: Callable[[str], None]) -> None:
    """Run the servers of a fleet until interrupted or all have ended, a process each.

    A server that dies is told to `say`, and the others run on. They write their addresses on stderr, and end
    when this process does, however it ends. Each process has its own account of the
    devices' memory, so that servers that share a device must not take turns by sleeping.

    Args:
        answer_tokens: decides how long answers are whose requests leave that to the model.
    """
    context = multiprocessing.get_context("spawn")
    running = {}
    # Ctrl-C is for this process, which ends the others: they inherit that it is blocked. The resource tracker
    # of multiprocessing unblocks it when it starts, so it starts before.
    resource_tracker.ensure_running()
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for number, server in enumerate(fleet.servers):
            alone = replace(fleet, servers=(server,))
            process = context.Process(target=_run, args=(alone, answer_tokens), daemon=True)
            process.start()
            running[number] = process
            say(f"server {number} is process {process.pid}")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    while running:
        multiprocessing.connection.wait([process.sentinel for process in running.values()])
        for number, process in list(running.items()):
            if process.exitcode is not None:
                del running[number]
                say(f"server {number} has ended with exit code {process.exitcode}")


def _run(fleet: PlannedFleet, answer_tokens: AnswerTokens) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        run_servers(fleet, answer_tokens, _say, end_process)
    except StrettoError as error:
        _say(str(error))
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process when its parent has ended, for example because it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    end_process()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
