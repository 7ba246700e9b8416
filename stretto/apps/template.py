"""Workflow templates: components, how they feed each other, and the order that `>>` gives them.

A template is checked when it is built, by lowering it once: unfed ports, wrong types, cycles and streams
of different origin are refused there; the message names the component and the port.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from stretto.apps.components.builder import Builder
from stretto.apps.components.choices import NAMES, Choices, with_choices
from stretto.apps.components.component import Chain, Component, Input, OutPort, Source, configure
from stretto.apps.vocabulary import DEFAULT
from stretto.graph.graph import Graph, Ref
from stretto.graph.ops import Ops
from stretto.graph.types import accepts
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError, GraphError, StrettoError, TemplateError
from stretto.model.foreign import described
from stretto.sched.vocabulary import Vocabulary

Configuration = Mapping[str, Mapping[str, object]]
"""Settings of one query: component name to setting to value."""


class Template:
    """A workflow template (an "app"): components, their connections and what a query returns.

    Args:
        name: name of the app and of its graphs.
        flow: components joined with `>>`, or components in any order.
        outputs: what a query returns, by name.
        vocabulary: ops and types that the template is checked against when it is built. A runtime checks its
            plans against its own vocabulary.

    Raises:
        TemplateError: a port is not connected, types do not fit, or there is a cycle.
        ConfigError: a component's settings do not fit each other.
    """

    def __init__(
        self,
        name: str,
        flow: Chain | Component | Iterable[Component],
        outputs: Mapping[str, Source],
        vocabulary: Vocabulary = DEFAULT,
    ) -> None:
        _check_parts(name, outputs, vocabulary)
        chain = flow if isinstance(flow, Chain) else None
        given = list(chain.components) if chain else _components(flow)
        self.name = name
        self.vocabulary = vocabulary
        self.outputs = dict(outputs)
        self.order = chain.order if chain else ()
        self.components = _collect(given, self.outputs)
        self.inputs = _inputs(self.components, self.outputs, vocabulary.ops)
        _name_apart(self.components)
        self.components = _sort(self.components, self.order)
        self.lower({})

    def lower(self, configuration: Configuration, vocabulary: Vocabulary | None = None) -> Graph:
        """Return the graph of steps that a query with this configuration runs.

        Args:
            configuration: settings to change, by component.
            vocabulary: ops and types that the graph is checked against; None for those the template was built
                with.

        Raises:
            ConfigError: a component or setting is unknown, or a value is unusable.
            TemplateError: the vocabulary lacks an op or a type, or types do not fit.

        Source: Teola, Algorithm 1, GraphTransform.
        """
        check_configuration(configuration)
        vocabulary = vocabulary or self.vocabulary
        ops = vocabulary.ops
        by_name = {component.name: component for component in self.components}
        if unknown := [name for name in configuration if name not in by_name]:
            raise ConfigError(f"{self.name} has no component {unknown[0]!r}; it has {', '.join(by_name)}")
        build = Builder()
        for name, _ in self.inputs:
            build.reserve(name)
        values: dict[tuple[Component | None, str], Ref] = {(None, name): Ref(name) for name, _ in self.inputs}
        types: dict[tuple[Component | None, str], str] = {(None, name): type_ for name, type_ in self.inputs}
        ranges: dict[Component, range] = {}
        for component in self.components:
            settings = configuration.get(component.name, {})
            config = configure(component, component.config, settings)
            in_types = {port: types[_key(source)] for port, source in component.sources.items()}
            _check_ports(component, in_types)
            build.enter({port: values[_key(s)] for port, s in component.sources.items()}, in_types)
            start = len(build.primitives)
            for out, ref in _lower(component, build, config).items():
                values[component, out] = ref
            for out, type_ in component.out_types(in_types, config).items():
                types[component, out] = type_
            choices = _choices(component, config, settings)
            try:
                build.primitives[start:] = with_choices(
                    build.primitives[start:], choices, ops, vocabulary.select_passes
                )
            except (ConfigError, GraphError) as error:
                raise type(error)(f"{component.name}: {error.message}") from error
            ranges[component] = range(start, len(build.primitives))
        graph = Graph(
            self.name,
            self.inputs,
            tuple(build.primitives),
            self._order_edges(build, ranges),
            tuple((name, values[_key(source)]) for name, source in self.outputs.items()),
        )
        try:
            verify(graph, ops)
        except GraphError as error:
            raise TemplateError(f"{_culprit(graph, ranges, ops)}: {error.message}") from error
        return graph

    def _order_edges(self, build: Builder, ranges: Mapping[Component, range]) -> tuple[tuple[str, str], ...]:
        """Return order edges from every last primitive of a component to every first primitive of the next.

        Source: Teola, Algorithm 1, lines 7-9.
        """
        primitives = build.primitives
        heads: dict[Component, list[str]] = {}
        tails: dict[Component, list[str]] = {}
        for component in {c for pair in self.order for c in pair}:
            own = [primitives[i] for i in ranges[component]]
            names = {primitive.name for primitive in own}
            read = {arg.ref.name for primitive in own for arg in primitive.args}
            heads[component] = [p.name for p in own if not any(arg.ref.name in names for arg in p.args)]
            tails[component] = [p.name for p in own if p.name not in read]
        pairs = ((t, h) for a, b in self.order for t in tails[a] for h in heads[b])
        return tuple(dict.fromkeys(pairs))


def check_configuration(configuration: object) -> None:
    """Check that a configuration maps names of components to settings by name. Raises ConfigError."""
    if not isinstance(configuration, Mapping) or not all(
        isinstance(component, str)
        and isinstance(settings, Mapping)
        and all(isinstance(setting, str) for setting in settings)
        for component, settings in configuration.items()
    ):
        raise ConfigError(
            f"configuration must map components to settings by name, got {reprlib.repr(configuration)}"
        )


def _check_parts(name: object, outputs: object, vocabulary: object) -> None:
    if not isinstance(name, str) or not name:
        raise TemplateError(f"an app's name must be a text, got {name!r:.80}")
    if not isinstance(outputs, Mapping):
        raise TemplateError(f"{name}: outputs must map names to sources, got {outputs!r:.80}")
    for output, source in outputs.items():
        if not isinstance(output, str) or not isinstance(source, Input | OutPort):
            raise TemplateError(
                f"{name}: output {output!r:.80} must be an Input or an out port, got {source!r:.80}"
            )
    if not isinstance(vocabulary, Vocabulary):
        raise TemplateError(f"{name}: the vocabulary must be a Vocabulary, got {vocabulary!r:.80}")


def _components(flow: object) -> list[Component]:
    given: list[Component] = []
    for part in flow if isinstance(flow, Iterable) else [flow]:
        if not isinstance(part, Component):
            raise TemplateError(f"an app's flow is made of components, got {part!r:.80}")
        given.append(part)
    return given


def _key(source: Source) -> tuple[Component | None, str]:
    return (None, source.name) if isinstance(source, Input) else (source.component, source.name)


def _collect(given: Iterable[Component], outputs: Mapping[str, Source]) -> list[Component]:
    """Return the given components and all that feed them or the outputs."""
    found: dict[Component, None] = dict.fromkeys(given)
    pending = [*found, *(s.component for s in outputs.values() if isinstance(s, OutPort))]
    while pending:
        component = pending.pop()
        found.setdefault(component)
        for source in component.sources.values():
            if isinstance(source, OutPort) and source.component not in found:
                found.setdefault(source.component)
                pending.append(source.component)
    return list(found)


def _inputs(
    components: Iterable[Component], outputs: Mapping[str, Source], ops: Ops
) -> tuple[tuple[str, str], ...]:
    inputs: dict[str, str] = {}
    for source in [*(s for c in components for s in c.sources.values()), *outputs.values()]:
        if isinstance(source, Input):
            if not ops.is_type(source.type):
                raise TemplateError(f"input {source.name!r} has the unknown type {source.type!r:.80}")
            if inputs.setdefault(source.name, source.type) != source.type:
                raise TemplateError(f"input {source.name!r} is {inputs[source.name]} and {source.type}")
    return tuple(inputs.items())


def _name_apart(components: Iterable[Component]) -> None:
    seen: set[str] = set()
    for component in components:
        if component.name in seen:
            raise TemplateError(f"two components are called {component.name!r}: give one a `name=`")
        seen.add(component.name)


def _sort(components: list[Component], order: Iterable[tuple[Component, Component]]) -> list[Component]:
    """Sort components: each after those that feed it and those that `>>` puts before it.

    Components that may stand in either order keep the order they have.

    Raises:
        TemplateError: there is a cycle; the message names its edges.
    """
    reason: dict[tuple[Component, Component], str] = {}
    for component in components:
        for port, source in component.sources.items():
            if isinstance(source, OutPort):
                reason[source.component, component] = f"{source.component.name} → {component.name}.{port}"
    for earlier, later in order:
        reason.setdefault((earlier, later), f"{earlier.name} >> {later.name}")
    num_before = dict.fromkeys(components, 0)
    followers: dict[Component, list[Component]] = {component: [] for component in components}
    for earlier, later in reason:
        num_before[later] += 1
        followers[earlier].append(later)
    place = {component: i for i, component in enumerate(components)}
    ready = [place[component] for component in components if num_before[component] == 0]
    result: list[Component] = []
    while ready:
        result.append(components[heappop(ready)])
        for follower in followers[result[-1]]:
            num_before[follower] -= 1
            if num_before[follower] == 0:
                heappush(ready, place[follower])
    if len(result) < len(components):
        stuck = [component for component in components if num_before[component]]
        edges = [reason[a, b] for b in stuck for a in stuck if (a, b) in reason]
        raise TemplateError(f"a cycle: {', '.join(edges)}")
    return result


def _choices(component: Component, config: Any, settings: Mapping[str, object]) -> Choices:
    """Return the choices for a component in one query: those of its template, but for those in `settings`."""
    chosen: dict[str, Any] = {
        name: settings[name] for name in NAMES if name in settings and not hasattr(config, name)
    }
    return replace(component.choices, **chosen) if chosen else component.choices


def _lower(component: Component, build: Builder, config: Any) -> Mapping[str, Ref]:
    try:
        lowered = component.lower(build, config)
    except (ConfigError, TemplateError) as error:
        raise error.changed(message=f"{component.name}: {error.message}") from error
    except StrettoError:
        raise
    except Exception as error:  # the component is a user's
        raise TemplateError(f"{component.name}: lower raised {described(error)}") from error
    if not isinstance(lowered, Mapping):
        raise TemplateError(f"{component.name}: lower must return its out ports by name, got {lowered!r:.80}")
    if missing := [out for out in component.outs if out not in lowered]:
        raise TemplateError(f"{component.name}: nothing was lowered for the out port {missing[0]!r}")
    return lowered


def _culprit(graph: Graph, ranges: Mapping[Component, range], ops: Ops) -> str:
    """Return the name of the first component whose primitives do not verify; else the template's name."""
    for component, own in ranges.items():
        try:
            verify(replace(graph, primitives=graph.primitives[: own.stop], order=(), outputs=()), ops)
        except GraphError:
            return component.name
    return graph.name


def _check_ports(component: Component, in_types: Mapping[str, str]) -> None:
    for port in component.ports:
        if port.name not in in_types and not port.optional and not port.variadic:
            raise TemplateError(f"{component.name}: port {port.name!r} is not fed")
    declared = {port.name: port for port in component.ports if not port.variadic}
    variadic = next((port for port in component.ports if port.variadic), None)
    for name, type_ in in_types.items():
        wanted = declared.get(name, variadic)
        if wanted is not None and not accepts(wanted.type, type_):
            source = component.sources[name]
            given = source.name if isinstance(source, Input) else f"{source.component.name}.{source.name}"
            raise TemplateError(f"{component.name}: port {name!r} takes {wanted.type}, {given} is {type_}")
