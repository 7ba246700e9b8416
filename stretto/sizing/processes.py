"""Runs of a study in processes of their own, as they do not depend on each other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from threading import Thread

from stretto.model.errors import EngineFailure
from stretto.sizing.study import Study, Trial
from stretto.sizing.trial import TrialOutcome

_studies: list[Study] = []
"""The study of a process that makes runs of it: it is sent once, not with each run."""


@contextlib.contextmanager
def in_processes(study: Study, number: int) -> Iterator[Study]:
    """Yield the study with its runs made in so many processes. They end at once with the block, and with
    this process.

    Raises:
        EngineFailure: a process died.
    """
    if number == 1:
        yield study
        return
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    bare = replace(study, note=_say_nothing, outcomes={}, begun={})
    pool = ProcessPoolExecutor(number, context, _begin, (theirs, bare))
    try:
        _start(pool, number)
        yield replace(study, submit=lambda trial: pool.submit(_run, trial), num_parallel=number)
    except BrokenProcessPool:
        raise EngineFailure("a process that simulates loads has died, perhaps as memory ran out") from None
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()


def _start(pool: ProcessPoolExecutor, number: int) -> None:
    """Start all processes of a pool: a task that finds none idle starts one.

    They inherit that Ctrl-C is blocked: it is for this process, which ends them. Neither that nor the end of
    the time (SIGALRM) comes while a process is sent what it starts with. The resource tracker of
    multiprocessing unblocks Ctrl-C when it starts, so it starts before.
    """
    resource_tracker.ensure_running()
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGALRM})
    try:
        for _ in range(number):
            pool.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _begin(alive: Connection, study: Study) -> None:
    """Prepare a process: it ends when the other end of `alive` is closed."""
    Thread(target=_end_with, args=(alive,), daemon=True).start()
    _studies.append(study)


def _end_with(alive: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(0)


def _run(trial: Trial) -> TrialOutcome:
    return _studies[0].run(trial)


def _say_nothing(_text: str) -> None:
    pass
