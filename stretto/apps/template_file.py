"""Apps in files of their users, which commands take as FILE.py:NAME."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stretto.apps.template import Template
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.foreign import described


def template_in_file(where: str) -> Template:
    """Return the app that `where` names as FILE.py:NAME.

    NAME is a `Template` in the file, or a function without arguments that returns one. The file's code runs.

    Raises:
        ConfigError: there is no such file or name, or the file raises.
    """
    file, _, name = where.rpartition(":")
    path = Path(file)
    given = getattr(_module(where, path), name, None)
    if given is not None and callable(given) and not isinstance(given, type):
        try:
            given = given()
        except StrettoError:
            raise
        except (Exception, SystemExit) as error:  # the function is a user's
            raise ConfigError(f"--app {where}: {name}() raised {described(error)}") from error
    if not isinstance(given, Template):
        raise ConfigError(
            f"--app {where}: {name} must be a Template or a function without arguments that returns one"
        )
    return given


def _module(where: str, path: Path) -> ModuleType:
    """Run a file of a user as a module; it may import what is in its own folder."""
    if not path.is_file():
        raise ConfigError(f"--app {where}: there is no file {path}")
    module_name = f"stretto_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--app {where}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except StrettoError:
        raise
    except (Exception, SystemExit) as error:  # the file is a user's
        raise ConfigError(f"--app {where}: {path} raised {described(error)}") from error
    return module
