"""What a component adds its primitives to: the graph of an app while it is lowered."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.apps.components.prompt_segments import known_constants, load_prompt, parse_prompt
from stretto.graph.graph import WHEN, Arg, Constant, Primitive, PromptParts, Ref, config_items
from stretto.graph.types import item_type
from stretto.model.errors import ConfigError, TemplateError


class Builder:
    """The graph of an app while it is built: each component adds its primitives to it."""

    def __init__(self) -> None:
        self.primitives: list[Primitive] = []
        self.types: Mapping[str, str] = {}
        self._values: Mapping[str, Ref] = {}
        self._names: set[str] = set()

    def reserve(self, name: str) -> None:
        """Reserve a name in the graph, so that no primitive that is added later gets it."""
        self._names.add(name)

    def enter(self, values: Mapping[str, Ref], types: Mapping[str, str]) -> None:
        """Make a component the current one, whose primitives are added next.

        `values` and `types` are the values that feed its in ports, and their types, by port.
        """
        self._values = values
        self.types = types

    def is_fed(self, port: str) -> bool:
        """Return whether the in port `port` of the current component is connected to a value."""
        return port in self._values

    @property
    def fed(self) -> tuple[str, ...]:
        """The in ports of the current component that are connected to a value, in
        the order in which they were connected.
        """
        return tuple(self._values)

    def value(self, port: str) -> Ref:
        """Return a reference to the value that feeds the in port `port` of the current component.

        Raises:
            TemplateError: nothing feeds a port of that name.
        """
        if port not in self._values:
            fed = ", ".join(self._values) or "none"
            raise TemplateError(f"nothing feeds its in port {port!r}; fed: {fed}")
        return self._values[port]

    def take(self, port: str, to: str | None = None, *, each: bool = False) -> Arg:
        """Return an argument, for `add`, that passes an input of the component on to one of its primitives:
        whatever comes at the component's in port `port` goes to the primitive's port `to`.

        `to` is `port` if left out. With `each`, what comes is a list, and the primitive runs once per item.
        """
        return Arg(to or port, self.value(port), each)

    def take_each_if_list(self, port: str, to: str) -> Arg:
        """Return an argument that connects a new primitive to an input of the current component: its
        port `to` reads what feeds the component's in port `port`.

        If that is a list, the primitive is applied to every item.
        """
        return Arg(to, self.value(port), item_type(self.types[port]) is not None)

    def add(
        self,
        name: str,
        op: str,
        args: tuple[Arg, ...],
        *,
        engine: str | None = None,
        config: Mapping[str, object] | None = None,
        hints: tuple[str, ...] = (),
        prompt: PromptParts = (),
    ) -> Ref:
        """Add a primitive to the graph and return a reference to its value.

        If another primitive has that name, a number is appended to it.
        """
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}.{number}"
        self._names.add(unique)
        try:
            settings = config_items(config or {})
        except TypeError as error:
            raise ConfigError(str(error)) from error
        self.primitives.append(Primitive(unique, op, args, prompt, settings, engine, hints))
        return Ref(unique)

    def complete(
        self,
        name: str,
        prompt: str,
        variables: Mapping[str, Ref],
        *,
        engine: str,
        decode: Mapping[str, object],
        constants: Mapping[str, object] | None = None,
        each: frozenset[str] = frozenset(),
        hints: tuple[str, ...] = (),
        when: Ref | None = None,
    ) -> Ref:
        """Add an LLM call to the graph, as two steps (a prefill of `prompt` and its decode), and return a
        reference to its output.

        Args:
            prompt: name of a ready-made prompt, or the text of one (any string with a brace).
            variables: the value of each prompt variable.
            constants: settings whose values the prompt may contain, by name.
            each: variables taken item by item from a list.
            decode: fields of `stretto.model.tasks.Decode`.
            when: value without which the call is skipped, if it has such a condition.
        """
        parts = parse_prompt(load_prompt(prompt), frozenset(variables), known_constants(constants or {}))
        used = [part.port for part in parts if not isinstance(part, Constant)]
        args = tuple(Arg(port, variables[port], port in each) for port in dict.fromkeys(used))
        if when is not None:
            args = (*args, Arg(WHEN, when))
        independent = ("batchable",) if each else ()
        kv = self.add(f"{name}.prompt", "prefill", args, engine=engine, prompt=parts, hints=independent)
        return self.add(
            name,
            "decode",
            (Arg("kv", kv, bool(each)),),
            engine=engine,
            config=decode,
            hints=(*independent, *hints),
        )
