"""Components, the parts that a user composes an app of. Each component lowers to a few primitives.

A component class names its in ports, its out ports and its configuration (a frozen dataclass whose
fields are also keyword arguments), and says in `lower` which primitives it stands for:

    class Shout(Component):
        ports = (Port("text", "text"),)
        outs = {"text": "text"}

        @dataclass(frozen=True)
        class Config:
            engine: str = "calls"

        def lower(self, build, config):
            loud = build.add("loud", "call", (build.take("text"),), engine=config.engine,
                             config={"function": "upper", "result": "text"})
            return {"text": loud}

    shout = Shout(text=question)          # in ports and settings, by keyword
    shout["text"]                         # an out port, to feed others with
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from stretto.apps.components.builder import Builder
from stretto.apps.components.choices import NAMES, Choices
from stretto.graph.graph import WHEN, Ref
from stretto.graph.ops import Port
from stretto.model.errors import ConfigError, TemplateError
from stretto.model.nearest_name import did_you_mean


def at_least(minimum: int, **settings: int) -> None:
    """Check that the given settings are at least `minimum`.

    Raises:
        ConfigError: one is less; the message names the first such setting.
    """
    for name, value in settings.items():
        if value < minimum:
            raise ConfigError(f"{name}={value} is less than {minimum}, the smallest value allowed")


def at_most(maximum: int, **settings: int) -> None:
    """Check that the given settings are at most `maximum`.

    Raises:
        ConfigError: one is more; the message names the first such setting.
    """
    for name, value in settings.items():
        if value > maximum:
            raise ConfigError(f"{name}={value} is more than {maximum}, the largest value allowed")


def check_share(**settings: float) -> None:
    """Check that the given settings are from 0 to 1.

    Raises:
        ConfigError: one is not; the message names the first such setting.
    """
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} is no share: it must be from 0 to 1")


def check_chunks(tokens: int, overlap: int) -> None:
    """Check the sizes of chunks: `tokens` of each at the most, of which `overlap` may repeat the one before.

    Raises:
        ConfigError: one is too small, or a chunk would only repeat the one before.
    """
    at_least(1, tokens=tokens)
    at_least(0, overlap=overlap)
    if overlap >= tokens:
        raise ConfigError(f"overlap={overlap} is not less than tokens={tokens}")


_NO_WHEN = (
    "; LLMCall and ToolCall have it: feed one of them from the branch and this component from that, or give "
    "a component of your own the port Port('when', optional=True)"
)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of an app: a named and typed value that is given anew for each query.

    Raises:
        TemplateError: the name or the type is no text, or the name is empty.
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not isinstance(self.type, str):
            raise TemplateError(
                f"an input has a name and a type, got {self.name!r:.80} and {self.type!r:.80}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class OutPort:
    """One output of a component: a source of values that can feed other components."""

    component: Component
    name: str


Source: TypeAlias = Input | OutPort


@dataclass(frozen=True)
class NoConfig:
    """An empty configuration, for components without settings."""


class Component:
    """The base class of all components, the parts (retriever, synthesizer…) that an app is composed of.

    A subclass declares its in ports, out ports and settings, and says in `lower` which
    primitives, the smallest steps that are scheduled, do its work. A `variadic` in port stands for any number
    of ports of any names. Each component takes the `Choices` of its user too: hints, passes, attempts and a
    fallback engine.
    """

    ports: ClassVar[tuple[Port, ...]] = ()
    outs: ClassVar[Mapping[str, str]] = {}
    Config: ClassVar[type[Any]] = NoConfig

    def __init__(self, *, name: str | None = None, **keywords: Any) -> None:
        self.name = name or _snake_case(type(self).__name__)
        if not isinstance(self.name, str):
            raise TemplateError(f"a component's name must be a text, got {name!r:.80}")
        if not dataclasses.is_dataclass(self.Config):
            raise TemplateError(f"{self.name}: Config must be a dataclass, got {self.Config!r:.80}")
        self.sources: dict[str, Source] = {}
        fields = {field.name for field in dataclasses.fields(self.Config)}
        settings = {key: value for key, value in keywords.items() if key in fields}
        chosen = {key: value for key, value in keywords.items() if key in NAMES and key not in fields}
        self.feed(**{key: keywords[key] for key in keywords if key not in fields and key not in chosen})
        self.config = configure(self, self.Config(), settings)
        self.choices = dataclasses.replace(Choices(), **chosen)

    def feed(self, **sources: Source) -> None:
        """Connect in ports of the component, given by name, to the sources of their values.

        A source is an input of the app, or an out port of another component.

        Raises:
            TemplateError: there is no such port, or the source is not an `Input` or `OutPort`.
        """
        names = [port.name for port in self.ports if not port.variadic]
        takes_any = any(port.variadic for port in self.ports)
        settings = (*(field.name for field in dataclasses.fields(self.Config)), *NAMES)
        for port, source in sources.items():
            if port not in names and not takes_any:
                meant = f"ports: {', '.join(names)}{did_you_mean(port, (*names, *settings))}"
                meant += _NO_WHEN if port == WHEN else ""
                raise TemplateError(f"{self.name}: there is no port or setting {port!r}; {meant}")
            if port not in names and not isinstance(source, Input | OutPort):
                meant = did_you_mean(port, settings) or f"; there are {', '.join(settings)}"
                raise TemplateError(f"{self.name}: {port} is no setting of {type(self).__name__}{meant}")
            if not isinstance(source, Input | OutPort):
                raise TemplateError(
                    f"{self.name}: port {port!r} is fed with a {type(source).__name__}; feed it an "
                    'Input, or an output of a component, as in component["output"]'
                )
            self.sources[port] = source

    def __getitem__(self, out: str) -> OutPort:
        if not isinstance(out, str) or out not in self.outs:
            raise TemplateError(
                f"{self.name}: there is no out port {out!r:.80}; there are {', '.join(self.outs)}"
            )
        return OutPort(self, out)

    def __rshift__(self, other: Component | Chain) -> Chain:
        return Chain((self,), (), (self,), (self,)) >> other

    def out_types(self, in_types: Mapping[str, str], config: Any) -> Mapping[str, str]:
        """Return the types of the out ports of this component, by name.

        A component overrides this method if its out types depend on the types of the values that its in ports
        get.
        """
        return self.outs

    def lower(self, build: Builder, config: Any) -> Mapping[str, Ref]:
        """Add the primitives that do the work of this component to the graph that `build` makes.

        Returns a reference to the value of each out port, by name.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Chain:
    """Components joined with `>>`, and the order that this gives them.

    Attributes:
        order: (before, after) pairs of components.
        first, last: components without one before or after them in the chain. `a >> b` puts the last ones
            of `a` before the first ones of `b`.
    """

    components: tuple[Component, ...]
    order: tuple[tuple[Component, Component], ...]
    first: tuple[Component, ...]
    last: tuple[Component, ...]

    def __rshift__(self, other: Component | Chain) -> Chain:
        other = _chain(other)
        between = tuple((a, b) for a in self.last for b in other.first)
        components = tuple(dict.fromkeys((*self.components, *other.components)))
        return Chain(components, (*self.order, *between, *other.order), self.first, other.last)


