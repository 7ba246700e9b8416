"""Names of models that stand for others, such as the name that clients know for the model that a fleet runs.

A name may stand for several models, which get shares of its programs by their weights. All requests of a
program go to one model, whose servers hold its beginning. Models that no worker has just now are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.model.errors import ConfigError

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it, without their whole parts, are spread evenly from the first one on."""
_WEIGHT = re.compile(r"(.+):(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasConfig:
    """The settings of one alias.

    Attributes:
        name: name of a model as clients say it.
        models: weight of each model that it stands for.
    """

    name: str
    models: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.name or not self.models or not all(self.models):
            raise ConfigError(f"alias {self.name!r}: it must have a name, and name at least one model")
        for model, weight in self.models.items():
            if not 0.0 <= weight < math.inf:
                raise ConfigError(
                    f"alias {self.name!r}: the weight of {model!r} is {weight!r}; it must be finite and not "
                    "negative"
                )
        if not any(self.models.values()):
            raise ConfigError(f"alias {self.name!r}: all weights are 0; one must be positive")


def read_alias(text: str) -> AliasConfig:
    """Return the alias that a text such as "gpt=qwen:9,llama:1" stands for.

    A number behind the last colon is a weight; a name that ends with one needs a weight behind it.

    Raises:
        ConfigError: the text has another form.
    """
    name, mark, rest = text.partition("=")
    if not mark:
        raise ConfigError(f"alias {text!r}: it must have the form NAME=MODEL[:WEIGHT],…")
    models: dict[str, float] = {}
    for part in rest.split(","):
        found = _WEIGHT.fullmatch(part.strip())
        model, weight = (found[1], float(found[2])) if found else (part.strip(), 1.0)
        if model in models:
            raise ConfigError(f"alias {name!r}: {model!r} is named twice")
        models[model] = weight
    return AliasConfig(name=name.strip(), models=models)


class Aliases:
    """The aliases of a router."""

    def __init__(self, configs: Sequence[AliasConfig]) -> None:
        self._models = {one.name: dict(one.models) for one in configs}
        self._num_asked = dict.fromkeys(self._models, 0)

    def __contains__(self, model: object) -> bool:
        return model in self._models

    def only(self, name: str) -> str:
        """Return the model that a name stands for, if that is one alone; else the name."""
        models = self._models.get(name, ())
        return next(iter(models)) if len(models) == 1 else name

    def models_of(self, name: str) -> Sequence[str]:
        """Return the models that an alias stands for."""
        return list(self._models[name])

    def names(self) -> Sequence[str]:
        """Return the aliases."""
        return list(self._models)

    def choose(self, name: str, program: str, is_served: Callable[[str], bool]) -> str:
        """Return the model for a request that names an alias.

        Args:
            program: number of its program, each of which has one model; "" for none.
            is_served: whether a worker has a model now.
        """
        models = self._models[name]
        if len(models) == 1:
            return next(iter(models))
        if program.isdecimal():
            number = int(program)
        else:
            self._num_asked[name] = number = self._num_asked[name] + 1
        model = _share(models, number)
        if is_served(model):
            return model
        served = {one: weight for one, weight in models.items() if is_served(one)}
        return _share(served, number) if any(served.values()) else model


def _share(models: Mapping[str, float], number: int) -> str:
    """Return the model of the program of a number, so that numbers in a row are spread by the weights."""
    place = (number * _GOLDEN) % 1.0 * sum(models.values())
    for model, weight in models.items():
        place -= weight
        if place < 0.0:
            return model
    return max(models, key=lambda one: models[one])  # after a rounding
