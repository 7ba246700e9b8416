"""Operators by name, with settings as requests give them."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.model.errors import StrettoError
from stretto.programs.operators import operator_named


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("transfrom", {}, "there is no operator 'transfrom'; there are gather, join, transform"),
        ("transform", {}, "transform: the setting 'steps' is missing"),
        ("transform", {"steps": 5}, "transforms are texts such as 'strip'"),
        ("join", {"seperator": "-"}, "join: there is no setting 'seperator'; there are separator"),
        ("join", {"separator": 5}, "join: the separator must be a text, got 5"),
        ("gather", {"steps": "strip"}, "gather: there is no setting 'steps'; there are none"),
    ],
)
def test_settings_that_do_not_fit_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StrettoError) as refused:
        operator_named(name, settings)
    assert str(refused.value).startswith(message)


def test_settings_that_are_left_out_have_defaults() -> None:
    assert operator_named("join", {}) == operator_named("join", {"separator": "\n\n"})
