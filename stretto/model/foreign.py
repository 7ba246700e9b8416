"""The fence around what is not ours: the code of users' tools, engines and parts of a vocabulary, and values
that come from it.

Whatever such code raises becomes a typed error that names the step, and ends one query. Values are checked
once, where they enter, so that functions which walk through them come to an end.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from stretto.model.errors import BadReply, EngineFailure, InternalError, StrettoError

MAX_DEPTH = 400
"""Largest number of lists within one another. Functions that read values take up to two of Python's 1,000
frames for each."""
_MAX_REPEATED = 1_000_000
"""Largest number of lists that a value may have more than once in it, as a text of it would have them."""
NESTING = (list, tuple, dict)
"""Types of values that hold others, and so are checked. A value of another type needs no check."""
_CONTAINERS = frozenset(NESTING)
_ROWS = frozenset((list, tuple))


def raised() -> tuple[type[BaseException], ...]:
    """Return what a fence catches, as in `except raised()`: the exception that is being handled, of whatever
    type. Only an interrupt of the program, which the main thread alone gets, passes.

    Some libraries raise exceptions that are no `Exception`, as a panic in Rust code is.
    """
    is_interrupt = isinstance(sys.exc_info()[1], KeyboardInterrupt)
    return () if is_interrupt and current_thread() is main_thread() else (BaseException,)


def described(error: BaseException) -> str:
    """Return the type and the message of an exception, also of one that cannot print its message."""
    try:
        return f"{type(error).__name__}: {error}"
    except raised():
        return type(error).__name__


def typed(error: BaseException, step: str | None = None) -> StrettoError:
    """Return an exception as a `StrettoError` that names `step`, with the original as its cause. An exception
    that is a `StrettoError` keeps its type, and the step that it names already.
    """
    if isinstance(error, StrettoError):
        return error if step is None else error.at(step)
    failure = EngineFailure(described(error), step=step)
    failure.__cause__ = error
    return failure


def bug_of(error: BaseException) -> InternalError:
    """Return an `InternalError` for an exception that nothing expected, which is its cause.

    Its message ends with the file and the line that raised, for they may be a user's.
    """
    bug = InternalError(described(error) + _place(error))
    bug.__cause__ = error
    return bug


def _place(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})"


def check_nesting(value: object) -> None:
    """Check that a value can be walked through: lists, tuples and dicts within one another have an end.

    Raises:
        BadReply: it holds itself, is nested more than `MAX_DEPTH` deep, or repeats its parts so often that
            its text would fill the memory.
        Exception: it is a list of a user's own type that cannot be read.
    """
    if type(value) not in _CONTAINERS:
        if not isinstance(value, list):
            return
        value = list(value)
    if not _is_flat(value):
        _check_levels(value)


def are_flat(values: Sequence[object]) -> bool:
    """Return whether `check_nesting` certainly accepts each value: none holds lists, tuples or dicts that
    hold others. That looks at many values in a fraction of the time.
    """
    types = set(map(type, values))
    if types <= _ROWS:
        return _CONTAINERS.isdisjoint(map(type, chain.from_iterable(values)))  # type: ignore[arg-type]
    return not any(issubclass(one, NESTING) for one in types)


def _is_flat(container: Any) -> bool:
    """Return whether a list, tuple or dict holds no other."""
    items = container.values() if isinstance(container, dict) else container
    return _CONTAINERS.isdisjoint(map(type, items))


def _check_levels(value: object) -> None:
    level: dict[int, Any] = {id(value): value}
    times = Counter(level.keys())
    num_repeated = 0
    for _ in range(MAX_DEPTH):
        below: dict[int, Any] = {}
        times_below = Counter[int]()
        for key, container in level.items():
            items = container.values() if isinstance(container, dict) else container
            if _CONTAINERS.isdisjoint(map(type, items)):
                continue
            for item in items:
                if type(item) in _CONTAINERS:
                    below[id(item)] = item
                    times_below[id(item)] += times[key]
        if not below:
            return
        num_repeated += times_below.total() - len(below)
        if num_repeated > _MAX_REPEATED:
            raise BadReply(f"the value repeats its parts more than {_MAX_REPEATED:,} times")
        level, times = below, times_below
    raise BadReply(f"the value is nested more than {MAX_DEPTH} deep, or holds itself")
