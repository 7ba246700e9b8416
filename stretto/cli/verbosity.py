"""How much commands write on stderr beside warnings and errors, by the options that all of them have, and how
they print lines about their work, and texts of users and servers, made safe to print.

Notes and progress belong to the logger `stretto.cli`, and all else to the other loggers of `stretto`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from stretto.model.errors import ConfigError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PACKAGE = logging.getLogger("stretto")
_NOTES = logging.getLogger("stretto.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbosity:
    """The options of all commands that say what is written on stderr."""

    quiet: Annotated[bool, typer.Option("--quiet", help="Write only warnings and errors on stderr.")] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Write the log on stderr, from the level info on.")
    ] = False
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level", help=f"Write the log from this level on: {', '.join(LEVELS)}.", metavar="LEVEL"
        ),
    ] = None
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format", help=f"Form of a line of the log: {', '.join(FORMATS)}.", metavar="FORMAT"
        ),
    ] = None


def shows_notes() -> bool:
    """Return whether notes and progress are shown."""
    return _NOTES.level <= logging.INFO


def set_verbosity(given: Verbosity) -> None:
    """Set what this process writes on stderr. Without a level, `verbose` writes the log from "info" on.

    Raises:
        ConfigError: the options contradict each other, or there is no such level or form.
    """
    if given.quiet and given.verbose:
        raise ConfigError("--quiet and --verbose contradict each other; give one of them")
    if given.log_level is not None and given.log_level.casefold() not in LEVELS:
        raise ConfigError(f"--log-level must be one of {', '.join(LEVELS)}, got {given.log_level!r}")
    if given.log_format is not None and given.log_format not in FORMATS:
        raise ConfigError(f"--log-format must be one of {', '.join(FORMATS)}, got {given.log_format!r}")
    _NOTES.setLevel(logging.WARNING if given.quiet else logging.NOTSET)
    level = given.log_level or ("info" if given.verbose else None)
    if level is not None or given.log_format is not None:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if given.log_format == "json" else logging.Formatter(_FORMAT))
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


if TYPE_CHECKING:
    from rich.console import Console

_CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS}


def say(line: str) -> None:
    """Print a line about the work of a server on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def note(errors: Console, text: str) -> None:
    """Print a note about the work of a command on stderr, in markup of rich, unless it is to be quiet."""
    if shows_notes():
        errors.print(f"[dim]{text}[/]", soft_wrap=True, highlight=False)


def shown(text: str, stream: TextIO | None) -> str:
    """Return a text in the form in which it is printed to `stream`: if that is a terminal, control characters
    are escaped, so that they are shown and not sent to it.
    """
    return text.translate(_ESCAPES) if stream is not None and stream.isatty() else text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
