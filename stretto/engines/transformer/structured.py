"""Output that follows a JSON schema or a regular expression: which tokens may come next, by `llguidance`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.errors import ConfigError
from stretto.tasks import Decode


def is_structured(decode: Decode) -> bool:
    """Whether the output's form is prescribed."""
    return decode.json_schema is not None or decode.regex is not None


class Structures:
    """Makes `Structure`s for the tokenizer of one checkpoint."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """Raises ConfigError if the library is not installed, or cannot use the tokenizer."""
        try:
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise ConfigError("json_schema and regex need the package llguidance") from error
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        try:
            self._tokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary)
        except Exception as error:  # whatever the library raises, it is about this tokenizer
            raise ConfigError(f"json_schema and regex: unusable tokenizer in {folder}: {error}") from error
        self._vocabulary = vocabulary

    def make(self, decode: Decode) -> Structure:
        """Raises ConfigError for a schema or an expression that cannot be used."""
        from llguidance import LLMatcher

        if decode.ignore_eos or decode.min_tokens or None not in (decode.json_schema, decode.regex):
            raise ConfigError(
                "json_schema and regex exclude each other, ignore_eos and min_tokens: the end is part of them"
            )
        try:
            if decode.json_schema is not None:
                grammar = LLMatcher.grammar_from_json_schema(decode.json_schema)
            else:
                grammar = LLMatcher.grammar_from_regex(decode.regex or "")
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"unusable structure: {error}") from error
        if matcher.is_error():
            raise ConfigError(f"unusable structure: {matcher.get_error()}")
        return Structure(matcher, self._vocabulary)


class Structure:
    """One output's progress. It follows the tokens, whatever steps they came in."""

    def __init__(self, matcher: object, vocabulary: int) -> None:
        from llguidance import LLMatcher

        assert isinstance(matcher, LLMatcher)
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._num_consumed = 0

    def allowed(self, generated: list[int]) -> Tensor:
        """Which tokens may follow `generated`, (V,); at the end, the end of sequence alone."""
        for token in generated[self._num_consumed :]:
            self._matcher.consume_token(token)
        self._num_consumed = len(generated)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        return torch.from_numpy(allowed)
