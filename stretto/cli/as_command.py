"""Commands of the command line from functions that take their options as dataclasses.

The fields of such a dataclass are the options: `field: Annotated[str, typer.Option(...)] = "default"`. A
field that is a tuple is an option that may be repeated, and a field with a dataclass as its type stands for
the options of that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from stretto.cli.verbosity import Verbosity, set_verbosity


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer that calls `function`, and has the options of `Verbosity` beside its own.

    Args:
        function: what the command does. Its parameters are dataclasses of options, or options of their own.
    """
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function)
    kinds = {name: hints[name] for name in own.parameters if is_dataclass(hints[name])}

    @wraps(function)
    def run(**given: Any) -> None:
        set_verbosity(_taken(Verbosity, given))
        grouped = {name: _taken(kind, given) for name, kind in kinds.items()}
        function(**given, **grouped)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        if name in kinds:
            parameters += _options(kinds[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += _options(Verbosity)
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options(kind: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a dataclass as parameters that typer reads."""
    for name, hint, default in _fields(kind):
        if is_dataclass(hint):
            yield from _options(hint)
            continue
        if (items := _items(hint)) is not None:
            hint, default = Annotated[list[items] | None, *get_args(hint)[1:]], None  # type: ignore[valid-type]
        missing = inspect.Parameter.empty if default is MISSING else default
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=missing, annotation=hint)


def _taken(kind: Any, given: dict[str, Any]) -> Any:
    """Return the dataclass of the options that are given, which are taken out of `given`."""
    values = {}
    for name, hint, _ in _fields(kind):
        if is_dataclass(hint):
            values[name] = _taken(hint, given)
        else:
            value = given.pop(name)
            values[name] = value if _items(hint) is None else tuple(value or ())
    return kind(**values)


def _fields(kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of each option."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield one.name, hints[one.name], one.default


def _items(hint: Any) -> Any:
    """Return the type of the items of an option that may be repeated; None of any other."""
    if get_origin(hint) is not Annotated or get_origin(get_args(hint)[0]) is not tuple:
        return None
    return get_args(get_args(hint)[0])[0]
