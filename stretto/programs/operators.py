"""Operators on variables: list, join, transform and choose values without a trip to the client."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from stretto.errors import UserError
from stretto.graph.graph import WHEN, Arg, Ref
from stretto.programs.current import needed_client
from stretto.programs.fragment import Build
from stretto.programs.variable import SemanticVariable
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
        return {name: Ref(made.name, port) for name, port in self._ports.items()}

    def __call__(
        self, inputs: Mapping[str, object], when: SemanticVariable | None
    ) -> dict[str, SemanticVariable]:
        """Submit a call with these inputs by port, and return the variables of its outputs."""
        client = needed_client(self.name)
        return client.call(self, inputs, tuple(self._ports), when=when)

    def value(self, inputs: Mapping[str, object], when: SemanticVariable | None) -> SemanticVariable:
        """Submit a call of an operator with a single output, and return the variable of it."""
        return self(inputs, when)[self.name]

    @property
    def _ports(self) -> Mapping[str, str]:
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
    return Operator("gather", "aggregate").value(_numbered("gather", values), when)


def join(*values: object, separator: str = "\n\n", when: SemanticVariable | None = None) -> SemanticVariable:
    """Return a variable whose value is these values as one text, the items of lists one by one; those of
    skipped calls are left out.

    The variable fails with `BadReply` where a value has no text, such as an object of JSON.
    """
    if not isinstance(separator, str):
        raise UserError(f"join: the separator must be a text, got {separator!r:.80}")
    return Operator("join", "aggregate", {"join": separator}).value(_numbered("join", values), when)


def transform(
    value: object, steps: str | Sequence[str], *, when: SemanticVariable | None = None
) -> SemanticVariable:
    """Return a variable whose value is what a chain of transforms, such as 'json_path "$.name"', makes of a
    value.

    Raises:
        ConfigError: there is no such transform, or its argument cannot be used.
    """
    settings = {"steps": steps_of(steps)}
    return Operator("transform", "transform", settings, engine=TRANSFORMS).value({"value": value}, when)


def condition(value: object, *, equals: str = "", when: SemanticVariable | None = None) -> Branches:
    """Return the branches of a condition on a value, for `when=` of calls.

    Args:
        equals: word with which a text must begin, in any case, for the condition to hold. With "" it holds
            for every text and list that is not empty, and every number but 0.
    """
    if not isinstance(equals, str):
        raise UserError(f"condition: equals must be a text, got {equals!r:.80}")
    settings = {"equals": equals} if equals else {}
    operator = Operator("condition", "condition", settings, {"yes": "yes", "no": "no"})
    return Branches(**operator({"value": value}, when))


def first_present(*values: object) -> SemanticVariable:
    """Return a variable whose value is the first of these that has one: neither skipped nor failed."""
    return Operator("first_present", "select").value(_numbered("first_present", values), None)


def _numbered(name: str, values: tuple[object, ...]) -> dict[str, object]:
    if not values:
        raise UserError(f"{name} needs at least one value")
    return {f"item{place}": value for place, value in enumerate(values, start=1)}
