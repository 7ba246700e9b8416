"""Python files of users, in which commands and settings name something as FILE.py:NAME."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from stretto.model.errors import ConfigError, StrettoError
from stretto.model.foreign import described, raised
from stretto.model.nearest_name import did_you_mean


def is_in_file(name: str) -> bool:
    """Return whether a name stands for something in a file."""
    return isinstance(name, str) and ".py:" in name


def maker_in_file(where: str, kind: str) -> Callable[..., Any]:
    """Return the class or function that `where` names as FILE.py:NAME, of the file as it is now.

    Args:
        kind: what it makes, for errors.

    Raises:
        ConfigError: there is no such file or name, the file raises, or what it names cannot be called.
    """
    asked = f"{kind} {where}"
    found: Callable[..., Any] = named_in_file(where, asked)
    if not callable(found):
        name = where.rpartition(":")[2]
        raise ConfigError(f"{asked}: {name} must be a class, or a function, that makes the {kind}")
    return found


def named_in_file(where: str, asked: str) -> Any:
    """Return what `where` names as FILE.py:NAME, of the file as it is now.

    Args:
        asked: what names it, for errors.

    Raises:
        ConfigError: there is no such file or name, or the file raises.
    """
    file, _, name = where.rpartition(":")
    module = run_file(Path(file), asked)
    if not name:
        raise ConfigError(f"{asked}: nothing of the file is named; write {file}:NAME")
    if not hasattr(module, name):
        known = (one for one in vars(module) if not one.startswith("__"))
        raise ConfigError(f"{asked}: there is no {name} in {file}{did_you_mean(name, known)}")
    return getattr(module, name)


def run_file(path: Path, asked: str) -> ModuleType:
    """Return a file of a user as a module; it may import what is in its own folder.

    The code runs once in a process, whatever names the file. One that has raised runs again, and so does one
    that has changed since, as a module of its own: what was made before goes on with its classes.

    Args:
        asked: what names the file, for errors.

    Raises:
        ConfigError: there is no such file, it is no Python file that can be read, or it raises.
    """
    if not path.is_file():
        fault = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        raise ConfigError(f"{asked}: {fault}")
    resolved = path.resolve()
    try:
        module_name = _module_name(resolved)
    except OSError as error:
        raise ConfigError(f"{asked}: {path} cannot be read: {error.strerror}") from error
    if (ran := sys.modules.get(module_name)) is not None:
        return ran
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{asked}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(resolved.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if isinstance(error, StrettoError) or not isinstance(error, raised()):  # the file is a user's
            raise
        raise ConfigError(f"{asked}: {path} raised {described(error)}") from error
    return module


def _module_name(path: Path) -> str:
    """Return a name that other files, and other contents, do not have; it is the same in all processes."""
    stem = re.sub(r"\W", "_", path.stem)
    digest = sha256(os.fsencode(path) + b"\0" + path.read_bytes())
    return f"stretto_app_{stem}_{digest.hexdigest()[:16]}"
