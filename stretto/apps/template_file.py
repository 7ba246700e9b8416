"""Apps in files of their users, which commands take as FILE.py:NAME."""

from __future__ import annotations

from stretto.apps.template import Template
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.foreign import described
from stretto.model.user_files import named_in_file


def template_in_file(where: str) -> Template:
    """Return the app that `where` names as FILE.py:NAME.

    NAME is a `Template` in the file, or a function without arguments that returns one. The file runs once.

    Raises:
        ConfigError: there is no such file or name, or the file raises.
    """
    return template_of(named_in_file(where, f"--app {where}"), where)


def template_of(given: object, where: str) -> Template:
    """Return the app that an object of a file is. Raises ConfigError if it is none."""
    name = where.rpartition(":")[2]
    if callable(given) and not isinstance(given, type):
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
