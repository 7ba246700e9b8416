"""Outputs have the types of annotations, and a reply that does not fit is asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from support.emulated import emulating
from support.programs import Desk, DeskLLM, desk_llm
from support.services import served

from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.engines.llms import llm_engine
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply, ConfigError, TemplateError
from stretto.model.tasks import LLMTask
from stretto.service.config import ServiceConfig


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0, description="in years")]
    born: date | None = None


@dataclass
class Team:
    people: list[Person]
    points: dict[str, int]


class Mood(Enum):
    GOOD = "good"
    BAD = "very bad."


class Tree(BaseModel):
    inner: Tree | None = None


class LooseLLM(DeskLLM):
    """Takes a schema or a regular expression, and does not keep to it, as some servers do."""

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        held = task
        if task.decode is not None:
            held = replace(task, decode=replace(task.decode, json_schema=None, choices=()))
        super().admit(held, rank)
        self._desk.tasks[-1] = task


def loose_llm(desk: Desk) -> Deployment:
    return deploy("llm", lambda config: LooseLLM(desk), contract="llm", keeps_state=True)


def engines(*replies: object) -> tuple[list[Deployment], Desk]:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in replies]
    desk = Desk(lambda prompt: texts.pop(0))
    return [loose_llm(desk), transforms_engine()], desk


@P.SemanticFunction
def find(text: P.SemanticVariable) -> Person:  # type: ignore[empty-body]
    """Who is it? {{text}} As JSON: {{output:person}}"""


@P.SemanticFunction
def team(text: P.SemanticVariable, found: Team = P.Output(max_tokens=99)) -> None:  # type: ignore[assignment]
    """Who is it? {{text}} As JSON: {{found}}"""


@P.SemanticFunction
def judge(text: P.SemanticVariable) -> Literal["yes", "no", "a (b)"]:  # type: ignore[empty-body]
    """Is it good? {{text}} {{output:verdict}}"""


ANN = {"name": "Ann", "age": 30, "born": "1996-02-01"}


def test_a_reply_becomes_a_value_of_the_type() -> None:
    given, desk = engines(ANN, {"people": [ANN], "points": {"a": 1}}, "Yes.", "```json\n7\n```", "good")
    with Runtime(given) as runtime, P.Client(runtime):
        assert find("Ann").get() == Person(name="Ann", age=30, born=date(1996, 2, 1))
        assert team("Ann").get() == Team([Person.model_validate(ANN)], {"a": 1})
        assert judge("it").get() == "yes"
        assert P.SemanticFunction(number)("x").get() == 7
        assert P.SemanticFunction(mood)("x").get() is Mood.GOOD
    schemas = [one.json_schema for one in desk.decodes]
    assert json.loads(schemas[0] or "") == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "description": "in years"},
            "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    choices = [("yes", "no", "a (b)"), (), ("good", "very bad.")]
    assert [one.choices for one in desk.decodes][2:] == choices
    assert desk.decodes[1].max_tokens == 99


def number(x: P.SemanticVariable) -> int:  # type: ignore[empty-body]
    """{{x}} {{output:y}}"""


def mood(x: P.SemanticVariable) -> Mood:  # type: ignore[empty-body]
    """{{x}} {{output:y}}"""


def test_values_stand_in_prompts_as_json_and_items_of_lists_have_the_type() -> None:
    given, desk = engines(ANN, "no", "no", ANN, ANN)
    with Runtime(given) as runtime, P.Client(runtime):
        person = find("Ann")
        assert judge(person).get() == "no"
        assert judge({"a": [1, None, {"b": "c"}]}).get() == "no"
        assert find.map(["a", "b"]).get() == [Person.model_validate(ANN)] * 2
    assert json.dumps(ANN) in desk.prompts[1]
    assert '{"a": [1, null, {"b": "c"}]}' in desk.prompts[2]


def test_a_reply_that_does_not_fit_is_asked_for_again() -> None:
    given, desk = engines({"name": "Ann"}, ANN)
    with Runtime(given) as runtime, P.Client(runtime):
        assert find("<|im_end|>{{x}}").get().age == 30
    first, second = desk.prompts
    assert second.startswith(first)
    wrong = json.dumps({"name": "Ann"})
    assert (
        second[len(first) :]
        == f"{wrong}This does not fit: $ lacks 'age'. Write all of it again, as it is asked for."
    )
    roles = [segment.role for segment in desk.tasks[-1].prompt if segment.role]
    assert roles == ["assistant", "user"]
    assert desk.decodes[0] == desk.decodes[1]


@pytest.mark.parametrize("tries", [0, 1, 3])
def test_it_is_asked_for_so_often_and_then_fails(tries: int) -> None:
    given, desk = engines(*["none"] * (tries + 1))
    with Runtime(given) as runtime, P.Client(runtime):
        asked = find.using(ask_again=tries)("Ann")
        with pytest.raises(BadReply, match="no JSON"):
            asked.get()
    assert len(desk.prompts) == tries + 1


def test_any_transform_may_be_asked_for_again() -> None:
    given, desk = engines("many", "3")
    with Runtime(given) as runtime, P.Client(runtime):
        counted = P.SemanticFunction(transformed)("x")
        assert counted.get() == 3
    assert len(desk.prompts) == 2


def transformed(x: P.SemanticVariable, y: P.Output = P.Output(transform="number", ask_again=2)) -> None:
    """{{x}} {{y}}"""


def test_what_a_schema_cannot_say_is_checked_at_the_end() -> None:
    given, _ = engines({**ANN, "born": "some day"})
    with Runtime(given) as runtime, P.Client(runtime):
        found = find("Ann")
        with pytest.raises(BadReply, match="find, person: born: Input should be a valid date"):
            found.get()


def test_a_server_is_held_to_the_type() -> None:
    with emulating() as (url,), Runtime([llm_engine(url), transforms_engine()]) as runtime, P.Client(runtime):
        found = P.SemanticFunction(max_tokens=400)(score)("it").get()
        assert isinstance(found, Score)
        assert found.points
        assert judge("it").get() in ("yes", "no", "a (b)")


@dataclass
class Score:
    points: list[int]
    kind: Literal["a", "b"]


def score(x: P.SemanticVariable) -> Score:  # type: ignore[empty-body]
    """{{x}} {{output:y}}"""


def test_types_hold_at_a_service_too() -> None:
    given, desk = engines({"name": "Ann"}, ANN, "no")
    with served(given, ServiceConfig(port=0)) as (service, _), P.Client(service.url):
        assert find("Ann").get() == Person.model_validate(ANN)
        assert judge("it").get() == "no"
    assert len(desk.prompts) == 3


def test_programs_without_types_are_as_before() -> None:
    def plain(x: P.SemanticVariable) -> str:  # type: ignore[empty-body]
        """{{x}} {{output:y}}"""

    made = P.SemanticFunction(plain)
    assert made.outputs["y"].steps == ()
    with Runtime([desk_llm(Desk(lambda prompt: "hm"))]) as runtime, P.Client(runtime):
        assert made("a").get() == "hm"


def both(x: P.SemanticVariable, y: Person = P.Output(transform="json")) -> None:  # type: ignore[assignment]
    """{{x}} {{y}}"""


def endless(x: P.SemanticVariable) -> Tree:  # type: ignore[empty-body]
    """{{x}} {{output:y}}"""


def odd(x: P.SemanticVariable) -> Callable[[], int]:  # type: ignore[empty-body]
    """{{x}} {{output:y}}"""


def unknown(x: P.SemanticVariable) -> NoSuchType:  # type: ignore[name-defined]  # noqa: F821
    """{{x}} {{output:y}}"""


@pytest.mark.parametrize(
    ("function", "kind", "problem"),
    [
        (both, ConfigError, "either a type or a transform"),
        (endless, ConfigError, "Tree refers to itself"),
        (odd, ConfigError, "odd, y: .* has no JSON schema"),
        (unknown, TemplateError, "unknown: the annotation 'NoSuchType' of an output cannot be read"),
    ],
)
def test_unusable_types_are_refused(
    function: Callable[..., object], kind: type[Exception], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        P.SemanticFunction(function)
