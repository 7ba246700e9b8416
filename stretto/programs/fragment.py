"""Fragments: calls that are submitted together, as one graph whose inputs and outputs are variables of a
session.

The graph's own names come from the functions' names alone, in the order of the calls. So fragments of the
same form are the same graph, which is compiled once, whatever their variables are called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from stretto.graph.graph import Arg, Graph, Primitive, PromptParts, Ref, config_items
from stretto.graph.strategy import NO_STRATEGY, Strategy
from stretto.model.record import record

MOST_TOGETHER = 128
"""Largest number of calls of one fragment: some ms of work."""
MOST_PLACES = 2048
"""Largest number of inputs and outputs of one fragment of several calls: some ms of work."""


class Build:
    """The graph of a fragment while it is built: each call adds its primitives to it."""

    def __init__(self) -> None:
        self.primitives: list[Primitive] = []
        self.order: list[tuple[str, str]] = []
        self._counts: dict[str, int] = {}

    def new_name(self, stem: str) -> str:
        """Return a name that nothing in the graph has yet: `stem`, `stem.2`, `stem.3`…"""
        number = self._counts[stem] = self._counts.get(stem, 0) + 1
        return stem if number == 1 else f"{stem}.{number}"

    def add(
        self,
        name: str,
        op: str,
        args: Sequence[Arg],
        *,
        engine: str | None = None,
        config: Mapping[str, object] | None = None,
        prompt: PromptParts = (),
        strategy: Strategy = NO_STRATEGY,
    ) -> Ref:
        """Add a primitive and return a reference to its value."""
        unique = self.new_name(name)
        hints = ("batchable",) if engine is not None and any(arg.each for arg in args) else ()
        settings = config_items(config or {})
        self.primitives.append(Primitive(unique, op, tuple(args), prompt, settings, engine, hints, strategy))
        return Ref(unique)


class Form:
    """A key that keeps its hash, as it is looked up with each call."""

    __slots__ = ("_hash", "_key")

    def __init__(self, *key: Hashable) -> None:
        self._key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Form) and self._key == other._key)


class Work(Protocol):
    """The work of a call, such as a semantic function: it adds its steps to the graph of a fragment."""

    @property
    def name(self) -> str:
        """The name of the function, which names its steps too."""
        ...

    @property
    def form(self) -> Hashable:
        """A key that is equal for works that add the same steps."""
        ...

    @property
    def engines(self) -> Mapping[str, str]:
        """The engines that it needs, and the kind of each, "batch" or "llm"."""
        ...

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens that an LLM may generate for one output; 0 if none does."""
        ...

    def lower(self, build: Build, inputs: Mapping[str, Arg], when: Ref | None) -> Mapping[str, Ref]:
        """Add the steps of a call, and return a reference to each output by name.

        `inputs` are the arguments by port; one with `each` is taken item by item. Without a value at `when`
        the steps are skipped.
        """
        ...


@record
class WaitingCall:
    """A call that waits to be submitted.

    Attributes:
        inputs: name of the session's variable for each input of the work, in the order of its ports; None for
            one whose value stands in `constants`.
        outputs: name of the session's variable for each output.
        each: input that is a list, to each of whose items the work is applied; None for none.
        when: variable without whose value the call is skipped.
        reads: variables that the call waits for.
    """

    work: Work
    inputs: Mapping[str, str | None]
    outputs: Mapping[str, str]
    constants: Mapping[str, object]
    each: str | None = None
    when: str | None = None
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        guard = () if self.when is None else (self.when,)
        read = (*[name for name in self.inputs.values() if name is not None], *guard)
        object.__setattr__(self, "reads", read)

    def without_values(self) -> WaitingCall:
        """Return the call without the values that it brings: its form, and the names of its variables."""
        if not self.constants:
            return self
        constants = dict.fromkeys(self.constants)
        return WaitingCall(self.work, self.inputs, self.outputs, constants, self.each, self.when)


