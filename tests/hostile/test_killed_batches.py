"""A batch at a service that is killed at random moments: no line is lost, and none is answered twice.

Set STRETTO_KILLED_BATCHES to make more kills (`make fault-tests` makes 200 over 5,000 lines).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NUM_KILLS = int(os.environ.get("STRETTO_KILLED_BATCHES", "3"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]


def test_no_line_is_lost_or_answered_twice(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root), str(root / "tests")))
    num_lines = 25 * NUM_KILLS
    command = [sys.executable, "-m", "support.killed_batches", str(tmp_path / "state")]
    made = subprocess.run(
        [*command, str(num_lines), str(NUM_KILLS), "1"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    print(found)
    assert found["counts"] == {"total": num_lines, "completed": num_lines, "failed": 0}
    assert (found["kills"], found["lost"], found["answered twice"]) == (NUM_KILLS, 0, 0)
