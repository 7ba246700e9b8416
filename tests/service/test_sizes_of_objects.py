"""Objects of JSON count with all that they hold."""

from __future__ import annotations

from stretto.service.sizes import num_bytes


def test_an_object_is_as_large_as_its_names_and_values() -> None:
    assert num_bytes({"name": "x" * 1000}) == 1020
    assert num_bytes({"a": [{"b": "x" * 1000}], "c": None}) > 1000
    assert num_bytes({"x" * 1000: 1}) > 1000
