"""A deployed app: where it comes from, and what it says of its inputs, settings and outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.apps import APPS, search_empowered
from stretto.apps.template import Template
from stretto.apps.template_file import template_in_file
from stretto.graph.types import item_type
from stretto.graph.verify import verify
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import did_you_mean
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

    NAME is a `Template` in the file, or a function without arguments that returns one. The file runs once.
    With `small_llm`, ready-made apps have the settings for an LLM of less than a billion parameters.

    Raises:
        ConfigError: there is no such file, name or app, the file raises, or two apps have one name.
    """
    found: dict[str, DeployedApp] = {}
    for where in wheres:
        _, colon, name = where.rpartition(":")
        if not colon:
            if where not in READY_MADE:
                known = f"{', '.join(READY_MADE)}{did_you_mean(where, READY_MADE)}"
                raise ConfigError(f"--app {where}: give FILE.py:NAME, or a ready-made app: {known}")
            name, template = where, READY_MADE[where](small_llm=small_llm)
        else:
            template = template_in_file(where)
        if name in found:
            raise ConfigError(f"--app {where}: another app is called {name!r}")
        found[name] = deploy_app(name, template)
    return found
