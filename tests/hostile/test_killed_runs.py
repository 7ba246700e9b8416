"""Real runs in which an engine's process or the run itself is killed: the same answers come in the end, none
is saved twice, and no process is left.

Set STRETTO_KILLED_RUNS to make more runs (`make fault-tests` makes 20).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from support.killed_run import NUM_CALLS, REQUESTS

NUM_RUNS = int(os.environ.get("STRETTO_KILLED_RUNS", "2"))
_WAIT_S = 600.0
_MOST_LIVES = 6

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the run in a session of its own; in the end, no process of it may be left."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root), str(root / "tests")))
    command = [sys.executable, "-m", "support.killed_run", str(folder)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True) as run:
        try:
            yield run
            wait_until(lambda: not processes(run.pid), "processes of the run are left")
        finally:
            for process in processes(run.pid):
                os.kill(process, signal.SIGKILL)


def processes(session: int) -> list[int]:
    """Return the processes of a session, but for those that only wait to be noticed by their parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def engines(session: int) -> list[int]:
    """Return the processes of engines in a session."""
    found = []
    for process in processes(session):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in command:
            found.append(process)
    return found


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait until a function returns true; fail with a message if it does not."""
    end_s = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < end_s, otherwise
        time.sleep(0.02)


def num_saved(folder: Path) -> int:
    """Return the number of whole lines in the journal, without its header."""
    path = folder / "journal"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def has_come_to(folder: Path, wanted: int, run: subprocess.Popen[bytes]) -> bool:
    """Return whether a run has saved as many answers as wanted, or has ended."""
    return num_saved(folder) >= wanted or run.poll() is not None


def answers(folder: Path) -> dict[str, object]:
    lines = [json.loads(line) for line in (folder / "out").read_text("utf-8").splitlines()]
    found = {line["custom_id"]: line["response"]["body"]["answers"] for line in lines}
    assert len(found) == len(lines), "a request was answered twice"
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The answers of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    with started(folder) as run:
        assert run.wait(_WAIT_S) == 0
    found = answers(folder)
    assert found.keys() == {request.id for request in REQUESTS}
    return found


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_the_same_answers_come_in_the_end_whoever_is_killed(
    seed: int, whole: dict[str, object], tmp_path: Path
) -> None:
    """Even seeds kill an engine in mid-run, odd ones the run; then each may be killed once more."""
    draw, killed = Random(seed), list[str]()
    for life in range(_MOST_LIVES):
        with started(tmp_path) as run:
            if life < 2:
                wanted = num_saved(tmp_path) + draw.randint(1, NUM_CALLS // 3)
                wait_until(partial(has_come_to, tmp_path, wanted, run), "the run hangs")
                kills_engine = (seed + life) % 2 == 0
                victim = draw.choice(engines(run.pid) or [0]) if kills_engine else run.pid
                if run.poll() is None and victim:
                    os.kill(victim, signal.SIGKILL)
                    killed.append("engine" if kills_engine else "run")
            code = run.wait(_WAIT_S)
            assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
    assert killed, "nothing was killed"
    assert answers(tmp_path) == whole
    assert not (tmp_path / "failed").read_text("utf-8")
    lines = (tmp_path / "journal").read_text("utf-8").splitlines()[1:]
    keys = [tuple(json.loads(line.partition("\t")[0])[:4]) for line in lines]
    assert len(keys) == len(set(keys)) == NUM_CALLS
    print(f"seed {seed}: killed {', '.join(killed)}; all {len(whole)} answers are equal")
