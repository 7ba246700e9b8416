"""A deployed app: where it comes from, and what it says of its inputs, settings and outputs."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stretto.apps import APPS, search_empowered
from stretto.apps.template import Template
from stretto.graph.types import item_type
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError, StrettoError
from stretto.model.foreign import described
from stretto.service.apps.answers import check_outputs
from stretto.service.apps.inputs import check_servable, input_schema
from stretto.service.apps.settings import described_settings

READY_MADE = {**APPS, "search": search_empowered}
"""Table of the apps that need no file, by the name under which they are deployed."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class DeployedApp:
    """An app that requests can run, under the name that they call it by.

    Attributes:
        outputs: type of each output, by name.
    """

    name: str
    template: Template
    outputs: Mapping[str, str]

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the outputs that are texts, which can be streamed."""
        return tuple(name for name, type_ in self.outputs.items() if type_ == "text")

    def description(self) -> dict[str, Any]:
        """Return what clients have to know, as a value of JSON: inputs, outputs, settings and defaults."""
        graph = self.template.lower({})
        return {
            "name": self.name,
            "inputs": {name: input_schema(type_) for name, type_ in self.template.inputs},
            "outputs": {
                name: {"type": type_, "streams": name in self.texts} for name, type_ in self.outputs.items()
            },
            "settings": {
                component.name: {
                    "about": inspect.getdoc(type(component.config)),
                    "settings": described_settings(component),
                }
                for component in self.template.components
            },
            "engines": sorted({primitive.engine for primitive in graph if primitive.engine is not None}),
        }


def deploy_app(name: str, template: Template) -> DeployedApp:
    """Return an app under a name that requests call it by, after checking that requests can run it.

    Raises:
        ConfigError: the name is no identifier, or an input or output cannot be a value of JSON.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name an app in a URL; give letters, digits and _")
    check_servable(template)
    graph = template.lower({})
    types = verify(graph, template.vocabulary.ops)
    outputs: dict[str, str] = {}
    for output, ref in graph.outputs:
        type_ = types[ref.name, ref.port]
        outputs[output] = type_ if ref.index is None else item_type(type_) or "any"
    check_outputs(template, outputs)
    return DeployedApp(name, template, outputs)


def load_apps(wheres: Iterable[str], *, small_llm: bool = False) -> dict[str, DeployedApp]:
    """Return the apps that `wheres` name, by name: each is FILE.py:NAME, or the name of a ready-made app.

    NAME is a `Template` in the file, or a function without arguments that returns one. The file's code runs.
    With `small_llm`, ready-made apps have the settings for an LLM of less than a billion parameters.

    Raises:
        ConfigError: there is no such file, name or app, the file raises, or two apps have one name.
    """
    found: dict[str, DeployedApp] = {}
    for where in wheres:
        path, colon, name = where.rpartition(":")
        if not colon:
            if where not in READY_MADE:
                known = ", ".join(READY_MADE)
                raise ConfigError(f"--app {where}: give FILE.py:NAME, or a ready-made app: {known}")
            name, template = where, READY_MADE[where](small_llm=small_llm)
        else:
            template = _template(where, Path(path), name)
        if name in found:
            raise ConfigError(f"--app {where}: another app is called {name!r}")
        found[name] = deploy_app(name, template)
    return found


def _template(where: str, path: Path, name: str) -> Template:
    given = getattr(_module(where, path), name, None)
    if given is not None and callable(given) and not isinstance(given, type):
        try:
            given = given()
        except StrettoError:
            raise
        except Exception as error:  # the function is a user's
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
    except Exception as error:  # the file is a user's
        raise ConfigError(f"--app {where}: {path} raised {described(error)}") from error
    return module
