"""Apps as functions on variables: a template's steps join the graph of the calls around it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any

from stretto.apps.template import Configuration, Template
from stretto.graph.graph import Arg, Ref
from stretto.model.errors import UserError
from stretto.programs.fragment import Build
from stretto.programs.variable import needed_client


class App:
    """An app that programs call like a function: its inputs by name, variables or values.

        search = App(search_empowered())
        answer, sources = search(question=rewritten)

    A call returns the variable of the app's output; a tuple of them, in the order of the template, if there
    are several. Its steps are part of the fragment, so that no trip to the client lies between them and other
    calls. Collections without a name belong to the client's session.

    Args:
        configuration: settings of the template, by component.

    Raises:
        UserError: it is no template, or the configuration does not fit it.
    """

    max_tokens = 0

    def __init__(self, template: Template, configuration: Configuration | None = None) -> None:
        if not isinstance(template, Template):
            raise UserError(f"an app is made of a Template, got {template!r:.80}")
        self.name = template.name
        self.configuration = configuration or {}
        self._graph = template.lower(configuration or {})
        ops = template.vocabulary.ops
        self._engines = {
            primitive.engine: kind
            for primitive in self._graph
            if primitive.engine is not None and (kind := ops.spec(primitive).runs_on) is not None
        }

    @property
    def form(self) -> Hashable:
        """A key that no other app has."""
        return self

    @property
    def engines(self) -> Mapping[str, str]:
        """The engines that the app needs, and the kind of each."""
        return self._engines

    def __call__(self, **inputs: object) -> Any:
        """Submit a call and return the variables of its outputs; see the class.

        Raises:
            UserError: an input is missing or unknown, or its value cannot be used.
        """
        client = needed_client(self.name)
        self.check_inputs(inputs)
        results = client.call(self, inputs, self.ports)
        found = tuple(results.values())
        return found[0] if len(found) == 1 else found

    @property
    def ports(self) -> list[str]:
        """Names of the outputs of the app, in order."""
        return [name for name, _ in self._graph.outputs]

    def check_inputs(self, names: Collection[str]) -> None:
        """Check that these are the inputs of the app. Raises UserError if one is missing or unknown."""
        known = [name for name, _ in self._graph.inputs]
        if missing := [name for name in known if name not in names]:
            raise UserError(f"{self.name}: there is no input {missing[0]!r}")
        if unknown := [name for name in names if name not in known]:
            raise UserError(f"{self.name} has no input {unknown[0]!r:.80}; it has {', '.join(known)}")

    def lower(self, build: Build, inputs: Mapping[str, Arg], when: Ref | None) -> Mapping[str, Ref]:
        """Add the steps of the app to the graph of a fragment, and return a reference to each output."""
        names = {primitive.name: build.new_name(f"{self.name}.{primitive.name}") for primitive in self._graph}

        def moved(ref: Ref) -> Ref:
            if ref.name in names:
                return replace(ref, name=names[ref.name])
            given = inputs[ref.name].ref
            return given if ref.index is None else replace(given, index=ref.index)

        for primitive in self._graph:
            args = tuple(replace(arg, ref=moved(arg.ref)) for arg in primitive.args)
            build.primitives.append(replace(primitive, name=names[primitive.name], args=args))
        build.order += [(names[before], names[after]) for before, after in self._graph.order]
        return {name: moved(ref) for name, ref in self._graph.outputs}
