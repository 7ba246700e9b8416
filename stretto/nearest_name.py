"""Names as users type them: found in any case, or refused with those that are most like them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stretto.errors import ConfigError


def nearest_name(name: str, known: Iterable[str], refusal: str) -> str:
    """Return the known name that equals `name` in any case.

    Args:
        refusal: first words of the error, such as "there is no planner".

    Raises:
        ConfigError: there is none; the message has those that are most like it, and all.
    """
    names = {one.casefold(): one for one in known}
    if name.casefold() in names:
        return names[name.casefold()]
    near = [one for one in names if one.startswith(name.casefold())]
    near = (near or get_close_matches(name.casefold(), names, n=2, cutoff=0.3))[:2]
    nearest = " or ".join(repr(names[one]) for one in near)
    hint = f"the nearest is {nearest}" if near else "there is none like it"
    raise ConfigError(f"{refusal} {name!r}: {hint}; there are {', '.join(sorted(names.values()))}")
