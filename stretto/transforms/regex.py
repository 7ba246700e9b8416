"""The transform regex, by RE2, whose time grows with the text and not with what the pattern tries."""

from __future__ import annotations

from collections.abc import Callable

from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.transforms.refusals import text_of, unreadable

_MAX_PATTERN_CHARS = 1000
_MAX_MEMORY = 8 << 20


def regex(pattern: object) -> Callable[[object], object]:
    """Return the transform `regex "a(b)c"`: what the pattern finds first in a text, or what its group finds;
    with several groups a list.

    Raises:
        ConfigError: the pattern is no regular expression of RE2, or its package is not installed.
    """
    with imports_of("transforms", "the transform regex"):
        import re2
    if not isinstance(pattern, str) or not pattern or len(pattern) > _MAX_PATTERN_CHARS:
        raise ConfigError(f"regex needs a pattern of up to {_MAX_PATTERN_CHARS} characters: {pattern!r:.80}")
    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_MEMORY, False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise ConfigError(f"regex: {pattern!r:.80} is no regular expression of RE2: {error}") from error

    def find(value: object) -> object:
        text = text_of(value)
        found = compiled.search(text)
        if found is None:
            raise unreadable(f"match of {pattern!r:.80}", text)
        groups = [group or "" for group in found.groups()]
        return groups if len(groups) > 1 else (groups or [found.group(0)])[0]

    return find
