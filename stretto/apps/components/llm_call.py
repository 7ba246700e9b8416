"""Ready-made component for one call of an LLM, with any prompt and any prompt variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.apps.components.builder import Builder
from stretto.apps.components.component import Component, at_least
from stretto.graph.graph import WHEN, Ref
from stretto.graph.ops import Port
from stretto.graph.types import list_of
from stretto.model.errors import ConfigError


class LLMCall(Component):
    """A component of an app that calls an LLM. Each port is a variable of the prompt:

        LLMCall(prompt="Translate into {language}:\\n{text}\\n", language=language, text=text)

    If the port `when` is connected and has no value, the call is skipped.
    """

    ports = (Port(WHEN, optional=True), Port("variables", variadic=True))
    outs: ClassVar[Mapping[str, str]] = {"text": "text"}

    @dataclass(frozen=True)
    class Config:
        """Settings of the component `LLMCall`. No prompt variable can have the name of a setting.

        Attributes:
            prompt: name of a ready-made prompt, or the text of one with {variables}.
            each: name of a variable that is a list; the LLM is called once for each item. "" for none.
            as_list: whether the prompt asks for a JSON list of strings, which becomes the output.
            max_items: number of items of that list after which the LLM stops; 0 for no limit.
            json_schema: JSON schema that the output must follow, as text; "" for none. If `as_list`, models
                that run in this process or in its workers are held to a list without it, where llguidance is
                installed.
            max_tokens: largest number of output tokens of a call.
            temperature: randomness of the output; 0 always takes the most likely token.
            seed: seed of the sampler, used if `temperature` is more than 0.
            stop: strings before the first of which the output ends.
            engine: name of the LLM engine.
        """

        prompt: str = ""
        each: str = ""
        as_list: bool = False
        max_items: int = 0
        json_schema: str = ""
        max_tokens: int = 128
        temperature: float = 0.0
        seed: int = 0
        stop: tuple[str, ...] = ()
        engine: str = "llm"

        def __post_init__(self) -> None:
            at_least(1, max_tokens=self.max_tokens)
            at_least(0, max_items=self.max_items)
            if self.temperature < 0:
                raise ConfigError(f"temperature={self.temperature} is less than 0")
            if self.max_items and not self.as_list:
                raise ConfigError(f"max_items={self.max_items} is for a list: set as_list=True")

    def out_types(self, in_types: Mapping[str, str], config: Config) -> Mapping[str, str]:
        """Return the type of the output: a text or a list of texts, or a list of these if there is one call
        for each item.
        """
        type_ = "list[text]" if config.as_list else "text"
        return {"text": list_of(type_) if config.each else type_}

    def lower(self, build: Builder, config: Config) -> Mapping[str, Ref]:
        """Add the two steps of the LLM call, a prefill and a decode, to the app's graph.

        Raises:
            ConfigError: there is no prompt, or `each` is no variable of it.
        """
        if not config.prompt:
            raise ConfigError("prompt is empty; set it to the name or the text of a prompt")
        variables = {port: build.value(port) for port in build.fed if port != WHEN}
        if config.each and config.each not in variables:
            raise ConfigError(f"each={config.each!r} is no variable; there are {', '.join(variables)}")
        text = build.complete(
            self.name,
            config.prompt,
            variables,
            engine=config.engine,
            decode=_decode(config),
            each=frozenset({config.each} if config.each else ()),
            hints=("splittable",) if config.as_list else (),
            when=build.value(WHEN) if build.is_fed(WHEN) else None,
        )
        return {"text": text}


def _decode(config: LLMCall.Config) -> Mapping[str, object]:
    """Return the settings of the decode, without those that have no effect."""
    settings: dict[str, object] = {"max_tokens": config.max_tokens}
    if config.as_list:
        settings["items"] = "json_list"
    if config.as_list and not config.json_schema:
        settings |= {"json_schema": _list_schema(config.max_items), "schema_if_able": True}
    if config.temperature:
        settings |= {"temperature": config.temperature, "seed": config.seed}
    given = {"max_items": config.max_items, "json_schema": config.json_schema, "stop": config.stop}
    return settings | {name: value for name, value in given.items() if value}


def _list_schema(max_items: int) -> str:
    """Return the JSON schema of a list of texts that are not empty; `max_items` is 0 for no limit."""
    schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
    return json.dumps(schema | ({"maxItems": max_items} if max_items else {}))
