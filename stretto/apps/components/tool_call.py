"""Ready-made component that calls a Python function of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component
from stretto.graph.graph import WHEN, Arg, Ref
from stretto.graph.ops import Port
from stretto.graph.types import list_of
from stretto.model.errors import ConfigError


class ToolCall(Component):
    """A component of an app that calls a Python function. Each port is an argument of the function:

        ToolCall(function="weather", result="text", city=city)

    The functions are given to the engine: `local_engines(functions={"weather": weather})`. If the port `when`
    is connected and has no value, the call is skipped.
    """

    ports = (Port(WHEN, optional=True), Port("arguments", variadic=True))
    outs: ClassVar[Mapping[str, str]] = {"result": "any"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `ToolCall`. No argument can have the name of a setting.

        Attributes:
            function: name under which the engine knows the function.
            result: type of the function's result, such as "text" or "list[text]". "effect" says that the
                function changes something outside the app: it is called at most once, and its result is only
                that it has been called.
            idempotent: whether a function with an effect may be called again with the same arguments.
            each: name of an argument that is a list; the function is called once for each item. "" for none.
            engine: name of the engine that has the function.
        """

        function: str = ""
        result: str = "text"
        idempotent: bool = False
        each: str = ""
        engine: str = "calls"

        def __post_init__(self) -> None:
            if self.idempotent and self.result != "effect":
                raise ConfigError(f"idempotent=True is for result='effect', got result={self.result!r}")

    def out_types(self, in_types: Mapping[str, str], config: Config) -> Mapping[str, str]:
        """Return the type of the function's result, or a list of it if there is one call for each item."""
        is_list = config.each and config.result != "effect"
        return {"result": list_of(config.result) if is_list else config.result}

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the step `call` to the app's graph.

        Raises:
            ConfigError: no function is named, or `each` is no argument.
        """
        if not config.function:
            raise ConfigError("function is empty; set it to the name of a function of the engine")
        arguments = [port for port in build.fed if port != WHEN]
        if config.each and config.each not in arguments:
            raise ConfigError(f"each={config.each!r} is no argument; there are {', '.join(arguments)}")
        args: tuple[Arg, ...] = tuple(build.take(port, each=port == config.each) for port in arguments)
        if build.is_fed(WHEN):
            args = (*args, build.take(WHEN))
        settings: dict[str, object] = {"function": config.function, "result": config.result}
        if config.idempotent:
            settings["idempotent"] = True
        hints = ("batchable",) if config.each else ()
        result = build.add(self.name, "call", args, engine=config.engine, config=settings, hints=hints)
        return {"result": result}
