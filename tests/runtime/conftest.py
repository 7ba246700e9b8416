"""Every test of the runtime ends with nothing left running."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator

import pytest
from support.runtime_engines import LET_GO

from stretto.runtime.instances import process, thread


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (process, thread):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.5)
    before = set(threading.enumerate())
    LET_GO.clear()
    yield
    LET_GO.set()
    ends_s = time.monotonic() + 30
    while (left := [*(set(threading.enumerate()) - before), *multiprocessing.active_children()]) and (
        time.monotonic() < ends_s
    ):
        time.sleep(0.005)
    assert not left
