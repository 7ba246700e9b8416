"""The program as data: a typed, immutable, printable graph of primitives.

Lowering makes a `Graph` of one query (a "p-graph" in the papers), and every pass turns it into another
`Graph`; `compile_graph()` makes an `ExecutionGraph` of the last one. There are no edge objects: an
argument names the value it reads, so an edge joins (producer, out port) to (consumer, in port) by
construction. Its kind follows from what it carries:

    DATA    any value
    KV      the `hint` of a prefill: saves time, is never needed
    EFFECT  a value of type `effect`: something has happened (chunks were ingested); also an entry of
            `Graph.order` between two steps that touch the same state, one of which changes it: never pruned
    ORDER   any other entry of `Graph.order`: what `>>` says; carries nothing and may be pruned

Source: Teola §4.1. Differs: typed ports instead of names; a list whose length is only known at run
time is one primitive with an `each` port, not one node per piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from stretto.graph.strategy import NO_STRATEGY, Strategy

Scalar: TypeAlias = str | int | float | bool | None
ConfigItems: TypeAlias = tuple[tuple[str, "Scalar | tuple[Scalar, ...]"], ...]

HINT = "hint"
"""Name of the optional port of a prefill that takes a KV hint."""
ANSWER = "kv"
"""Name of the out port of a decode with the KV of its prompt and of what it has generated. A prompt that goes
on from there has this value in place of the text, so that the tokens stand in it as they were generated."""
RECORD = "record"
"""Name of the out port of an `expand` for a second output of the graph that it becomes."""
WHEN = "when"
"""Name of the guard port that every primitive may have: if its value is absent, the primitive is skipped."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a value in a graph: a graph input, an output of a primitive, or one item of such
    a value that is a list.

    An `index` beyond the end of the list delivers `ABSENT`, the marker for "no value".
    """

    name: str
    port: str = ""
    index: int | None = None

    def __str__(self) -> str:
        port = f".{self.port}" if self.port else ""
        index = "" if self.index is None else f"[{self.index}]"
        return f"{self.name}{port}{index}"


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument of a primitive: one in port and the value that feeds it.

    With `each`, the primitive is applied to every item of the list. If `piece` is None, it waits for the
    whole list; else it starts as soon as that many items exist or the list has ended.
    """

    port: str
    ref: Ref
    each: bool = False
    piece: int | None = None


ROLES = ("system", "user", "assistant")
"""Roles of the messages of a prompt."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A fixed part of a prompt template: text that is the same in every query (every run of the app).

    `role` is that of the message that begins with the text ("system", "user" or "assistant"), or None if the
    text goes on with the message before it. The text of the messages' markup is up to the model.
    """

    text: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A variable part of a prompt template: the place where a value is inserted. `port` is the argument of
    the prefill that brings the value.
    """

    port: str


PromptParts: TypeAlias = tuple[Constant | Slot, ...]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive: the smallest schedulable step of an app, one op (embed, search, decode…) on one engine.

    Attributes:
        name: name of the primitive, unique in the graph; also the name of the value it produces.
        op: name of a row of the table of op specifications (`ops.py`).
        args: what feeds the in ports, prompt variables included.
        prompt: parts of a prefill's prompt, in order; empty for other ops.
        config: settings as sorted, hashable (key, value) pairs.
        engine: name of the engine where it runs; None for control flow, which the graph scheduler evaluates.
        hints: promises of the component: "batchable" (items are independent of each other),
            "splittable" (output items are useful one by one).
        strategy: choices of the app's user: passes that may change it, attempts, fallback engine.
    """

    name: str
    op: str
    args: tuple[Arg, ...] = ()
    prompt: PromptParts = ()
    config: ConfigItems = ()
    engine: str | None = None
    hints: tuple[str, ...] = ()
    strategy: Strategy = NO_STRATEGY

    def allows(self, name: str) -> bool:
        """Return whether the pass with this name may change the primitive."""
        return self.strategy.passes is None or name in self.strategy.passes

    def arg(self, port: str) -> Arg | None:
        """Return the argument of the primitive at `port`, one of its named inputs; None if nothing
        feeds that port.
        """
        for arg in self.args:
            if arg.port == port:
                return arg
        return None

    def num_continued(self) -> int:
        """Return how many leading parts of a prompt were computed by a decode that the prompt goes on from;
        0 if it goes on from none.
        """
        answers = {arg.port for arg in self.args if arg.ref.port == ANSWER and arg.port != HINT}
        places = [
            place
            for place, part in enumerate(self.prompt, start=1)
            if isinstance(part, Slot) and part.port in answers
        ]
        return max(places, default=0)

    def is_mapped(self) -> bool:
        """Return whether the primitive is applied to every item of a list."""
        return any(arg.each for arg in self.args)

    def setting(self, key: str) -> Scalar | tuple[Scalar, ...]:
        """Return the value of the primitive's setting `key`, or None if it is not set."""
        for name, value in self.config:
            if name == key:
                return value
        return None


@dataclass(frozen=True)
class Graph:
    """An app as a dataflow graph: the primitives of one run of it, and the values between them.

    Attributes:
        inputs: (name, type) of each value that a query, one run of the app, brings.
        primitives: the steps, in a topological order.
        order: (before, after) pairs of primitive names: the second starts only when the first has ended.
        outputs: (name, value) of each value that a query returns.
        late: names of inputs whose values may come after the graph has begun to run, as in a session. No pass
            may take them for known.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    primitives: tuple[Primitive, ...]
    order: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, Ref], ...]
    late: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Primitive]:
        return iter(self.primitives)

    @cached_property
    def by_name(self) -> Mapping[str, Primitive]:
        """The graph's primitives, by name."""
        return {primitive.name: primitive for primitive in self.primitives}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Primitive, Arg], ...]]:
        """The primitives that read each value: (primitive, argument) pairs, by name of the input or
        primitive that produces the value.
        """
        readers: dict[str, list[tuple[Primitive, Arg]]] = {}
        for primitive in self.primitives:
            for arg in primitive.args:
                readers.setdefault(arg.ref.name, []).append((primitive, arg))
        return {name: tuple(found) for name, found in readers.items()}

    def fresh_name(self, stem: str) -> str:
        """Return a name that no input or primitive of the graph has: the first free one of `stem`,
        `stem.1`, `stem.2`…
        """
        taken = self.by_name.keys() | {name for name, _ in self.inputs}
        if stem not in taken:
            return stem
        number = 1
        while f"{stem}.{number}" in taken:
            number += 1
        return f"{stem}.{number}"


def config_items(config: Mapping[str, object]) -> ConfigItems:
    """Return settings as sorted, hashable (key, value) pairs; lists become tuples, None values are left out.

    Raises:
        TypeError: a value is neither a scalar nor a list of scalars.
    """
    items: list[tuple[str, Scalar | tuple[Scalar, ...]]] = []
    for key in sorted(config):
        value = config[key]
        match value:
            case None:
                continue
            case str() | int() | float() | bool():
                items.append((key, value))
            case list() | tuple() if all(isinstance(v, str | int | float | bool) for v in value):
                items.append((key, tuple(value)))
            case _:
                raise TypeError(f"{key}={value!r}: a setting is a scalar or a list of scalars")
    return tuple(items)
