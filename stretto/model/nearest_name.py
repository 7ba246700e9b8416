"""Names as users type them: found in any case, or refused with those that are most like them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from stretto.model.errors import ConfigError


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
    near = _near(name, names, 0.3)
    nearest = " or ".join(map(repr, near))
    hint = f"the nearest is {nearest}" if near else "there is none like it"
    raise ConfigError(f"{refusal} {name!r}: {hint}; there are {', '.join(sorted(names.values()))}")


def check_name(
    kind: str, name: str, known: Collection[str], gone: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check that a name is known.

    Args:
        kind: what it is a name of, such as "policy".
        gone: names that were known in a release before, and the nearest one that is kept.

    Raises:
        ConfigError: it is not known.
    """
    if name in known:
        return
    there_are = f"there are {', '.join(known) or 'none'}"
    if name in gone:
        raise ConfigError(f"the {kind} {name!r} is gone; the nearest is {gone[name]!r}; {there_are}")
    raise ConfigError(f"there is no {kind} {name!r}{did_you_mean(name, known)}; {there_are}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name, "; did you mean …?"; "" if none is much like it."""
    near = _near(name, {one.casefold(): one for one in known}, 0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _near(name: str, names: Mapping[str, str], cutoff: float) -> list[str]:
    """Return up to two names that are most like `name`; `names` has them by their form in lower case."""
    near = [one for one in names if name and one.startswith(name.casefold())]
    near = near or get_close_matches(name.casefold(), names, n=2, cutoff=cutoff)
    return [names[one] for one in near[:2]]
