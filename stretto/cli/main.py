"""`stretto`: the command line. One file for each command; errors end here.

Exit codes: 0 done, 1 an engine failed or a query ended early, 2 you asked for something that cannot be,
130 interrupted.
"""

from __future__ import annotations

import io
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from stretto.cli.ask import ask
from stretto.cli.bench import bench
from stretto.cli.collections import collections
from stretto.cli.explain import explain
from stretto.cli.profile import profile
from stretto.errors import StrettoError, UserError

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


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options without a command."""
    if version:
        print(metadata.version("stretto"))
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")


def main() -> NoReturn:
    """Entry point of the `stretto` command."""
    errors = Console(stderr=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no Unicode
    try:
        app(standalone_mode=True)
    except StrettoError as error:
        message = " ".join(str(error).split())
        errors.print(f"[bold red]{type(error).__name__}[/]: {escape(message)}", soft_wrap=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
