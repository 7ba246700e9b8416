"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return the function `__getattr__` of a package. It imports a name from its module, and keeps it.

    Args:
        modules: the names by the module that defines them, below the package.
    """
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def find(name: str) -> object:
        """Import a public name. Raises AttributeError for any other name."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
