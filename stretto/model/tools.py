"""Tools of an agent: Python functions that an LLM may call by writing `name: input`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stretto.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tool:
    """A Python function that an LLM may call.

    Attributes:
        name: name by which the LLM calls it: letters, digits and underscores.
        description: what it does and what its input is, on one line, for the LLM to read.
        function: function from the input, a text, to the result, which the LLM reads as text: data such as a
            dict as JSON. It may be a coroutine function.
        has_effect: whether it changes something outside the app. Such a function is called at most once for
            each call that the LLM writes, and its result is not read.
    """

    name: str
    description: str
    function: Callable[[str], object]
    has_effect: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+", self.name):
            raise ConfigError(f"tool {self.name!r}: a name is letters, digits and underscores")
        if not self.description.strip() or "\n" in self.description:
            raise ConfigError(f"tool {self.name!r}: the description must be one line of text")
