"""Tools made of Python functions: what the LLM is told of them, and what a function is called with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from stretto.apps.components.component import Input
from stretto.apps.components.tool_prompts import signature_of, turn_schema
from stretto.components import Agent, Tool, tool
from stretto.model.errors import ConfigError
from stretto.model.extras import is_installed
from stretto.model.tools import BadArguments
from stretto.transforms.function_tools import as_tools


class Place(BaseModel):
    city: str
    zone: int = Field(default=1, ge=0)


@dataclass
class Trip:
    place: Place
    day: date


class Mood(Enum):
    GOOD = "good"


def book(
    trip: Trip,
    seats: int,
    kind: Literal["bus", "train"] = "train",
    note: Annotated[str | None, Field(description="what the driver reads")] = None,
    *,
    mood: Mood = Mood.GOOD,
) -> tuple[object, ...]:
    """Book a trip.

    It cannot be undone.

    Args:
        seats (int): number of seats,
            children included
        kind: how to travel

    Returns:
        kind: this line describes no argument.
    """
    return trip, seats, kind, note, mood


def test_the_schema_comes_from_annotations_and_the_docstring() -> None:
    made = tool(book)
    assert (made.name, made.description) == ("book", "Book a trip. It cannot be undone.")
    properties = made.parameters["properties"]
    assert made.parameters["required"] == ["trip", "seats"]
    assert properties["seats"] == {"description": "number of seats, children included", "type": "integer"}
    assert properties["kind"]["enum"] == ["bus", "train"]
    assert properties["note"]["description"] == "what the driver reads"
    assert made.parameters["$defs"]["Place"]["properties"]["zone"]["minimum"] == 0
    assert made.declared.to_openai()["function"]["parameters"] == made.parameters


def test_a_function_gets_values_of_its_types() -> None:
    given = {"trip": {"place": {"city": "Oslo"}, "day": "2026-01-02"}, "seats": "2", "mood": "good"}
    assert tool(book).function(json.dumps(given)) == (
        Trip(Place(city="Oslo"), date(2026, 1, 2)),
        2,
        "train",
        None,
        Mood.GOOD,
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{}", "trip: Field required; seats: Field required"),
        ('{"trip": {"place": {}, "day": "soon"}, "seats": 1}', "trip.place.city: Field required; trip.day: "),
        ('{"trip": 1, "seats": []}', "seats: Input should be a valid integer, got \\[\\]"),
        ("[]", "a JSON object with trip, seats, kind, note, mood"),
        ('{"trip": ', "not JSON"),
    ],
)
def test_what_does_not_fit_is_named(given: str, problem: str) -> None:
    with pytest.raises(BadArguments, match=problem):
        tool(book).function(given)


def test_names_that_pydantic_keeps_for_itself_are_arguments_like_others() -> None:
    def odd(_hidden: int, schema: str, copy: int = 1, model_config: str = "x") -> list[object]:
        return [_hidden, schema, copy, model_config]

    made = tool(odd)
    assert set(made.parameters["properties"]) == {"_hidden", "schema", "copy", "model_config"}
    assert made.function('{"_hidden": 1, "schema": "s", "copy": 2}') == [1, "s", 2, "x"]


def test_a_text_is_the_argument_of_a_function_with_one() -> None:
    def greet(name: str = "you") -> str:
        return f"Hello {name}"

    assert tool(greet).function("Ann") == "Hello Ann"
    assert tool(greet).function("") == "Hello you"
    assert tool(greet).function('{"name": "Bob"}') == "Hello Bob"


class Adder:
    """Adds."""

    def __init__(self, more: int) -> None:
        self.more = more

    def add(self, a: int) -> int:
        """Add something."""
        return a + self.more

    def __call__(self, a: int) -> int:
        return a + self.more


def test_methods_and_objects_are_functions_too() -> None:
    made = tool(Adder(2).add)
    assert (made.name, made.function('{"a": 1}')) == ("add", 3)
    called = tool(name="adder", description="Add two.", effects=True, timeout_s=5)(Adder(2))
    assert (called.name, called.function('{"a": 1}'), called.effects, called.timeout_s) == (
        "adder",
        3,
        True,
        5,
    )
    assert tool(name="one")(partial(lambda a, b: a + b, b=2)).function('{"a": 1}') == 3


def star(*names: str) -> None: ...


def keys(**names: str) -> None: ...


def position(a: int, /) -> None: ...


def untyped(a: object) -> None: ...


def unknown(a: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: tool(star), "'names' cannot be"),
        (lambda: tool(keys), "'names' cannot be"),
        (lambda: tool(position), "'a' cannot be"),
        (lambda: tool(unknown), "a type has no JSON schema"),
        (lambda: as_tools([1]), "a tool is a function or a Tool, got 1"),  # type: ignore[list-item]
        (lambda: as_tools([book, book]), "two tools have the same name: book, book"),
        (lambda: tool(name="two words")(book), "a name is at most 64"),
        (lambda: tool(timeout_s=0)(book), "timeout_s must be positive"),
        (lambda: tool(idempotent=True)(book), "idempotent=True is for tools with effects"),
        (lambda: Agent(question=Input("q", "text"), tools=[1]), "a tool is a function"),
    ],
)
def test_unusable_tools_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_prompts_and_schemas_have_all_tools() -> None:
    tools = (tool(book), tool(untyped), Tool("old", "takes a text", str))
    shown = signature_of(tools[0])
    assert shown.startswith("book(trip: Trip, seats: integer (number of seats, children included), kind: ")
    assert '"bus"|"train" (how to travel) = "train"' in shown
    assert "; Place is {" in shown
    assert signature_of(tools[1]) == "untyped(a: any)"
    schema: dict[str, Any] = json.loads(turn_schema(tools, 3))
    assert [one["properties"]["name"] for one in schema["items"]["anyOf"]] == [
        {"const": "book"},
        {"const": "untyped"},
        {"const": "old"},
    ]
    assert set(schema["$defs"]) == {"tool0", "tool1", "tool2"}
    assert set(schema["$defs"]["tool0"]["$defs"]) == {"Mood", "Place", "Trip"}
    assert '"$ref": "#/$defs/tool0/$defs/Place"' in json.dumps(schema)


@pytest.mark.skipif(not is_installed("llguidance"), reason="the package llguidance is not installed")
def test_the_schema_of_calls_is_one_that_outputs_can_be_held_to() -> None:
    from llguidance import LLMatcher

    schema = turn_schema((tool(book), Tool("old", "takes a text", str)), 3)
    grammar = LLMatcher.grammar_from_lark(f"%llguidance {{}}\nstart: %json {schema}")
    assert LLMatcher.validate_grammar(grammar, None) == ""
