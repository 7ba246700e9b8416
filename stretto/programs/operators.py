"""Operators on variables: list, join, transform and choose values without a trip to the client."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from stretto.graph.graph import HINT, WHEN, Arg, Ref
from stretto.model.errors import TemplateError, UserError
from stretto.programs.fragment import Build
from stretto.programs.variable import SemanticVariable, needed_client
from stretto.transforms.table import steps_of

TRANSFORMS = "transforms"
"""Name of the engine that transforms values."""


@dataclass(frozen=True)
class Operator:
    """A call of a single op.

    Attributes:
        config: settings of the op.
        outputs: out ports of the op by the names of the call's outputs; None for one that is called like
            the operator.
        engine: engine that runs the op; None for control flow.
    """

    name: str
    op: str
    max_tokens: ClassVar[int] = 0
    config: Mapping[str, object] = field(default_factory=dict)
    outputs: Mapping[str, str] | None = None
    engine: str | None = None

    @property
    def form(self) -> Hashable:
        """A key that is equal for operators of the same op and settings."""
        return self.name, self.op, tuple(self.config.items()), self.engine

    @property
    def engines(self) -> Mapping[str, str]:
        """The engine that runs the op, if any."""
        return {} if self.engine is None else {self.engine: "batch"}

    def lower(self, build: Build, inputs: Mapping[str, Arg], when: Ref | None) -> Mapping[str, Ref]:
        """Add the step to the graph of a fragment, and return a reference to each output by name."""
        args = [*inputs.values(), *([] if when is None else [Arg(WHEN, when)])]
        made = build.add(self.name, self.op, args, engine=self.engine, config=self.config)
        return {name: Ref(made.name, port) for name, port in self.ports.items()}

    def __call__(
        self, inputs: Mapping[str, object], when: SemanticVariable | None
    ) -> dict[str, SemanticVariable]:
        """Submit a call with these inputs by port, and return the variables of its outputs."""
        client = needed_client(self.name)
        return client.call(self, inputs, tuple(self.ports), when=when)

    def value(self, inputs: Mapping[str, object], when: SemanticVariable | None) -> SemanticVariable:
        """Submit a call of an operator with a single output, and return the variable of it."""
        return self(inputs, when)[self.name]

    def check_inputs(self, names: Sequence[str]) -> None:
        """Check that a call of the operator may have inputs of these names. Raises TemplateError if not."""
        if self.name in _OF_ONE_VALUE and list(names) != ["value"]:
            raise TemplateError(f"{self.name} has one input, called 'value'")
        if not names:
            raise TemplateError(f"{self.name} needs at least one input")
        if unusable := [name for name in names if not name.isidentifier() or name in (HINT, WHEN)]:
            raise TemplateError(f"{self.name}: no input can be called {unusable[0]!r:.80}")

    @property
    def ports(self) -> Mapping[str, str]:
        """The out ports of the op, by the names of the outputs of a call."""
        return {self.name: ""} if self.outputs is None else self.outputs


class Branches(NamedTuple):
    """The two results of a condition: the value stands at `yes` if it holds, else at `no`; the other one has
    no value.
    """

    yes: SemanticVariable
    no: SemanticVariable


def gather(*values: object, when: SemanticVariable | None = None) -> SemanticVariable:
    """Return a variable whose value is the list of these values, in this order. Values that are lists are
    spliced in, and those of skipped calls are left out.
    """
    return _gather().value(_numbered("gather", values), when)


def join(*values: object, separator: str = "\n\n", when: SemanticVariable | None = None) -> SemanticVariable:
    """Return a variable whose value is these values as one text, the items of lists one by one; those of
    skipped calls are left out.

    The variable fails with `BadReply` where a value has no text, such as an object of JSON.
    """
    return _join(separator).value(_numbered("join", values), when)


def transform(
    value: object, steps: str | Sequence[str], *, when: SemanticVariable | None = None
) -> SemanticVariable:
    """Return a variable whose value is what a chain of transforms, such as 'json_path "$.name"', makes of a
    value.

    Raises:
        ConfigError: there is no such transform, or its argument cannot be used.
    """
    return _transform(steps).value({"value": value}, when)


def condition(value: object, *, equals: str = "", when: SemanticVariable | None = None) -> Branches:
    """Return the branches of a condition on a value, for `when=` of calls.

    Args:
        equals: word with which a text must begin, in any case, for the condition to hold. With "" it holds
            for every text and list that is not empty, and every number but 0.
    """
    return Branches(**_condition(equals)({"value": value}, when))


def first_present(*values: object) -> SemanticVariable:
    """Return a variable whose value is the first of these that has one: neither skipped nor failed."""
    return _first_present().value(_numbered("first_present", values), None)


def _numbered(name: str, values: tuple[object, ...]) -> dict[str, object]:
    if not values:
        raise UserError(f"{name} needs at least one value")
    return {f"item{place}": value for place, value in enumerate(values, start=1)}


def _gather() -> Operator:
    return Operator("gather", "aggregate")


def _join(separator: str = "\n\n") -> Operator:
    if not isinstance(separator, str):
        raise UserError(f"join: the separator must be a text, got {separator!r:.80}")
    return Operator("join", "aggregate", {"join": separator})


def _transform(steps: str | Sequence[str]) -> Operator:
    return Operator("transform", "transform", {"steps": steps_of(steps)}, engine=TRANSFORMS)


def _condition(equals: str = "") -> Operator:
    if not isinstance(equals, str):
        raise UserError(f"condition: equals must be a text, got {equals!r:.80}")
    settings = {"equals": equals} if equals else {}
    return Operator("condition", "condition", settings, {"yes": "yes", "no": "no"})


def _first_present() -> Operator:
    return Operator("first_present", "select")


OPERATORS: Mapping[str, Callable[..., Operator]] = MappingProxyType(
    {
        "gather": _gather,
        "join": _join,
        "transform": _transform,
        "condition": _condition,
        "first_present": _first_present,
    }
)
"""The operators by name; each is made with its settings as keywords."""
_OF_ONE_VALUE = ("transform", "condition")


def operator_named(name: str, settings: Mapping[str, Any]) -> Operator:
    """Return an operator by name, with its settings.

    Raises:
        UserError: there is no such operator, or a setting is unknown, missing, or of another type.
    """
    if name not in OPERATORS:
        raise UserError(f"there is no operator {name!r:.80}; there are {', '.join(OPERATORS)}")
    known = signature(OPERATORS[name]).parameters
    if (unknown := next((one for one in settings if one not in known), None)) is not None:
        there_are = f"there are {', '.join(known)}" if known else "there are none"
        raise UserError(f"{name}: there is no setting {unknown!r:.80}; {there_are}")
    for one, parameter in known.items():
        if parameter.default is Parameter.empty and one not in settings:
            raise UserError(f"{name}: the setting {one!r} is missing")
    return OPERATORS[name](**settings)
