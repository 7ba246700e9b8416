"""The command line with all its commands, each of which is imported when it is asked for.

The module of a command has its options and its help. It imports what does the work inside its functions, so
that help and errors of arguments come before any engine is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from stretto import __version__
from stretto.cli.verbosity import with_verbosity

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
        command = with_verbosity(getattr(import_module(module), function))
        alone.command(cmd_name, epilog=_EPILOGS.get(cmd_name))(command)
        return get_command(alone)


app = typer.Typer(
    name="stretto",
    cls=_Commands,
    help="Runs LLM applications: questions over documents, programs, and agents.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Handle a call of `stretto` without a command: print the version if asked to, or else the help."""
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")
