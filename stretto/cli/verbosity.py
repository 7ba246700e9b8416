"""How much commands write on stderr beside warnings and errors: the options that all of them have.

Notes and progress belong to the logger `stretto.cli`, and all else to the other loggers of `stretto`.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, get_type_hints

import typer

from stretto.model.errors import ConfigError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OPTIONS: tuple[tuple[str, object, object], ...] = (
    (
        "quiet",
        Annotated[bool, typer.Option("--quiet", help="Write only warnings and errors on stderr.")],
        False,
    ),
    (
        "verbose",
        Annotated[bool, typer.Option("--verbose", help="Write the log on stderr, from the level info on.")],
        False,
    ),
    (
        "log_level",
        Annotated[
            str | None,
            typer.Option(
                "--log-level", help=f"Write the log from this level on: {', '.join(LEVELS)}.", metavar="LEVEL"
            ),
        ],
        None,
    ),
    (
        "log_format",
        Annotated[
            str | None,
            typer.Option(
                "--log-format", help=f"Form of a line of the log: {', '.join(FORMATS)}.", metavar="FORMAT"
            ),
        ],
        None,
    ),
)
"""Names, annotations and defaults of the options."""
_PACKAGE = logging.getLogger("stretto")
_NOTES = logging.getLogger("stretto.cli")


def shows_notes() -> bool:
    """Return whether notes and progress are shown."""
    return _NOTES.level <= logging.INFO


def set_verbosity(
    *, quiet: bool, verbose: bool, log_level: str | None, log_format: str | None = None
) -> None:
    """Set what this process writes on stderr.

    Args:
        quiet: whether to write warnings and errors only.
        verbose: whether to write what the log has at the level "info".
        log_level: level from which on to write the log; None leaves that to `verbose`.
        log_format: form of a line of the log.

    Raises:
        ConfigError: the options contradict each other, or there is no such level or form.
    """
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose contradict each other; give one of them")
    if log_level is not None and log_level.casefold() not in LEVELS:
        raise ConfigError(f"--log-level must be one of {', '.join(LEVELS)}, got {log_level!r}")
    if log_format is not None and log_format not in FORMATS:
        raise ConfigError(f"--log-format must be one of {', '.join(FORMATS)}, got {log_format!r}")
    _NOTES.setLevel(logging.WARNING if quiet else logging.NOTSET)
    level = log_level or ("info" if verbose else None)
    if level is not None or log_format is not None:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter(_FORMAT))
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
    if level is not None:
        _PACKAGE.setLevel(level.upper())


class JsonLines(logging.Formatter):
    """A formatter that writes each record as one line of JSON, with the fields of a request if it has any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if (request := getattr(record, "request", None)) is not None:
            fields["request"] = request
        else:
            fields["message"] = record.getMessage()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def with_verbosity(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has these options too, sets what they say, and does the same."""

    @wraps(function)
    def run(
        *, quiet: bool, verbose: bool, log_level: str | None, log_format: str | None, **given: object
    ) -> None:
        set_verbosity(quiet=quiet, verbose=verbose, log_level=log_level, log_format=log_format)
        function(**given)

    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function)
    parameters = [one.replace(annotation=hints[one.name]) for one in own.parameters.values()]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in _OPTIONS
    ]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, **{name: annotation for name, annotation, _ in _OPTIONS}}
    return run
