"""The memory of a router under attack by its clients, measured from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")
from support.router_attacks import run_attack

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]
_MAX_MB = 512 + 150
"""The budget, one body that is being read, and what the allocator keeps."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unfinished_bodies", {"honest": 200}),
        ("pipelined_bodies", {"honest": 200}),
        ("many_values", {"status": 413, "honest": 200}),
        ("small_headers", {"refused": 100, "honest": 200}),
        ("unread_answers", {"honest": 200}),
    ],
)
def test_memory_stays_below_the_budget(name: str, expected: dict[str, Any]) -> None:
    outcome = asyncio.run(run_attack(name))
    assert {key: outcome[key] for key in expected} == expected
    assert outcome["peak_mb"] - outcome["before_mb"] < _MAX_MB  # type: ignore[operator]
