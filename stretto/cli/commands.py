"""The command line with all its commands."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from stretto.cli.ask.command import ask
from stretto.cli.bench import bench
from stretto.cli.collections import collections
from stretto.cli.emulate import emulate
from stretto.cli.explain import explain
from stretto.cli.load import load
from stretto.cli.plan import plan
from stretto.cli.profile import profile
from stretto.cli.replay import replay_run
from stretto.cli.route import route
from stretto.cli.run_plan import run_plan
from stretto.cli.serve import serve
from stretto.cli.workload import workload

app = typer.Typer(
    name="stretto",
    help="Runs LLM applications end to end as fast as the hardware allows.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_ASK_EXAMPLES = """Examples:

stretto ask "When did the guild move in?" --docs books/ --llm checkpoints/small

stretto ask --questions questions.jsonl --docs books/ --collection books --json"""
app.command(epilog=_ASK_EXAMPLES)(ask)
app.command()(explain)
app.command()(profile)
app.command()(collections)
app.command()(bench)
app.command()(emulate)
app.command(name="replay")(replay_run)
app.command()(load)
app.command()(workload)
app.command()(route)
app.command()(serve)
app.command()(plan)
app.command(name="run-plan")(run_plan)


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Handle a call of `stretto` without a command: print the version if asked to, or else the help."""
    if version:
        print(metadata.version("stretto"))
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")
