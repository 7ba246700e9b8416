"""Import paths and names of the release before, which work for one more release with a DeprecationWarning.

These are the modules, and the classes and functions on which code outside could be built. What has no
forwarding: constants and type variables, names inside of `cli`, `service`, `transforms` and the router's
driver, which answer to commands and bodies alone, and what is gone.

`stretto/__init__.py` installs two finders: one behind Python's own, which is asked only for modules that do
not exist, and one before it for the few modules in which a name has changed.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

from stretto.moved_names import MOVED, RENAMED

_PACKAGE = "stretto."


def new_path(old: str) -> str | None:
    """Return the new path of a module that was moved, by itself or with its folder; None for any other."""
    if not old.startswith(_PACKAGE):
        return None
    whole = old.removeprefix(_PACKAGE)
    if whole in MOVED:
        return _PACKAGE + MOVED[whole]
    folder, _, rest = whole.partition(".")
    for known in (folder, ".".join(whole.split(".")[:2])):
        if known in MOVED and rest:
            return _PACKAGE + MOVED[known] + whole.removeprefix(known)
    return None


def find_name(module: str, name: str) -> object:
    """Return what a module has under its new path by a name that it had under its old one.

    Raises:
        AttributeError: it has nothing by that name.
    """
    elsewhere, _, known = RENAMED.get(module, {}).get(name, name).rpartition(":")
    return getattr(importlib.import_module(elsewhere or module), known)


class OldNames(MetaPathFinder):
    """Finds the modules in `RENAMED` as Python does, and lets them answer to their old names too."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module with changed names; None for any other."""
        if fullname not in RENAMED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                module.__dict__["__getattr__"] = partial(_renamed, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _renamed(module: ModuleType, name: str) -> object:
    """Return what a module has by an old name, and warn. Raises AttributeError for any other name."""
    new = RENAMED[module.__name__].get(name)
    if new is None:
        problem = f"module {module.__name__!r} has no attribute {name!r}"
        raise AttributeError(problem, name=name, obj=module)
    message = f"{module.__name__}.{name} is {new} now; the old name works for one more release"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return find_name(module.__name__, name)


class OldPaths(MetaPathFinder, Loader):
    """Finds modules under their old paths. Each is an empty module that looks up its names in the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that was moved; None for any other."""
        if (new := new_path(fullname)) is None or not _exists(new):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Let names of the module be looked up in the new one, and warn of the old path."""
        new = new_path(module.__name__)
        assert new is not None
        importlib.import_module(new)
        message = f"{module.__name__} is {new} now; the old path works for one more release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        module.__dict__["__getattr__"] = partial(find_name, new)


def _exists(module: str) -> bool:
    """Return whether there is a module of this path. Imports the packages that it is in."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name == module:  # what would be its package is a module
            return False
        raise


def install() -> None:
    """Let old paths and names be found, unless they are already."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
        sys.meta_path.append(OldPaths())
