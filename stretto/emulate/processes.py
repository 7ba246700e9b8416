"""Runs each emulated server in a process of its own, so that it can be killed alone."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
from collections.abc import Callable
from dataclasses import replace

from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.prepared import AnswerTokens
from stretto.emulate.serve import end_process, run_servers


def run_processes(fleet: PlannedFleet, answer_tokens: AnswerTokens, say: Callable[[str], None]) -> None:
    """Run the servers of a fleet until interrupted or all have ended, a process each.

    A server that dies is told to `say`, and the others run on. Each process has its own account of the
    devices' memory, so that servers that share a device must not take turns by sleeping.

    Args:
        answer_tokens: decides how long answers are whose requests leave that to the model.
    """
    context = multiprocessing.get_context("spawn")
    running = {}
    for number, server in enumerate(fleet.servers):
        alone = replace(fleet, servers=(server,))
        process = context.Process(target=_run, args=(alone, answer_tokens), daemon=True)
        process.start()
        running[number] = process
        say(f"server {number} is process {process.pid}")
    while running:
        multiprocessing.connection.wait([process.sentinel for process in running.values()])
        for number, process in list(running.items()):
            if process.exitcode is not None:
                del running[number]
                say(f"server {number} has ended with exit code {process.exitcode}")


def _run(fleet: PlannedFleet, answer_tokens: AnswerTokens) -> None:
    run_servers(fleet, answer_tokens, print, end_process)
