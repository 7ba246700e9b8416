"""Parsers of the values of options, with checks."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.names import PLANNERS, SEARCH
from stretto.model.errors import ConfigError, DocumentError, UserError
from stretto.model.nearest_name import check_name, did_you_mean, nearest_name
from stretto.model.values import is_text
from stretto.model.wording import why_unreadable

if TYPE_CHECKING:
    from stretto.apps.template import Template

MAX_QUESTION_CHARS = 4000
_GONE_PLANNERS = {"exact": "stretto"}


def template(app: str, *, named_collection: bool = False, small_llm: bool = False) -> Template:
    """Return the ready-made app of this name, or the one in a file if `app` is FILE.py:NAME, as a template
    that can be run. Raises ConfigError if there is none.

    Of a ready-made app, with `named_collection`, queries bring the name of the collection that documents are
    stored in. With `small_llm`, it has the settings for an LLM of less than a billion parameters. What a file
    prints goes to stderr.
    """
    from stretto.apps import APPS, search_empowered
    from stretto.apps.template_file import template_in_file

    if ":" in app:
        with redirect_stdout(sys.stderr):  # answers go to stdout
            return template_in_file(app)
    if app == SEARCH:
        return search_empowered(small_llm=small_llm)
    if app not in APPS:
        known = (*APPS, SEARCH)
        there_are = f"there are {', '.join(known)}, and FILE.py:NAME for your own"
        raise ConfigError(f"there is no app {app!r}{did_you_mean(app, known)}; {there_are}")
    return APPS[app](named_collection=named_collection, small_llm=small_llm)


def planner(name: str) -> str:
    """Return the name of a planner as it is spelt in the table of planners. Raises ConfigError if there is
    none.
    """
    if name in _GONE_PLANNERS:
        check_name("planner", name, PLANNERS, _GONE_PLANNERS)
    return nearest_name(name, PLANNERS, "there is no planner")


def configuration(settings: Iterable[str] | None) -> dict[str, dict[str, object]]:
    """Parse the values of the option `--set`, texts of the form `component.setting=value`, to settings of the
    app's components.

    A value is JSON, or else text. Returns the settings by component. Raises ConfigError for other forms.
    """
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
    """Return a question without white space around it, after checking it.

    Raises:
        UserError: the question is empty, too long, or not Unicode.
    """
    question = question.strip()
    if not question:
        raise UserError("the question is empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise UserError(f"the question has {len(question)} characters; at most {MAX_QUESTION_CHARS}")
    if not is_text(question):
        raise UserError("the question is not Unicode: it has a lone surrogate, or bytes that are not UTF-8")
    return question


def read_questions(path: Path) -> list[str]:
    """Read the questions in a JSONL file: a line is a string, or an object with the key `question`."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--questions {path}: {why_unreadable(error)}") from error
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


def check_paths(paths: Sequence[Path]) -> None:
    """Check that documents and folders of documents are there, before anything is loaded to read them.

    Raises:
        DocumentError: a path is missing.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise DocumentError(f"{path}: {os.strerror(errno.ENOENT)}")


def checked_target(option: str, path: Path) -> None:
    """Check, before any work is done, that the output file that an option names can be written. Raises
    UserError if not.
    """
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: may not be written")


def write(option: str, path: Path, text: str) -> None:
    """Write a text to the output file that an option names. Raises UserError if that fails."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror}") from error
