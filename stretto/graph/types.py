"""Types of the values in a graph, written as text: `text`, `hit`, `list[hit]`, `text|chunk`, `any`.

They are checked when a graph is verified; nothing is checked while it runs.
"""

from __future__ import annotations

from functools import lru_cache

NAMES: frozenset[str] = frozenset(
    {"any", "text", "number", "bool", "document", "chunk", "vector", "hit", "kv", "effect", "record"}
)
MAX_DEPTH = 32
"""Most lists within one another that a type may have."""
_PROMPTABLE = frozenset({"any", "text", "number", "bool", "chunk", "hit"})


def list_of(item: str) -> str:
    """Return the name of the type of a list whose items have the type `item`."""
    return f"list[{item}]"


@lru_cache(maxsize=1024)
def item_type(type_: str) -> str | None:
    """Return the name of the type of a list's items; None when `type_` is not a list."""
    if type_ == "any":
        return "any"
    if type_.startswith("list[") and type_.endswith("]") and len(_options(type_)) == 1:
        return type_[5:-1]
    return None


def innermost_type(type_: str) -> str:
    """Return the type of the items within all lists; `type_` itself when it is not a list."""
    item = item_type(type_)
    return type_ if item is None or item == type_ else innermost_type(item)


@lru_cache(maxsize=1024)
def _options(type_: str) -> tuple[str, ...]:
    """Return the alternatives of a union; bars within brackets belong to the type of a list's items."""
    options, depth = [""], 0
    for char in type_:
        depth += (char == "[") - (char == "]")
        if char == "|" and depth == 0:
            options.append("")
        else:
            options[-1] += char
    return tuple(options)


@lru_cache(maxsize=4096)
def accepts(wanted: str, given: str) -> bool:
    """Return whether an input of type `wanted` takes a value of type `given`."""
    if wanted == "any" or given in ("any", wanted):
        return True
    given_options = _options(given)
    if len(given_options) > 1:
        return all(accepts(wanted, option) for option in given_options)
    options = _options(wanted)
    if len(options) > 1:
        return any(accepts(option, given) for option in options)
    wanted_item, given_item = item_type(wanted), item_type(given)
    return wanted_item is not None and given_item is not None and accepts(wanted_item, given_item)


@lru_cache(maxsize=1024)
def is_type(type_: str, names: frozenset[str] = NAMES) -> bool:
    """Return whether a text is a valid type of values, made of the type names in `names` and not nested too
    deeply.
    """
    if type_.count("[") > MAX_DEPTH:
        return False
    item = item_type(type_)
    if type_ != "any" and item is not None:
        return is_type(item, names)
    options = _options(type_)
    return type_ in names or (len(options) > 1 and all(is_type(option, names) for option in options))


@lru_cache(maxsize=1024)
def is_promptable(type_: str) -> bool:
    """Return whether a value of this type can be written into a prompt as text (a vector cannot)."""
    item = item_type(type_)
    return type_ in _PROMPTABLE or (item is not None and is_promptable(item))
