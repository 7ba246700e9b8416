"""Tokens of prompts, counted with the tokenizer of a model on this machine, or estimated by characters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from stretto.engines.gguf_file import is_gguf
from stretto.engines.llms import checkpoint_path
from stretto.model.values import Segment
from stretto.planner.application import Application, ModelNode
from stretto.planner.prompt_slots import constant_text

if TYPE_CHECKING:
    from stretto.engines.prompt_tokens import PromptTokenizer

_CHARACTERS_PER_TOKEN = 4
_PACKAGES = ("transformers", "tokenizers")
CountedBy: TypeAlias = Literal["given", "counted", "estimated"]
"""Where the lengths of prompts come from: the file, a tokenizer, or the number of characters."""


def tokens_of(text: str) -> int:
    """Return about how many tokens a text has."""
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


class ModelTokens:
    """Counts tokens as a checkpoint does. Its tokenizer is read once, when it is needed.

    Raises:
        ConfigError: the tokenizer cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _tokenizer(self) -> PromptTokenizer:
        from stretto.engines.prompt_tokens import PromptTokenizer

        return PromptTokenizer(self._path)

    def num_tokens(self, prompt: tuple[Segment, ...]) -> int:
        """Return the tokens of a prompt, with its chat template."""
        return len(self._tokenizer.encode(prompt)) + len(self._tokenizer.end_of(prompt))

    def num_added(self, text: str) -> int:
        """Return the tokens of a text that is part of a prompt."""
        return max(0, self.num_tokens((Segment(text, "text"),)) - self._num_of_empty)

    @cached_property
    def _num_of_empty(self) -> int:
        return self.num_tokens((Segment("", "text"),))


class TextTokens:
    """Counts the texts of an application's requests, with the tokenizer of the first of its models that has
    one on this machine; where none has, by characters.

    Attributes:
        by: where the lengths of the texts so far come from; "given" while there were none.
    """

    def __init__(self, models: Iterable[str]) -> None:
        found = (checkpoint_path(model) for model in models)
        path = next((path for path in found if _has_tokenizer(path)), None)
        self._model = None if path is None else ModelTokens(path)
        self.by: CountedBy = "given"

    def of_prompt(self, *parts: Segment) -> int:
        """Return the tokens of a request's prompt."""
        if self._model is None:
            return sum(self.of_part(part.text) for part in parts)
        self.by = "counted"
        return self._model.num_tokens(parts)

    def of_part(self, text: str) -> int:
        """Return the tokens of a text that is part of a prompt."""
        self.by = "estimated" if self._model is None else "counted"
        return tokens_of(text) if self._model is None else self._model.num_added(text)

    def counted(self, app: Application) -> Application:
        """Return an application whose nodes' own texts are counted too, where they were estimated."""
        return app.counted(self._counted, self.of_part)

    def _counted(self, node: ModelNode) -> ModelNode:
        text = constant_text(node.prompt)
        if not text or node.prompt_tokens != tokens_of(text):
            return node
        return replace(node, prompt_tokens=self.of_part(text))


def _has_tokenizer(path: Path) -> bool:
    if path.is_file() and is_gguf(path):
        return all(map(find_spec, (*_PACKAGES, "gguf")))
    return (path / "tokenizer.json").is_file() and all(map(find_spec, _PACKAGES))
