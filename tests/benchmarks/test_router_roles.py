"""The benchmark of workers' roles, at toy size."""

from __future__ import annotations

import pytest

from benchmarks.router.roles import FLEETS, LOADS, simulate


@pytest.mark.parametrize("fleet", ["4 mixed", "2 + 2"])
def test_prefixes_are_found_whoever_computes_prompts(fleet: str) -> None:
    found = simulate(LOADS[-1], FLEETS[fleet], 30, 1)
    assert found.hits > 0.5
    assert 0 < found.first_p50_s < found.whole_p50_s
