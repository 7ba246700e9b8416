"""Answers that must have a form: documents of a schema, choices, regular expressions, lists."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import httpx
import pytest
from support.emulated import emulating

from stretto.emulate.documents import document_of
from stretto.emulate.formed_text import list_asked_for
from stretto.emulate.matching_text import text_matching

jsonschema = pytest.importorskip("jsonschema")

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "next"],
        }
    },
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 5, "maxItems": 5},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": False},
    {"type": "object", "properties": {"a": {"enum": [1, "x"]}, "b": {"const": 3}}, "required": ["a", "b"]},
    {"type": "integer", "exclusiveMinimum": 3, "maximum": 4},
    {"type": "integer", "minimum": -7, "maximum": -3, "multipleOf": 4},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1},
    {"type": "number", "maximum": -1000},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
    {"type": "string", "minLength": 100},
    {"type": "string", "maxLength": 3},
    {"type": ["null", "string"]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"required": ["b"]},
        ]
    },
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    TREE,
    {},
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_a_document_is_valid_under_its_schema(schema: dict[str, Any], seed: int) -> None:
    jsonschema.validate(document_of(schema, Random(seed), 3), schema)


def test_arrays_have_items() -> None:
    assert len(document_of({"type": "array", "items": {"type": "string"}}, Random(0), 2)) == 3


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "strange"},
        {"type": "integer", "minimum": 1.2, "maximum": 1.8},
        {"type": "array", "items": 5},
        {"type": "string", "pattern": "(unclosed"},
    ],
    ids=repr,
)
def test_a_schema_without_documents_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        document_of(schema, Random(0), 2)


@pytest.mark.parametrize(
    "pattern", [r"[^\W\d_]{3}", r"a|bc+", r"(\d\d)-\1", r"\s?x*?.", r"[^a-z]", r"(yes|no)!"]
)
def test_a_text_matches_its_pattern(pattern: str) -> None:
    for seed in range(20):
        assert re.fullmatch(pattern, text_matching(pattern, Random(seed)))


@pytest.mark.parametrize(
    ("prompt", "number"),
    [
        ("Write 4 queries. Answer with a JSON list of strings.", 4),
        ("Answer with a json array.", 3),
        ("In 1999 they wrote 2 books. A JSON list, please.", 2),
        ("List them.", None),
    ],
)
def test_a_prompt_may_ask_for_a_list_in_words(prompt: str, number: int | None) -> None:
    assert list_asked_for(prompt) == number


def test_servers_write_what_has_the_form() -> None:
    schema = {"type": "object", "properties": {"steps": SCHEMAS[0]}, "required": ["steps"]}
    with emulating() as (url,):

        def ask(**body: Any) -> str:
            answered = httpx.post(
                f"{url}/v1/completions", json={"prompt": "Plan.", "max_tokens": 400, **body}
            )
            answered.raise_for_status()
            (choice,) = answered.json()["choices"]
            assert choice["finish_reason"] == "stop"
            return str(choice["text"])

        asked = {"type": "json_schema", "json_schema": {"name": "plan", "schema": schema}}
        text = ask(response_format=asked)
        jsonschema.validate(json.loads(text), schema)
        assert ask(response_format=asked) == text
        jsonschema.validate(json.loads(ask(structured_outputs={"json": schema})), schema)
        assert ask(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
        assert re.fullmatch(r"\d{5}", ask(structured_outputs={"regex": r"\d{5}"}))
        assert isinstance(json.loads(ask(response_format={"type": "json_object"})), dict)
        assert len(json.loads(ask(prompt="Give 4 queries as a JSON list."))) == 4
        bad = {"prompt": "Plan.", "structured_outputs": {"json": {"$ref": "#/nowhere"}}}
        assert httpx.post(f"{url}/v1/completions", json=bad).status_code == 400
