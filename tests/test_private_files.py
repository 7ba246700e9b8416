"""Files with what users have asked and were answered are for their owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stretto.planner.running import results
from stretto.router.request_log import RequestLog
from stretto.runtime.journal.file import JournalFile
from stretto.trace.run_file import RunRecorder


@pytest.mark.parametrize("kind", ["journal", "answers", "run", "requests"])
def test_new_files_are_private(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "journal":
        with JournalFile(path, "work"):
            pass
    elif kind == "answers":
        results._opened(path).close()
    elif kind == "requests":
        RequestLog(path).close()
    else:
        RunRecorder(path, []).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
