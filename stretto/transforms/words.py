"""Transforms of short texts: strip, enum, boolean, number and datetime."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

from stretto.model.errors import ConfigError
from stretto.transforms.refusals import text_of, unreadable

_TRUE = frozenset({"yes", "true", "y", "1"})
_FALSE = frozenset({"no", "false", "n", "0"})
_MARKS = " \t\r\n\"'*`.,;:!()[]"
_MAX_CHARS = 200
_ANY_TIME = datetime(2000, 2, 3, 14, 5, 6, tzinfo=UTC)


def strip(_: object) -> Callable[[object], object]:
    """Return the transform `strip`: drop white space around a text."""
    return lambda value: text_of(value).strip()


def enum(choices: object) -> Callable[[object], object]:
    """Return the transform `enum ["a","b"]`: the one of the choices that a text is, whatever the case and the
    marks around it.

    Raises:
        ConfigError: the choices are no list of different texts.
    """
    if not isinstance(choices, list) or not all(isinstance(one, str) and one.strip() for one in choices):
        raise ConfigError(f"enum needs a list of texts, got {choices!r:.80}")
    known = {one.strip(_MARKS).casefold(): one for one in choices}
    if len(known) < len(choices) or not choices:
        raise ConfigError(f"enum needs choices that differ, got {choices!r:.80}")

    def choose(value: object) -> object:
        text = text_of(value)
        found = known.get(text.strip(_MARKS).casefold())
        if found is None:
            raise unreadable(f"choice among {', '.join(known)}", text)
        return found

    return choose


def boolean(_: object) -> Callable[[object], object]:
    """Return the transform `boolean`: yes, true, y, 1 or no, false, n, 0 as the first word."""

    def decide(value: object) -> object:
        text = text_of(value)
        words = text[:_MAX_CHARS].split(maxsplit=1)
        word = words[0].strip(_MARKS).casefold() if words else ""
        if word not in _TRUE and word not in _FALSE:
            raise unreadable("yes or no", text)
        return word in _TRUE

    return decide


def number(_: object) -> Callable[[object], object]:
    """Return the transform `number`: an integer, or else a finite decimal number."""

    def read(value: object) -> object:
        text = text_of(value).strip()
        if len(text) <= _MAX_CHARS:
            try:
                return int(text)
            except ValueError:
                pass
            try:
                if math.isfinite(found := float(text)):
                    return found
            except ValueError:
                pass
        raise unreadable("number", text)

    return read


def date_and_time(form: object) -> Callable[[object], object]:
    """Return the transform `datetime`: a time of the ISO form, or `datetime "%d.%m.%Y"` of another, as a text
    of the ISO form.

    Raises:
        ConfigError: the form is no text, or cannot be read: a directive is unknown, or stands there twice.
    """
    if form is not None and not (isinstance(form, str) and _can_read_times(form)):
        raise ConfigError(f"datetime needs a form such as '%Y-%m-%d', got {form!r:.80}")

    def read(value: object) -> object:
        text = text_of(value).strip(_MARKS)
        try:
            if len(text) <= _MAX_CHARS:
                found = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
                return found.isoformat()
        except ValueError:
            pass
        raise unreadable("date and time" + (f" of the form {form}" if form else ""), text)

    return read


def _can_read_times(form: str) -> bool:
    """Return whether times that are written in a form can be read in it."""
    try:
        datetime.strptime(_ANY_TIME.strftime(form), form)
    except (ValueError, re.error):
        return False
    return True