class Fragment:
    """Calls that are submitted together, and the form of their graph.

    The calls must not wait for each other in a circle. `has_value` says of a variable whether the client has
    set it; all other inputs are late.

    Attributes:
        form: key that is equal for fragments with equal graphs.
    """

    def __init__(self, calls: Sequence[WaitingCall], has_value: Callable[[str], bool]) -> None:
        self._calls = calls if len(calls) == 1 else _producers_first(calls)
        self._bound: list[tuple[str | None, object]] = []
        self._late: list[bool] = []
        numbers: dict[str, int] = {}
        forms: list[Hashable] = []
        for call in self._calls:
            read: list[int | None] = []
            for port, variable in call.inputs.items():
                if variable is None:
                    self._bound.append((None, call.constants[port]))
                    read.append(None)
                else:
                    read.append(self._number(variable, numbers, has_value))
            when = None if call.when is None else self._number(call.when, numbers, has_value)
            forms.append((call.work.form, tuple(call.inputs), tuple(read), call.each, when))
            for variable in call.outputs.values():
                numbers[variable] = len(numbers)
                self._bound.append((variable, None))
        self.form: Hashable = tuple(forms), tuple(self._late)

    def _number(self, variable: str, numbers: dict[str, int], has_value: Callable[[str], bool]) -> int:
        number = numbers.get(variable)
        if number is None:
            number = numbers[variable] = len(numbers)
            self._bound.append((variable, None))
            self._late.append(not has_value(variable))
        return number

    def bind(self, names: Sequence[str]) -> tuple[dict[str, str], dict[str, object]]:
        """Return the variables and the constant values that the inputs and outputs are, by `names`, which
        come from `build`.
        """
        bind: dict[str, str] = {}
        values: dict[str, object] = {}
        for name, (variable, constant) in zip(names, self._bound, strict=True):
            if variable is None:
                values[name] = constant
            else:
                bind[name] = variable
        return bind, values

    def build(self) -> tuple[Graph, tuple[str, ...]]:
        """Return the graph, and the names of its inputs and outputs in the order in which calls have them."""
        build = Build()
        late = iter(self._late)
        refs: dict[str, Ref] = {}
        inputs: list[str] = []
        late_inputs: set[str] = set()
        outputs: list[tuple[str, Ref]] = []
        names: list[str] = []

        def new_input(stem: str) -> Ref:
            name = build.new_name(stem)
            inputs.append(name)
            names.append(name)
            return Ref(name)

        def ref_of(variable: str | None, stem: str) -> Ref:
            if variable is None:
                return new_input(stem)
            if variable not in refs:
                refs[variable] = new_input(stem)
                if next(late):
                    late_inputs.add(refs[variable].name)
            return refs[variable]

        for call in self._calls:
            args = {
                port: Arg(port, ref_of(variable, port), port == call.each)
                for port, variable in call.inputs.items()
            }
            when = None if call.when is None else ref_of(call.when, "when")
            made = call.work.lower(build, args, when)
            for port, variable in call.outputs.items():
                refs[variable] = made[port]
                name = build.new_name(port)
                outputs.append((name, made[port]))
                names.append(name)
        graph = Graph(
            "fragment",
            tuple((name, "any") for name in inputs),
            tuple(build.primitives),
            tuple(build.order),
            tuple(outputs),
            frozenset(late_inputs),
        )
        return graph, tuple(names)


def parts_of(calls: Sequence[WaitingCall]) -> Iterator[Sequence[WaitingCall]]:
    """Yield calls in parts for one fragment each, none of which reads outputs of a later part: few calls, and
    several only if they have few inputs and outputs. Calls that wait for each other in a circle are yielded
    too.
    """
    if len(calls) <= MOST_TOGETHER and sum(map(_num_places, calls)) <= MOST_PLACES:
        yield calls
        return
    part: list[WaitingCall] = []
    num_places = 0
    for call in _producers_first(calls):
        num_places += _num_places(call)
        if len(part) == MOST_TOGETHER or (part and num_places > MOST_PLACES):
            yield part
            part, num_places = [], _num_places(call)
        part.append(call)
    yield part


def _num_places(call: WaitingCall) -> int:
    return len(call.inputs) + len(call.outputs)


def _producers_first(calls: Sequence[WaitingCall]) -> list[WaitingCall]:
    """Return calls sorted so that each comes after those whose outputs it reads, else in the order given. In
    a circle, one comes before.
    """
    producers = {variable: call for call in calls for variable in call.outputs.values()}
    begun: set[int] = set()
    result: list[WaitingCall] = []
    for call in calls:
        if id(call) in begun:
            continue
        begun.add(id(call))
        stack = [(call, iter(call.reads))]
        while stack:
            top, unseen = stack[-1]
            for name in unseen:
                producer = producers.get(name)
                if producer is not None and id(producer) not in begun:
                    begun.add(id(producer))
                    stack.append((producer, iter(producer.reads)))
                    break
            else:
                result.append(top)
                stack.pop()
    return result
