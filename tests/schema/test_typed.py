"""The typed reader: what fits becomes a value, and what does not is named with what would be right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta
from support.pages import DOCS, python_of

from stretto.model.errors import ConfigError
from stretto.schema.typed import Count, Number, Seconds, Text, ValueProblem, read_as


@dataclass(frozen=True, slots=True)
class Part:
    size: int
    weights: tuple[float, ...] = ()
    file: Path | None = None
    make: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        if self.size > 100:
            raise ConfigError("size must be at most 100")


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    number: Number = 1
    wait_s: Seconds = 0.0
    kind: Literal["a", "b"] | None = None
    counts: dict[str, tuple[Count, ...]] = {}
    parts: tuple[Part, ...] = ()
    ids: Annotated[tuple[int, ...], Meta(min_length=1)] = (1,)


def test_plain_data_becomes_a_value_of_its_type() -> None:
    found = read_as(Whole, {"name": "x", "wait_s": 3, "parts": [{"size": 1, "weights": [2], "file": "/a"}]})
    assert found == Whole("x", wait_s=3.0, parts=(Part(1, (2.0,), Path("/a")),))
    assert read_as(Part, {"size": 1, "file": None}) == Part(1)


@pytest.mark.parametrize(
    ("value", "message", "keys"),
    [
        ([1], "the value must be a mapping with name, number, wait_s, .*, got [1]", ()),
        ({}, "the key 'name' is missing; it must be a text of Unicode", ()),
        ({"nam": "x"}, "unknown key 'nam'; did you mean name?; known keys: name, number", ("nam",)),
        ({"name": "\ud800"}, r"name must be a text of Unicode, got '\ud800'", ("name",)),
        ({"number": 0}, "number must be a whole number from 1 to 1000000000, got 0", ("number",)),
        ({"number": True}, "number must be a whole number from 1 to 1000000000, got True", ("number",)),
        ({"wait_s": math.nan}, "wait_s must be a time from 0 to 1000000000 s, got nan", ("wait_s",)),
        ({"kind": "z"}, "kind must be one of a, b, got 'z'", ("kind",)),
        ({"counts": {"x": [1, -2]}}, "counts.x[1] must be a whole number from 0", ("counts", "x", 1)),
        ({"parts": [{"size": 1, "sise": 2}]}, "parts[0]: unknown key 'sise'", ("parts", 0, "sise")),
        ({"parts": [{}]}, "parts[0]: the key 'size' is missing; it must be a whole number", ("parts", 0)),
        ({"parts": [{"size": 1, "file": 3}]}, "parts[0].file must be a path, got 3", ("parts", 0, "file")),
        ({"ids": []}, "ids must be a list that is not empty, each a whole number, got []", ("ids",)),
        ({"ids": "x" * 99}, "ids must be a list that is not empty, each a whole number, got 'xxx", ("ids",)),
    ],
)
def test_the_first_fault_is_named_with_what_would_be_right(
    value: Any, message: str, keys: tuple[str | int, ...]
) -> None:
    given = {"name": "x", **value} if isinstance(value, dict) and value and "nam" not in value else value
    for place in ("", "line 3"):
        with pytest.raises(ValueProblem) as caught:
            read_as(Whole, given, place)
        assert caught.value.keys == keys
        begin, _, end = message.partition(".*, ")
        said = caught.value.message
        assert said.startswith(f"{place}: {begin}" if place else begin)
        assert end in said
        assert len(said) < 300


def test_a_dataclass_that_accepts_no_such_values_says_so_itself() -> None:
    with pytest.raises(ConfigError, match="size must be at most 100"):
        read_as(Part, {"size": 101})
    with pytest.raises(ValueProblem, match="make must be a value that only code can give, got 'len'"):
        read_as(Part, {"size": 1, "make": "len"})


def test_the_snippet_of_the_design_page_raises_what_it_says() -> None:
    page = DOCS / "design" / "reading.md"
    with pytest.raises(ValueProblem) as caught:
        exec(compile(python_of(page), "reading.md", "exec", dont_inherit=True), {"__name__": "page"})
    assert f"# ValueProblem: {caught.value}\n" in page.read_text("utf-8")


def test_many_readings_of_a_pattern_leave_it_whole() -> None:
    """msgspec 0.22 frees the pattern of a text that is read by itself, and the process ends."""
    for _ in range(2000):
        assert read_as(Annotated[str, Meta(pattern="^a")], "a") == "a"  # type: ignore[arg-type]
        with pytest.raises(ValueProblem):
            read_as(Annotated[str, Meta(pattern="^a")], "b")  # type: ignore[arg-type]


def test_a_path_or_a_text_is_read_as_the_text() -> None:
    kind: Any = str | Path
    assert read_as(kind, "a/b") == "a/b"
    with pytest.raises(ValueProblem, match="must be a text, got 3"):
        read_as(kind, 3)
    assert read_as(dict[str, tuple[kind, ...]], {"a": ["b"]}) == {"a": ("b",)}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Colour, "green", "the value must be one of red, blue, got 'green'"),
        (tuple[int, str], [1, 2], r"\[1\] must be a text, got 2"),
        (tuple[int, str], [1], r"must be a list with a whole number, a text, got \[1\]"),
        (tuple[()], [1], "must be a list"),
        (frozenset[str], [1], r"must be a list, each a text, got \[1\]"),
        (dict[str, int], {1: 2}, "1 must be a text, got 1"),
        (bytes, "%", "must be a text in base64, got '%'"),
    ],
)
def test_other_types_are_named_too(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueProblem, match=message):
        read_as(kind, value)


@dataclass(frozen=True)
class Secretive:
    keys: tuple[str, ...] = field(repr=False)


@pytest.mark.parametrize("keys", ["hidden", [["hidden"]], {"hidden": 1}])
def test_messages_are_silent_about_what_a_dataclass_does_not_print(keys: Any) -> None:
    with pytest.raises(ValueProblem, match=r"^keys.* must be a (list|text)") as caught:
        read_as(Secretive, {"keys": keys})
    assert "hidden" not in caught.value.message
