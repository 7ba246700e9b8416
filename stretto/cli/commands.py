"""The command line with all its commands, each of which is imported when it is asked for.

The module of a command has its options and its help. It imports what does the work inside its functions, so
that help and errors of arguments come before any engine is imported.

A command is a function that takes its options as a dataclass. The fields are the options:
`field: Annotated[str, typer.Option(...)] = "default"`. A field that is a tuple is an option that may be
repeated, and a field with a dataclass as its type stands for the options of that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from stretto import __version__
from stretto.cli.verbosity import Verbosity, set_verbosity

_FUNCTIONS = {
    "ask": ("stretto.cli.ask.command", "ask"),
    "explain": ("stretto.cli.explain", "explain"),
    "profile": ("stretto.cli.profile", "profile"),
    "models": ("stretto.cli.models", "models"),
    "collections": ("stretto.cli.collections", "collections"),
    "bench": ("stretto.cli.bench", "bench"),
    "emulate": ("stretto.cli.emulate", "emulate"),
    "replay": ("stretto.cli.replay", "replay_run"),
    "check-prompts": ("stretto.cli.check_prompts", "check_prompts"),
    "load": ("stretto.cli.load", "load"),
    "workload": ("stretto.cli.workload", "workload"),
    "route": ("stretto.cli.route", "route"),
    "serve": ("stretto.cli.serve", "serve"),
    "usage": ("stretto.cli.usage", "usage"),
    "keys": ("stretto.cli.keys", "keys"),
    "size": ("stretto.cli.size", "size"),
    "plan": ("stretto.cli.plan", "plan"),
    "run-plan": ("stretto.cli.run_plan", "run_plan"),
}
"""Module and function of each command, in the order of the help."""
_EPILOGS = {
    "ask": """Examples:

stretto ask "When did the guild move in?" --docs books/ --llm checkpoints/small

stretto ask --questions questions.jsonl --docs books/ --collection books --json"""
}


class _Command(TyperCommand):
    """A command whose help shows no value beside options that take none."""

    def get_params(self, ctx: Any) -> Any:
        return _without_values(super().get_params(ctx))


class _Commands(TyperGroup):
    """The group of all commands. A command is imported and built when it is looked up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast(Any, dict.fromkeys(_FUNCTIONS))  # names, for help and for suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name; None if there is none."""
        if cmd_name not in _FUNCTIONS:
            return None
        module, function = _FUNCTIONS[cmd_name]
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        command = as_command(getattr(import_module(module), function))
        alone.command(cmd_name, cls=_Command, epilog=_EPILOGS.get(cmd_name))(command)
        return get_command(alone)

    def get_params(self, ctx: Any) -> Any:
        return _without_values(super().get_params(ctx))


def _without_values(parameters: list[Any]) -> list[Any]:
    """Return parameters, of which those that are switches show no value in the help."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


app = typer.Typer(
    name="stretto",
    cls=_Commands,
    help="Runs LLM applications: questions over documents, programs, and agents.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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


def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Handle what stands before a command: print the version if asked to, or the help if there is no command.
    Options of `Verbosity` count as if they stood behind it.
    """
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")
    else:
        names = [one.name for one in fields(Verbosity)]
        given = {name: value for name in names if (value := context.params[name])}
        context.default_map = {context.invoked_subcommand: given}


app.callback()(as_command(options))
