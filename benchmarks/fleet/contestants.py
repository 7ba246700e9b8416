"""The contestants: programs with a name, the apps that they have, and the environment that they run in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from typing import Any

from benchmarks.fleet.schemes import SIMULATED_OURS, Scheme
from benchmarks.fleet.work import Done, Work, read_done, write_work
from stretto.model.errors import EngineFailure, EngineTimeout

_PROJECT = Path(__file__).resolve().parents[2]
_READY = "ready\n"
_START_S = 300.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program of the harness.

    Attributes:
        module: the module that runs as the program.
        apps: names of the apps that it has.
        python: interpreter of its environment, with numpy and the packages that the program needs.
        options: settings of this contestant alone, which go to the program with each work.
    """

    name: str
    module: str
    apps: tuple[str, ...]
    python: Path = Path(sys.executable)
    options: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def started(
        self, work: Work, patience_s: float, start_s: float = _START_S
    ) -> Iterator[Callable[[], Done]]:
        """Context with a function that has the program do its work; it is ready and warm already.

        Args:
            patience_s: real seconds allowed for the work.
            start_s: real seconds allowed until it is ready.

        Raises:
            EngineFailure: the program ended before it was done, or did not write first that it is ready; the
                message has its last output.
            EngineTimeout: it was not ready or not done in time.
        """
        with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
            paths = Path(folder) / "work.json", Path(folder) / "done.json"
            write_work(work, paths[0])
            process = subprocess.Popen(
                [str(self.python), "-m", self.module, *map(str, paths)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": _path()},
            )
            assert process.stdin is not None
            assert process.stdout is not None

            def work_off() -> Done:
                try:
                    process.communicate("go\n", timeout=patience_s)
                except subprocess.TimeoutExpired as error:
                    raise EngineTimeout(f"{self.name} was not done in {patience_s:.0f} s") from error
                if process.returncode:
                    raise EngineFailure(f"{self.name} ended with {process.returncode}: {_last(log)}")
                return read_done(json.loads(paths[1].read_text("utf-8")))

            is_late = Event()

            def give_up() -> None:
                is_late.set()
                process.kill()

            starting = Timer(start_s, give_up)
            starting.start()
            try:
                said = process.stdout.readline()
                starting.cancel()
                if said != _READY:
                    if not said:
                        process.wait()  # for the end of its log
                    if is_late.is_set():
                        raise EngineTimeout(f"{self.name} was not ready in {start_s:.0f} s: {_last(log)}")
                    what = f"wrote {said!r:.200}" if said else "ended"
                    raise EngineFailure(f"{self.name} {what} before it was ready: {_last(log)}")
                yield work_off
            finally:
                starting.cancel()
                process.kill()
                process.wait()


def _path() -> str:
    return os.pathsep.join([str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _last(log: Any) -> str:
    log.seek(0)
    return str(log.read())[-2000:].strip()


ALL_APPS = ("naive", "advanced", "map_reduce")
BY_HAND = "by hand"
OURS = "ours"
_PROGRAMS = "benchmarks.fleet.programs"

CONTESTANTS: Mapping[str, Contestant] = {
    one.name: one
    for one in (
        Contestant(BY_HAND, f"{_PROGRAMS}.by_hand", ALL_APPS),
        Contestant(OURS, f"{_PROGRAMS}.ours", ALL_APPS),
    )
}


def variant_of_ours(scheme: Scheme) -> Contestant:
    """Return ours with the passes and policies of a scheme, under its name; the full one is a run of ours."""
    if scheme == SIMULATED_OURS:
        return CONTESTANTS[OURS]
    options = {"passes": list(scheme.passes), "policy": scheme.policy, "placement": scheme.placement}
    return replace(CONTESTANTS[OURS], name=scheme.name, options=options)
