"""Made-up documents of a JSON schema. Arrays have items, and all known properties of objects are there.

Source: JSON Schema 2020-12. Differs: `not`, `if`, `dependentSchemas` and `patternProperties` are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from stretto.emulate.matching_text import text_matching

_NUM_ITEMS = 3
_SHALLOW = 4
"""Depth from which on documents have only what they must have."""
_MAX_DEPTH = 24
_MAX_PARTS = 20_000
"""Largest number of values of a document, with the schemas that are looked up for them."""
_MAX_CHARS = 100_000
"""Largest number of characters of all texts of a document."""
_FORMATS = {
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "email": "somebody@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "hostname": "example.com",
    "duration": "PT1H",
}
_SYLLABLES = [a + b for a in "bdfghklmnprst" for b in "aeiou"]


def document_of(schema: Any, source: Random, num_words: int) -> Any:
    """Return a document that is valid under a JSON schema.

    Args:
        num_words: number of words of each text that may have any length.

    Raises:
        ValueError: the schema has no documents, or none that is finite, or a part that is not understood.
    """
    return _Maker(schema, source, num_words).make(schema, 0)


def random_words(source: Random, number: int) -> str:
    """Return made-up words with spaces between them."""
    return " ".join("".join(source.choices(_SYLLABLES, k=2)) for _ in range(number))


class _Maker:
    def __init__(self, root: Any, source: Random, num_words: int) -> None:
        self._root = root
        self._source = source
        self._num_words = num_words
        self._num_parts = self._num_chars = 0

    def make(self, schema: Any, depth: int) -> Any:
        """Return a document of one schema within the whole one."""
        if depth > _MAX_DEPTH:
            raise ValueError("documents of the schema are nested without end")
        schema = self._resolved(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._source.choice(list(schema["enum"]))
        for arms in ("anyOf", "oneOf"):
            if arms in schema:
                rest = {key: value for key, value in schema.items() if key != arms}
                return self.make(_merged(rest, self._arm(schema[arms], depth)), depth + 1)
        match self._type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number" as kind:
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return self._source.random() < 0.5
            case "null":
                return None
            case "string":
                text = self._text(schema)
                self._num_chars += len(text)
                if self._num_chars > _MAX_CHARS:
                    raise _too_long()
                return text
            case other:
                raise ValueError(f"the schema has the unknown type {other!r:.100}")

    def _resolved(self, schema: Any, depth: int) -> Mapping[str, Any]:
        """Return a schema with its reference and its `allOf` put in."""
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise ValueError(f"documents of the schema have more than {_MAX_PARTS} parts")
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise ValueError(f"the schema has {schema!r:.100} in the place of a schema")
        while "$ref" in schema:
            depth += 1
            if depth > _MAX_DEPTH:
                raise ValueError(f"the schema's reference {schema['$ref']!r:.100} leads to itself")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = _merged(rest, self._referenced(schema["$ref"]))
        for part in schema.get("allOf", ()):
            schema = _merged(schema, self._resolved(part, depth + 1))
        return {key: value for key, value in schema.items() if key != "allOf"}

    def _referenced(self, name: Any) -> Mapping[str, Any]:
        found = self._root
        if not isinstance(name, str) or not name.startswith("#"):
            raise ValueError(f"the schema refers to {name!r:.100}, which is not in it")
        for key in name.removeprefix("#").split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise ValueError(f"the schema refers to {name!r:.100}, which is not in it")
            found = found[key]
        if not isinstance(found, Mapping):
            raise ValueError(f"the schema refers to {name!r:.100}, which is no schema")
        return found

    def _arm(self, arms: Any, depth: int) -> Mapping[str, Any]:
        resolved = [self._resolved(arm, depth) for arm in arms]
        if depth >= _SHALLOW:  # the simplest, so that documents end
            return min(resolved, key=lambda arm: self._type(arm) in ("object", "array"))
        return next((arm for arm in resolved if arm.get("type") != "null"), resolved[0])

    def _type(self, schema: Mapping[str, Any]) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            return next((one for one in kind if one != "null"), "null")
        if kind is None:
            if "properties" in schema or "required" in schema:
                return "object"
            return "array" if "items" in schema or "prefixItems" in schema else "string"
        return kind

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        names = [*properties, *(name for name in required if name not in properties)]
        if depth >= _SHALLOW:
            names = [name for name in names if name in required]
        if not names and depth < _SHALLOW and schema.get("additionalProperties") not in (None, False):
            return {random_words(self._source, 1): self.make(schema["additionalProperties"], depth + 1)}
        return {name: self.make(properties.get(name, True), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        first = list(schema.get("prefixItems", ()))
        number = max(least, int(min(most, len(first) or (_NUM_ITEMS if depth < _SHALLOW else 1))))
        rest = schema.get("items", True)
        return [self.make(first[i] if i < len(first) else rest, depth + 1) for i in range(number)]

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        step = schema.get("multipleOf", 1 if whole else 0.5)
        if not step > 0:
            raise ValueError(f"the schema has multipleOf {step!r:.100}; it must be above 0")
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        if least is None:
            least = 0 if most is None else min(0, most - 10 * step)
        if most is None:
            most = least + 100 * step
        lowest, highest = math.ceil(least / step), math.floor(most / step)
        lowest += lowest * step == schema.get("exclusiveMinimum")
        highest -= highest * step == schema.get("exclusiveMaximum")
        if lowest > highest:
            if not whole and "multipleOf" not in schema and least < most:
                return float(least + most) / 2
            raise ValueError(f"the schema has no number from {least} to {most}")
        value = self._source.randint(lowest, highest) * step
        return int(value) if whole else value

    def _text(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            return text_matching(schema["pattern"], self._source)
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if schema.get("minLength", 0) > _MAX_CHARS:
            raise _too_long()
        text = random_words(self._source, self._num_words)
        while len(text) < schema.get("minLength", 0):
            text += f" {random_words(self._source, self._num_words)}"
        most: int = schema.get("maxLength", len(text))
        return text[:most]


def _too_long() -> ValueError:
    return ValueError(f"texts of the schema's documents have more than {_MAX_CHARS} characters")


def _merged(schema: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of which both documents are: what `schema` says, and what else `other` says."""
    merged = {**other, **schema}
    if "properties" in schema and "properties" in other:
        merged["properties"] = {**other["properties"], **schema["properties"]}
    if "required" in schema and "required" in other:
        merged["required"] = [*other["required"], *schema["required"]]
    return merged
