"""Options that several commands share, and their parsing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.apps import APPS, search_empowered
from stretto.costs.profile import Profile
from stretto.engine import Engine
from stretto.engines.catalogue import engine_and_model
from stretto.errors import ConfigError, UserError
from stretto.frontend.template import Template

MAX_QUESTION_CHARS = 4000

ADVANCED = "advanced"
SEARCH = "search"
"""Name of the app that searches, in the web or in the documents, instead of indexing."""

App = Annotated[
    str, typer.Option("--app", help=f"Name of the app: {', '.join(APPS)} or {SEARCH}.", metavar="NAME")
]
Docs = Annotated[
    list[Path] | None,
    typer.Option(
        "--docs",
        help="Document or folder of documents (PDF, HTML, Markdown, reST, text). Repeatable.",
        metavar="PATH",
    ),
]
Passes = Annotated[
    str,
    typer.Option("--passes", help="Graph passes: all, none, or names joined by commas.", metavar="NAMES"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Setting of a component, as in '--set searching.top_k=8'. Repeatable; "
        "'stretto explain --settings' lists them.",
        metavar="C.S=VALUE",
    ),
]
MaxBytes = Annotated[
    int, typer.Option("--max-bytes", help="Refuse documents larger than this.", metavar="BYTES")
]
Llm = Annotated[
    str | None,
    typer.Option(
        "--llm",
        help="Directory of a checkpoint, or URL of an OpenAI-compatible server. Default: 'mini', the small "
        "model that ships with Stretto. 'stand-in' copies sentences without a model.",
        metavar="DIR|URL",
    ),
]
Api = Annotated[
    str | None,
    typer.Option("--api", help="API of the server: completions (the default) or chat.", metavar="NAME"),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Directory with the server's tokenizer, to send token ids; 'none' sends text. Default: ids are "
        "sent if the server names a directory on this machine.",
        metavar="DIR",
    ),
]
Embedder = Annotated[
    str, typer.Option("--embedder", help="Name or path of an embedding model.", metavar="NAME|PATH")
]
Reranker = Annotated[
    str | None,
    typer.Option(
        "--reranker",
        help="Name or path of a cross-encoder. Default: words are compared.",
        metavar="NAME|PATH",
    ),
]
SearchUrl = Annotated[
    str | None,
    typer.Option(
        "--search",
        envvar="STRETTO_SEARCH_URL",
        help=f"URL of a SearXNG-compatible service for the app {SEARCH}. Default: --docs are searched.",
        metavar="URL",
    ),
]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="STRETTO_DSN",
        help="PostgreSQL server for collections. Default: an embedded server.",
        metavar="DSN",
    ),
]


def template(app: str, *, named_collection: bool = False) -> Template:
    """Find the template of an app by name."""
    if app == SEARCH:
        return search_empowered()
    if app not in APPS:
        raise ConfigError(f"there is no app {app!r}; there are {', '.join((*APPS, SEARCH))}")
    return APPS[app](named_collection=named_collection)


def configuration(settings: Iterable[str] | None) -> dict[str, dict[str, object]]:
    """Parse settings `component.setting=value` to a configuration; a value is JSON, or else text."""
    found: dict[str, dict[str, object]] = {}
    for setting in settings or ():
        path, equals, text = setting.partition("=")
        component, dot, name = path.partition(".")
        if not (equals and dot and component and name):
            raise ConfigError(f"--set {setting!r} is not of the form component.setting=value")
        try:
            value: Any = json.loads(text)
        except ValueError:
            value = text
        except RecursionError as error:
            raise ConfigError(f"--set {path}: the value is nested too deeply") from error
        found.setdefault(component, {})[name] = value
    return found


def checked_question(question: str) -> str:
    """Return the question, or raise UserError if it is empty, too long or not Unicode."""
    question = question.strip()
    if not question:
        raise UserError("the question is empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise UserError(f"the question has {len(question)} characters; at most {MAX_QUESTION_CHARS}")
    if any("\ud800" <= char <= "\udfff" for char in question):
        raise UserError("the question is not Unicode: it has a lone surrogate, or bytes that are not UTF-8")
    return question


def read_questions(path: Path) -> list[str]:
    """Read questions from a JSONL file: strings, or objects with the key `question`."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--questions {path}: {error}") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            questions.append(checked_question(row if isinstance(row, str) else row["question"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"--questions {path}, line {number}: neither a string nor an object with the key 'question'"
            ) from error
        except UserError as error:
            raise UserError(f"--questions {path}, line {number}: {error.message}") from error
    if not questions:
        raise UserError(f"--questions {path}: the file has no questions")
    return questions


def checked_target(option: str, path: Path) -> None:
    """Raise UserError before the work if a file cannot be written."""
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: is not writable")


def write(option: str, path: Path, text: str) -> None:
    """Write the file that `option` names."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}") from error


def cache_dir() -> Path:
    """Folder of measured profiles."""
    return _folder("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """Folder of named collections."""
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, in_home: str) -> Path:
    try:
        return Path(os.environ.get(variable) or Path.home() / in_home) / "stretto"
    except RuntimeError as error:
        raise UserError(f"there is no home folder: set HOME or {variable}") from error


def profiles_file() -> Path:
    """File to which `stretto profile --save` writes the profiles measured on this machine."""
    return cache_dir() / "profiles.json"


def saved_profiles() -> dict[str, Profile]:
    """Read the saved profiles, by engine and model."""
    try:
        path = profiles_file()
    except UserError:  # no home folder, so nothing was saved
        return {}
    try:
        if not path.is_file():
            return {}
        return {name: Profile(**fields) for name, fields in json.loads(path.read_text()).items()}
    except (ConfigError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a file of profiles ({error}); remove it") from error


def measured(engines: Iterable[Engine]) -> list[Engine]:
    """Give engines the profiles that were saved for the same engine and model."""
    saved = saved_profiles()
    return [
        replace(engine, profile=saved.get(engine_and_model(engine), engine.profile)) for engine in engines
    ]
