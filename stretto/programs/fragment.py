"""Fragments: calls that are submitted together, as one graph whose inputs and outputs are variables of a
session.

The graph's own names come from the functions' names alone, in the order of the calls. So fragments of the
same form are the same graph, which is compiled once, whatever their variables are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stretto.graph.graph import Arg, Graph, Primitive, PromptParts, Ref, config_items


class Build:
    """The graph of a fragment while it is built: each call adds its primitives (steps) to it."""

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
    ) -> Ref:
        """Add a primitive (step) and return a reference to its value."""
        unique = self.new_name(name)
        hints = ("batchable",) if engine is not None and any(arg.each for arg in args) else ()
        settings = config_items(config or {})
        self.primitives.append(Primitive(unique, op, tuple(args), prompt, settings, engine, hints))
        return Ref(unique)


class Work(Protocol):
    """What a call does, such as a semantic function: it adds its steps to the graph of a fragment."""

    @property
    def name(self) -> str:
        """The name of the function, which names its steps too."""
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


@dataclass(frozen=True, slots=True)
class Call:
    """A call that waits to be submitted.

    Attributes:
        inputs, outputs: name of the session's variable for each input and output of the work.
        each: input that is a list, to each of whose items the work is applied; None for none.
        when: variable without whose value the call is skipped.
        constants: values of those inputs' variables that are Python values, which no other call reads.
        reads: variables that the call waits for: all but the constants.
    """

    work: Work
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    each: str | None = None
    when: str | None = None
    constants: Mapping[str, object] = field(default_factory=dict)
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        guard = () if self.when is None else (self.when,)
        read = (name for name in self.inputs.values() if name not in self.constants)
        object.__setattr__(self, "reads", (*read, *guard))


def fragment(calls: Sequence[Call], has_value: Callable[[str], bool]) -> tuple[Graph, dict[str, str]]:
    """Return the graph of calls, and for each of its inputs and outputs the variable that it is.

    The calls must not wait for each other in a circle. `has_value` says of a variable whether the client has
    set it; all other inputs are late.
    """
    build = Build()
    made = {variable for call in calls for variable in call.outputs.values()}
    constants = {variable for call in calls for variable in call.constants}
    late: set[str] = set()
    refs: dict[str, Ref] = {}
    inputs: list[tuple[str, str]] = []
    outputs: list[tuple[str, Ref]] = []
    bind: dict[str, str] = {}

    def ref_of(variable: str, stem: str) -> Ref:
        if variable not in refs:
            assert variable not in made
            name = build.new_name(stem)
            inputs.append((name, "any"))
            bind[name] = variable
            refs[variable] = Ref(name)
            if variable not in constants and not has_value(variable):
                late.add(name)
        return refs[variable]

    for call in _producers_first(calls):
        args = {
            port: Arg(port, ref_of(variable, port), port == call.each)
            for port, variable in call.inputs.items()
        }
        when = None if call.when is None else ref_of(call.when, "when")
        for port, ref in call.work.lower(build, args, when).items():
            refs[call.outputs[port]] = ref
            name = build.new_name(port)
            outputs.append((name, ref))
            bind[name] = call.outputs[port]
    graph = Graph(
        "fragment",
        tuple(inputs),
        tuple(build.primitives),
        tuple(build.order),
        tuple(outputs),
        frozenset(late),
    )
    return graph, bind


def _producers_first(calls: Sequence[Call]) -> list[Call]:
    """Return calls sorted so that each comes after those whose outputs it reads, else in the order given."""
    producers = {variable: call for call in calls for variable in call.outputs.values()}
    done: set[int] = set()
    result: list[Call] = []
    for call in calls:
        stack = [call]
        while stack:
            top = stack[-1]
            missing = [producers[name] for name in top.reads if name in producers]
            missing = [other for other in missing if id(other) not in done]
            if id(top) in done:
                stack.pop()
            elif missing:
                stack.append(missing[0])
            else:
                done.add(id(top))
                result.append(stack.pop())
    return result
