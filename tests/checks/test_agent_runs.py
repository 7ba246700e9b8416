"""Agents whose tools misbehave, and whose process is killed, end, and repeat no effect."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")

from checks.agent_runs import check


@pytest.mark.long
def test_every_run_ends_and_no_effect_happens_twice() -> None:
    found = check(8, 1, 1)
    assert found.lost == []
    assert found.repeated == []
    assert found.ended.total() == 8
    assert found.num_effects > 0


@pytest.mark.long
def test_two_hundred_runs() -> None:
    found = check(200, 3, 0)
    assert found.lost == []
    assert found.repeated == []
    assert set(found.outcomes) == {"done", "failed", "refused", "timed_out", "in_doubt"}
