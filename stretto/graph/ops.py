"""The specification of an op, and tables of them. Those that Stretto comes with stand in `op_table.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from stretto.graph.graph import Primitive
from stretto.graph.types import NAMES, is_type
from stretto.model.errors import ConfigError, GraphError

Inputs: TypeAlias = Mapping[str, object]
Settings: TypeAlias = Mapping[str, object]

OUTSIDE = "outside"
"""State that functions of the user, and searches of the web, read or change; nothing more is known of it."""
ANYTHING = "*"
"""All states: what a step may read or change whose work is not known before it runs."""


@dataclass(frozen=True, slots=True)
class Port:
    """One in port of an op: the name and type of an argument that the op takes.

    `type` is that of one application: if the op is applied to each item of a list, it is the item's type. A
    `variadic` port stands for any number of ports of any name (prompt variables, arguments of a call). An
    `optional` port may be left unconnected, and its value may be absent.
    """

    name: str
    type: str = "any"
    optional: bool = False
    variadic: bool = False


class MeasuredBatch(NamedTuple):
    """A batch that an engine is measured with.

    Attributes:
        units: amount of work, in the op's units.
        inputs: the op's inputs.
        each: the ports to whose items the op is applied; none for one application.
    """

    units: int
    inputs: Inputs
    each: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpSpec:
    """The specification of one op: its inputs, its result, and where it runs.

    An op is a kind of step, such as "embed".

    Attributes:
        ports: the in ports, in the order of the text form.
        result: type of one application's value, or a function of the primitive and its argument types.
        runs_on: kind of engine, "batch" or "llm"; None when the graph scheduler evaluates the op itself.
        outputs: names of the out ports; ("",) is the single unnamed one.
        optional_outputs: further out ports with their types, which a step has where something reads them.
        flatten: one application yields a list; a mapped op yields the lists joined into one.
        units: function from the inputs of one application to its work (for example pairs to score);
            None counts 1.
        tokens: function from the inputs of one application to the estimated tokens of its texts, where the
            op's time depends on them; None where it does not.
        passes_over_failures: failures at optional ports count as absent, unless nothing is present.
        is_idempotent: running the effect again with the same inputs changes nothing more. Only means
            something for effects; a `call` is idempotent where its setting `idempotent` says so.
        reads: name of the state outside the graph that the op reads, such as "collection"; "" for none,
            `ANYTHING` for all. It may be a function of the primitive.
        changes: name of the state that the op changes, likewise. An effect that names none changes `OUTSIDE`.
        computes_prompt: whether the op computes the KV of its prompt: the first part of an LLM request.
        makes_text: whether the op generates text after a prompt, whose KV comes at its port `kv`: the second
            part of an LLM request. Its settings are those of `Decode`.
        synthetic: function from the inputs and settings of one application to a made-up answer of the right
            shape, for simulated engines; None where there is none.
        workloads: batches of growing size by which engines that run the op are measured, of two lengths at
            least if it has `tokens`; None where there are none.
        evaluate: pure function of a control flow op, from (inputs, settings) to {out port: value}.
    """

    name: str
    ports: tuple[Port, ...]
    result: str | Callable[[Primitive, Sequence[str]], str]
    runs_on: str | None = "batch"
    outputs: tuple[str, ...] = ("",)
    optional_outputs: tuple[Port, ...] = ()
    flatten: bool = False
    units: Callable[[Inputs], int] | None = None
    tokens: Callable[[Inputs], int] | None = None
    is_idempotent: bool = False
    evaluate: Callable[[Inputs, Settings], Mapping[str, object]] | None = None
    passes_over_failures: bool = False
    reads: str | Callable[[Primitive], str] = ""
    changes: str | Callable[[Primitive], str] = ""
    computes_prompt: bool = False
    makes_text: bool = False
    synthetic: Callable[[Inputs, Settings], object] | None = None
    workloads: Callable[[], Iterable[MeasuredBatch]] | None = None

    def port(self, name: str) -> Port | None:
        """Return the port of the op that takes an argument called `name`; None if the op
        takes no such argument.
        """
        return self._by_name.get(name, self.variadic)

    @cached_property
    def _by_name(self) -> Mapping[str, Port]:
        return {port.name: port for port in self.ports}

    @cached_property
    def variadic(self) -> Port | None:
        """The port of the op that takes any number of arguments; None if the op has none."""
        return next((port for port in self.ports if port.variadic), None)


class Ops(Mapping[str, OpSpec]):
    """An immutable table of the specifications of ops, by name, and the names of the types
    that values may have.

    Raises:
        ConfigError: two specifications have the same name, or one names an unknown type.
    """

    def __init__(self, specs: Iterable[OpSpec], types: Iterable[str] = NAMES) -> None:
        self.types = frozenset(types)
        self._specs: dict[str, OpSpec] = {}
        for spec in specs:
            if spec.name in self._specs:
                raise ConfigError(f"the op {spec.name!r} is there already")
            self._check_types(spec)
            self._specs[spec.name] = spec

    def __getitem__(self, name: str) -> OpSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def spec(self, primitive: Primitive) -> OpSpec:
        """Return the specification of a primitive's op, that is, of its kind.

        Raises:
            GraphError: the table has no such op.
        """
        spec = self._specs.get(primitive.op)
        if spec is None:
            raise GraphError(
                f"%{primitive.name}: there is no op {primitive.op!r}; there are {', '.join(self)}; "
                "one of your own is added with DEFAULT.with_op(...), which Template and Runtime take as "
                "vocabulary="
            )
        return spec

    def is_effect(self, primitive: Primitive) -> bool:
        """Return whether a primitive changes something outside the graph: its result has the type `effect`.

        An effect is never removed as dead code. Steps that must come after it read its value. So a `call`
        that saves something has `result="effect"`.
        """
        result = self.spec(primitive).result
        return (result if isinstance(result, str) else primitive.setting("result")) == "effect"

    def reads(self, primitive: Primitive) -> str:
        """Return the name of the state outside the graph that a primitive reads; "" for none."""
        reads = self.spec(primitive).reads
        return reads if isinstance(reads, str) else reads(primitive)

    def changes(self, primitive: Primitive) -> str:
        """Return the name of the state outside the graph that a primitive changes; "" for none."""
        changes = self.spec(primitive).changes
        named = changes if isinstance(changes, str) else changes(primitive)
        return named or (OUTSIDE if self.is_effect(primitive) else "")

    def keep_order(self, one: Primitive, other: Primitive) -> bool:
        """Return whether two primitives must run in the order in which they are written: both change
        something, or one changes what the other reads.
        """
        changed, changed_too = self.changes(one), self.changes(other)
        if changed and changed_too:
            return True
        return _overlap(changed, self.reads(other)) or _overlap(self.reads(one), changed_too)

    def is_type(self, type_: str) -> bool:
        """Return whether a text is a valid type of values, made of the types that this table knows."""
        return is_type(type_, self.types)

    def _check_types(self, spec: OpSpec) -> None:
        named = [(f"port {port.name!r}", port.type) for port in spec.ports]
        if isinstance(spec.result, str):
            named.append(("result", spec.result))
        for what, type_ in named:
            if not self.is_type(type_):
                raise ConfigError(f"op {spec.name!r}: its {what} has the unknown type {type_!r}")


def _overlap(state: str, other: str) -> bool:
    return bool(state and other) and (state == other or ANYTHING in (state, other))
