"""The extras of the installed package, which bring what optional features need.

A feature imports its packages where it is used, within `imports_of`. A command that is about to use several
features asks for their packages first, with `check_installed`. Public names of a package that need much are
imported when they are first used (`lazy_names`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from stretto.model.errors import ConfigError


@contextmanager
def imports_of(extra: str, feature: str) -> Iterator[None]:
    """Context manager around the imports of an optional feature.

    Args:
        extra: name of the extra that brings what the feature imports, such as "route".
        feature: what needs the imports, as the subject of a sentence, such as "the router".

    Raises:
        ConfigError: a package is not installed. The message says which one, and how to install it.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "stretto").partition(".")[0]
        if package == "stretto":  # our own mistake, which no extra mends
            raise
        raise _missing(extra, feature, package) from error


def check_installed(extra: str, feature: str, *packages: str) -> None:
    """Check that packages of an extra are installed, without importing them.

    Args:
        extra: name of the extra.
        feature: what needs the packages, as the subject of a sentence.
        packages: names that are imported, such as "torch".

    Raises:
        ConfigError: a package is not installed. The message says which one, and how to install it.
    """
    for package in packages:
        if not is_installed(package):
            raise _missing(extra, feature, package)


def is_installed(*packages: str) -> bool:
    """Return whether packages are installed, without importing them."""
    return all(find_spec(package) is not None for package in packages)


def _missing(extra: str, feature: str, package: str) -> ConfigError:
    return ConfigError(f"{feature} needs the package {package}: pip install 'stretto[{extra}]'")


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
