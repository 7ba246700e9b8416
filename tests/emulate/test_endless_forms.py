"""Forms of answers that have no texts, or none that is short: they are refused, and soon."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

import pytest

from stretto.emulate.documents import document_of
from stretto.emulate.formed_text import formed_text
from stretto.emulate.matching_text import text_matching
from stretto.wire.errors import RequestRefused
from stretto.wire.output_form import read_structured_outputs

WIDE = {f"{n}": {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(10)} | {"10": {"type": "null"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**12},
        {"type": "array", "minItems": 500, "items": {"type": "array", "minItems": 500}},
        {"type": "string", "minLength": 10**12},
        {"type": "array", "minItems": 500, "items": {"type": "string", "minLength": 5000}},
        {"$defs": WIDE, "$ref": "#/$defs/0"},
    ],
    ids=["long", "nested", "text", "texts", "references"],
)
def test_a_schema_with_too_large_documents_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="have more than"):
        document_of(schema, Random(0), 2)


@pytest.mark.parametrize("pattern", ["a{9999999}", "(?:){999999999}", "((a{999}){999}){999}"])
def test_a_pattern_with_too_long_texts_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="have more than"):
        text_matching(pattern, Random(0))


@pytest.mark.parametrize(
    "asked",
    [
        {"json": {"type": "integer", "minimum": float("inf")}},
        {"json": {"type": "integer", "multipleOf": 0}},
        {"json": reduce(lambda inner, _: {"allOf": [inner]}, range(5000), dict[str, Any]())},
        {"regex": "a{99999999999}"},
        {"regex": f"{'(' * 999}{')' * 999}"},
        {"regex": "[\\ud800]"},
    ],
    ids=["infinite", "multiples", "deep", "repeats", "groups", "surrogate"],
)
def test_a_form_of_which_nothing_can_be_made_up_is_the_clients_fault(asked: dict[str, Any]) -> None:
    form = read_structured_outputs("structured_outputs", asked)
    with pytest.raises(RequestRefused, match="No text has the form"):
        formed_text(form, Random(0), lambda _: True)
