"""Data as annotations of Python describe it: the JSON schema of a type, and values checked against it.

Types are those that pydantic knows: models, dataclasses, `Literal`, enums, lists, dates and others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.model.errors import BadReply, ConfigError

_MOST_NAMED = 5
_MAX_SHOWN_CHARS = 80


class ObjectFields:
    """The fields of a JSON object, each with a type, as the arguments of a function or the object of a class.

    Args:
        owner: what has the fields, for messages of errors, such as "tool 'add'".
        fields: (annotation, default) by name; `...` in place of the default of a field that must be given.
        descriptions: what fields mean, by name, for the schema.

    Raises:
        ConfigError: pydantic knows no schema for a type.
    """

    def __init__(
        self, owner: str, fields: Mapping[str, tuple[Any, Any]], descriptions: Mapping[str, str]
    ) -> None:
        from pydantic import ConfigDict, Field, ValidationError, create_model

        # pydantic takes neither names with an underscore before them nor those of its own methods, so aliases
        # have the names.
        self._names = {f"field{place}": name for place, name in enumerate(fields)}
        made: dict[str, Any] = {
            inner: (fields[name][0], self._field(Field, name, fields[name][1], descriptions.get(name)))
            for inner, name in self._names.items()
        }
        self._wrong = ValidationError
        try:
            self._model = create_model("arguments", __config__=ConfigDict(extra="forbid"), **made)
            schema = self._model.model_json_schema()
        except Exception as error:  # its own errors, and those of users' types
            raise ConfigError(f"{owner}: a type has no JSON schema: {error}") from error
        schema.pop("title", None)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        schema.setdefault("properties", {})
        self.schema: Mapping[str, Any] = schema

    @staticmethod
    def _field(make: Any, name: str, default: Any, description: str | None) -> Any:
        given = {} if default is ... else {"default": default}
        if description is not None:
            given["description"] = description
        return make(alias=name, **given)

    def checked(self, data: object) -> dict[str, Any]:
        """Return the values of all fields by name, made of data as JSON has it.

        Raises:
            ValueError: the data does not fit; the message names the fields and what is wrong with each.
        """
        try:
            model = self._model.model_validate(data)
        except self._wrong as error:
            raise ValueError(_problems(error)) from error
        return {name: getattr(model, inner) for inner, name in self._names.items()}


def _problems(error: Any) -> str:
    found = error.errors(include_url=False, include_context=False)
    named = []
    for problem in found[:_MOST_NAMED]:
        place = ".".join(map(str, problem["loc"]))
        given = repr(problem.get("input"))
        if len(given) > _MAX_SHOWN_CHARS:
            given = given[:_MAX_SHOWN_CHARS] + "…"
        shown = "" if problem["type"] == "missing" else f", got {given}"
        named.append(f"{place}: {problem['msg']}{shown}" if place else f"{problem['msg']}{shown}")
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(named) + more


class Typed:
    """A type, as an annotation of Python names it: what JSON it has, and its values made of JSON.

    Args:
        owner: what has the type, for messages of errors.
        annotation: the type.

    Attributes:
        choices: the texts that are its only values, as those of a `Literal` or an enum; () for another type.
        schema: JSON schema that an LLM can be held to, without references.
        checked: the same, of the keywords that the transform `json_schema` knows.

    Raises:
        ConfigError: pydantic knows no schema for the type, or the type refers to itself.
    """

    def __init__(self, owner: str, annotation: Any) -> None:
        from pydantic import TypeAdapter, ValidationError

        self._owner, self._wrong = owner, ValidationError
        try:
            self._adapter: Any = TypeAdapter(annotation)
            schema = self._adapter.json_schema()
        except Exception as error:  # its own errors, and those of users' types
            raise ConfigError(f"{owner}: {annotation!r} has no JSON schema: {error}") from error
        kinds = schema.get("$defs", {})
        self.schema: Mapping[str, Any] = _plain(schema, kinds, owner, (), with_formats=True)
        self.checked: Mapping[str, Any] = _plain(schema, kinds, owner, (), with_formats=False)
        options = self.schema.get("enum") or [self.schema.get("const")]
        self.choices = tuple(options) if all(isinstance(one, str) for one in options) else ()

    def value(self, data: object) -> object:
        """Return the value that data as JSON has it stands for.

        Raises:
            BadReply: it stands for none.
        """
        try:
            made: object = self._adapter.validate_python(data)
        except self._wrong as error:
            raise BadReply(f"{self._owner}: {_problems(error)}") from error
        return made


_KEPT = frozenset(
    {"type", "enum", "const", "required", "minItems", "maxItems", "minLength", "maxLength"}
    | {"minimum", "maximum", "description"}
)


_FORMATS = ("date", "time", "date-time", "uuid")


def _plain(
    schema: Any, kinds: Mapping[str, Any], owner: str, within: tuple[str, ...], *, with_formats: bool
) -> Any:
    """Return a schema without references, and with those keywords alone that others know."""
    if not isinstance(schema, dict):
        return schema
    if isinstance(ref := schema.get("$ref"), str):
        name = ref.removeprefix("#/$defs/")
        if name in within:
            raise ConfigError(f"{owner}: the type {name} refers to itself, which no reply is held to")
        return _plain(kinds[name], kinds, owner, (*within, name), with_formats=with_formats)

    def plain(inner: Any) -> Any:
        return _plain(inner, kinds, owner, within, with_formats=with_formats)

    found = {key: value for key, value in schema.items() if key in _KEPT}
    if with_formats and schema.get("format") in _FORMATS:
        found["format"] = schema["format"]
    if "properties" in schema:
        found["properties"] = {name: plain(one) for name, one in schema["properties"].items()}
        found["additionalProperties"] = plain(schema.get("additionalProperties", False))
    elif isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = plain(schema["additionalProperties"])
    if isinstance(schema.get("items"), dict):
        found["items"] = plain(schema["items"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        found["anyOf"] = [plain(one) for one in options]
    return found