def parallel(*branches: Component | Chain) -> Chain:
    """Return a chain of components in which the given branches run side by side: `a >>
    parallel(b, c >> d) >> e`.
    """
    chains = [_chain(branch) for branch in branches]
    return Chain(
        tuple(dict.fromkeys(c for chain in chains for c in chain.components)),
        tuple(pair for chain in chains for pair in chain.order),
        tuple(c for chain in chains for c in chain.first),
        tuple(c for chain in chains for c in chain.last),
    )


def _chain(part: object) -> Chain:
    """Return a component as a chain of one. Raises TemplateError if it is neither."""
    if isinstance(part, Chain):
        return part
    if not isinstance(part, Component):
        raise TemplateError(f"an app's flow is made of components, got {part!r:.80}")
    return Chain((part,), (), (part,), (part,))


def configure(component: Component, config: Any, settings: Mapping[str, object]) -> Any:
    """Return a copy of the configuration of a component with some settings changed.

    Settings that are `Choices`, which every component takes, are passed over.

    Raises:
        ConfigError: a setting is unknown, or its value has another type than the default's.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    settings = {key: value for key, value in settings.items() if key in fields or key not in NAMES}
    for key, value in settings.items():
        if key not in fields:
            meant = did_you_mean(key, (*fields, *NAMES)) or f"; there are {', '.join(fields)}"
            raise ConfigError(f"{component.name}: there is no setting {key!r}{meant}")
        present = getattr(config, key)
        wanted = type(present)
        is_fitting = isinstance(value, int | float if wanted is float else wanted)
        if present is not None and (not is_fitting or (isinstance(value, bool) and wanted is not bool)):
            raise ConfigError(f"{component.name}: {key} must be {wanted.__name__}, got {value!r}")
    try:
        return dataclasses.replace(config, **settings)
    except ConfigError as error:
        raise ConfigError(f"{component.name}: {error.message}") from error


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
