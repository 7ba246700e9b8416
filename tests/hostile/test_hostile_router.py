"""The memory of a router and of a service under attack by their clients, measured from outside."""

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
    ("name", "kind", "expected"),
    [
        ("unfinished_bodies", "route", {"honest": 200, "statuses": [429]}),
        ("unfinished_bodies", "serve", {"honest": 200, "statuses": [413], "refused": 20}),
        ("unfinished_documents", "route", {"honest": 200, "statuses": [429]}),
        ("unfinished_documents", "serve", {"honest": 200, "statuses": [429]}),
        ("pipelined_bodies", "route", {"honest": 200}),
        ("many_values", "route", {"status": 413, "honest": 200}),
        ("many_values", "serve", {"status": 413, "honest": 200}),
        ("small_headers", "route", {"refused": 100, "statuses": [431], "honest": 200}),
        ("small_headers", "serve", {"refused": 100, "statuses": [400], "honest": 200}),
        ("unread_answers", "route", {"honest": 200}),
    ],
)
def test_memory_stays_below_the_budget(name: str, kind: str, expected: dict[str, Any]) -> None:
    outcome = asyncio.run(run_attack(name, kind))
    assert {key: outcome[key] for key in expected} == expected
    assert outcome["peak_mb"] - outcome["before_mb"] < _MAX_MB  # type: ignore[operator]
