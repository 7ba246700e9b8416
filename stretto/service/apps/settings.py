"""The settings of a query: those that a request gives, checked against the components of the app."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stretto.apps.components.choices import Choices
from stretto.apps.components.component import Component
from stretto.apps.template import Configuration, Template
from stretto.model.errors import ConfigError, StrettoError
from stretto.service.apps.setting_types import converted, schema_of, types_of
from stretto.service.bodies import checked_object
from stretto.service.refusals import Misplaced


def setting_types_of(component: Component) -> dict[str, Any]:
    """Return the type of each setting of a component, its choices included, by name."""
    return {**types_of(Choices), **types_of(type(component.config))}


def described_settings(component: Component) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each setting of a component, with its default, by name.

    Settings that only code can give are left out.
    """
    given = {**vars(component.choices), **vars(component.config)}
    schemas = {name: schema_of(kind) for name, kind in setting_types_of(component).items()}
    return {name: {**schema, "default": given[name]} for name, schema in schemas.items() if schema}


def checked_settings(template: Template, given: object) -> Configuration:
    """Return the settings of a request as the configuration of a query: component to setting to value.

    Values have the types of the settings; whether they are within bounds is not checked.

    Raises:
        Misplaced: a component or setting is unknown, or a value has another type.
    """
    components = {component.name: component for component in template.components}
    found: dict[str, dict[str, object]] = {}
    for name, settings in checked_object(given, "settings").items():
        place = f"settings.{name}"
        if name not in components:
            known = ", ".join(components)
            raise Misplaced(place, f"{template.name} has no component {name!r:.80}; it has {known}")
        kinds = setting_types_of(components[name])
        found[name] = {}
        for setting, value in checked_object(settings, place).items():
            if setting not in kinds:
                known = ", ".join(kinds)
                raise Misplaced(
                    f"{place}.{setting}", f"{name} has no setting {setting!r:.80}; it has {known}"
                )
            try:
                found[name][setting] = converted(kinds[setting], value)
            except ConfigError as error:
                raise Misplaced(f"{place}.{setting}", error.message) from error
    return found


def place_of_error(template: Template, configuration: Configuration, engines: Container[str]) -> str:
    """Return the setting that makes a configuration unusable, as a path: the first one that is so by itself.

    It is a component if only several of its settings together are unusable, and "settings" if settings of
    several components are.

    Args:
        engines: names of the engines that there are.
    """
    for name, settings in configuration.items():
        for setting, value in settings.items():
            if not _is_usable(template, {name: {setting: value}}, engines):
                return f"settings.{name}.{setting}"
    for name, settings in configuration.items():
        if not _is_usable(template, {name: settings}, engines):
            return f"settings.{name}"
    return "settings"


def _is_usable(template: Template, configuration: Configuration, engines: Container[str]) -> bool:
    try:
        graph = template.lower(configuration)
    except StrettoError:
        return False
    return all(primitive.engine is None or primitive.engine in engines for primitive in graph)
