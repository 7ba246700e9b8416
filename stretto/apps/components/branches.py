"""Ready-made components of apps with branches: one that splits, and one that joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component
from stretto.graph.graph import Ref
from stretto.graph.ops import Port


class Condition(Component):
    """A component of an app that passes a value to one of two branches.

    If the condition holds, the out port `yes` delivers the value, else `no`. The other one has no
    value, so that steps which read it are skipped.
    """

    ports = (Port("value"),)
    outs: ClassVar[Mapping[str, str]] = {"yes": "any", "no": "any"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `Condition`.

        Attributes:
            equals: word with which a text must begin, in any case, for the condition to hold. With "", the
                condition holds for every text and list that is not empty, and every number but 0.
        """

        equals: str = ""

    def out_types(self, in_types: Mapping[str, str], config: Config) -> Mapping[str, str]:
        """Return the types of both outputs: that of the value."""
        return dict.fromkeys(self.outs, in_types["value"])

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the step `condition` to the app's graph."""
        settings = {"equals": config.equals} if config.equals else {}
        decided = build.add(self.name, "condition", (build.take("value"),), config=settings)
        return {branch: Ref(decided.name, branch) for branch in self.outs}


class FirstPresent(Component):
    """A component of an app that joins branches: its output is the first of its inputs that has a value.

        FirstPresent(found=answer["text"], otherwise=apology["result"])

    Ports have any names. An input that has failed counts as one without a value, unless no input has
    one.
    """

    ports = (Port("options", variadic=True),)
    outs: ClassVar[Mapping[str, str]] = {"value": "any"}

    def out_types(self, in_types: Mapping[str, str], config: object) -> Mapping[str, str]:
        """Return the type of the output: that of the first input."""
        return {"value": next(iter(in_types.values()), "any")}

    def lower(self, build: Builder, config: object) -> Mapping[str, Ref]:
        """Add the step `select` to the app's graph."""
        return {"value": build.add(self.name, "select", tuple(build.take(port) for port in build.fed))}
