"""Types of values, as text: `text`, `hit`, `list[hit]`, `text|chunk`, `any`.

They are checked when a graph is verified; nothing is checked while it runs.
"""

from __future__ import annotations

from functools import lru_cache

NAMES = frozenset({"any", "text", "number", "bool", "document", "chunk", "vector", "hit", "kv", "effect"})
_PROMPTABLE = frozenset({"any", "text", "number", "bool", "chunk", "hit"})


def list_of(item: str) -> str:
    """The type of a list of `item`."""
    return f"list[{item}]"


@lru_cache(maxsize=1024)
def item_type(type_: str) -> str | None:
    """The type of a list's items; None when `type_` is no list."""
    if type_ == "any":
        return "any"
    if type_.startswith("list[") and type_.endswith("]"):
        return type_[5:-1]
    return None


@lru_cache(maxsize=4096)
def accepts(wanted: str, given: str) -> bool:
    """Whether a port of type `wanted` takes a value of type `given`."""
    if wanted == "any" or given in ("any", wanted):
        return True
    if "|" in wanted and not wanted.startswith("list["):
        return any(accepts(option, given) for option in wanted.split("|"))
    wanted_item, given_item = item_type(wanted), item_type(given)
    return wanted_item is not None and given_item is not None and accepts(wanted_item, given_item)


@lru_cache(maxsize=1024)
def is_type(type_: str) -> bool:
    """Whether `type_` is well formed."""
    item = item_type(type_)
    if type_ != "any" and item is not None:
        return is_type(item)
    return all(option in NAMES for option in type_.split("|"))


@lru_cache(maxsize=1024)
def is_promptable(type_: str) -> bool:
    """Whether a value of this type has a textual form for a prompt."""
    item = item_type(type_)
    return type_ in _PROMPTABLE or (item is not None and is_promptable(item))
