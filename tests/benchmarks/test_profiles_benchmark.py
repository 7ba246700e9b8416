"""The benchmark of profiles, at toy size."""

from __future__ import annotations

import random

import pytest

from benchmarks.profiles.benchmark import ERRORS, PROFILES, _reranking, _rows, _texts
from stretto.engines.catalogue import reranking_engine


def test_each_engine_has_errors_and_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    batches = [_reranking(texts) for texts in _texts(random.Random(1), 3)]
    errors, profile = _rows("words", reranking_engine(None), batches)
    assert (errors.table, profile.table) == (ERRORS, PROFILES)
    assert set(errors.values) == {"line", "by length", "refined"}
    assert all(isinstance(value, float) and value >= 0 for value in errors.values.values())
    assert all(0 < batch.units <= 32 for batch in batches)
    assert profile.values["unit_tokens"] == pytest.approx(230, abs=40)
