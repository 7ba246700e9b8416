"""Output that follows a JSON schema or a regular expression: `llguidance` says which tokens may come next.

The library is given the text that each token adds to the final output, see `token_texts`. It never forces
tokens upon the model: it would find those by tokenising, and a tokenizer that normalises text does not
reproduce it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.engines.prompt_tokens import load_tokenizer
from stretto.engines.transformer.token_texts import END, NOTHING, TokenTexts, mark_of
from stretto.model.errors import ConfigError, EngineFailure, StrettoError
from stretto.model.extras import imports_of
from stretto.model.tasks import Decode

if TYPE_CHECKING:
    from torch import Tensor

_SETTINGS = "x-guidance"
"""Key of a schema under which the library finds settings of its own."""
_WHITE_SPACE = " ?"
"""White space between the parts of JSON. Small models write it without an end where they may."""
_LIMITS = re.compile(r"items; max is |Too many items \(limit |fuel")
"""Errors of the library by which a schema, such as that of an object with a thousand properties, is too large
to be followed."""
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class Structures:
    """A factory of `Structure`s, each of which keeps one output to its JSON schema or regular expression, for
    the tokenizer at `path`, which has `vocabulary` tokens. It is read when the first one is asked for.
    """

    def __init__(self, path: Path, vocabulary: int) -> None:
        self._path = path
        self._vocabulary = vocabulary
        self._texts: TokenTexts | None = None
        self._tokenizer: Any = None

    def make(self, decode: Decode) -> Structure | None:
        """Return a new `Structure`, which keeps one output to the JSON schema or regular expression in
        `decode`; None if there is none, or where it need be kept only if that can be (`schema_if_able`).

        Raises:
            ConfigError: the schema or the regular expression cannot be used, the library is not installed,
                or it cannot use the tokenizer.
        """
        if decode.json_schema is None and decode.regex is None and not decode.choices:
            return None
        try:
            return self._made(decode, self._texts or self._read())
        except ConfigError:
            if decode.schema_if_able:
                return None
            raise

    def _read(self) -> TokenTexts:
        """Read the vocabulary of the tokenizer."""
        with imports_of("structured", "output by a JSON schema or a regular expression"):
            from llguidance import LLTokenizer, TokenizerWrapper
            from llguidance.hf import from_tokenizer
        tokenizer = load_tokenizer(self._path)
        with _failing_as(ConfigError, f"json_schema, regex and choices: unusable tokenizer in {self._path}"):
            known = from_tokenizer(tokenizer, n_vocab=self._vocabulary, slices=[])
            texts = TokenTexts(
                [known.decode_bytes([token]) for token in range(self._vocabulary)],
                special=[token for token in range(self._vocabulary) if known.is_special_token(token)],
                ends=known.eos_tokens,
                mark=mark_of(tokenizer.backend_tokenizer.to_str()),
            )
            self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(texts.texts)))
        self._texts = texts
        return texts

    def _made(self, decode: Decode, texts: TokenTexts) -> Structure:
        from llguidance import LLMatcher

        if decode.ignore_eos or decode.min_tokens or None not in (decode.json_schema, decode.regex):
            raise ConfigError(
                "json_schema, regex and choices cannot be combined with each other, with ignore_eos or with"
                " min_tokens"
            )
        with _failing_as(ConfigError, "unusable structure"):
            grammar = LLMatcher.grammar_from_lark(_OPTIONS + _rule(decode))
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
            _check(matcher)
        structure = Structure(matcher, texts)
        structure.check_begin()
        return structure


class Structure:
    """The progress of one LLM output through its JSON schema or regular expression, token by token: it says
    which tokens may come next.
    """

    def __init__(self, matcher: Any, texts: TokenTexts) -> None:
        self._matcher = matcher
        self._texts = texts
        self._num_consumed = 0
        self._end = b""  # last bytes of the text so far, marks included

    def allowed(self, generated: list[int]) -> Tensor:
        """Return a mask over the vocabulary of the tokens that may follow the tokens `generated`.

        If the output is complete, only the end of sequence may follow.

        Raises:
            ConfigError: the structure is too large to be followed.
            EngineFailure: the library failed, or no token may follow.
        """
        with _failing_as(EngineFailure, "the output's structure cannot be followed"):
            for token in generated[self._num_consumed :]:
                self._consume(token)
            allowed = self._allowed()
            if not allowed.any():
                raise ValueError("no token may come next")
        from torch import from_numpy

        return from_numpy(allowed)

    def check_begin(self) -> None:
        """Check that an output can begin.

        Raises:
            ConfigError: nothing fits, as where a schema is made of itself, or the structure is too large.
            EngineFailure: the library failed.
        """
        try:
            is_any = bool(self._allowed().any())
        except ValueError as error:
            if str(error).startswith("panic"):
                raise EngineFailure(f"the output's structure cannot be followed: {error}") from error
            is_any = False
        if not is_any:
            raise ConfigError("unusable structure: no text fits it")

    def _allowed(self) -> NDArray[np.bool_]:
        texts = self._texts
        if self._matcher.is_stopped():
            return np.equal(texts.elsewhere, END, dtype=bool)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        _check(self._matcher)
        is_allowed = np.unpackbits(bits, bitorder="little").astype(bool)
        is_allowed[NOTHING] = False
        allowed = is_allowed[self._numbers]
        if not self._num_consumed:  # the space before an output is not part of it
            allowed |= is_allowed[texts.behind_mark]
        allowed[texts.spelling_mark(self._end)] = False
        return allowed

    def _consume(self, token: int) -> None:
        if not self._matcher.is_stopped():
            text = int(self._numbers[token])
            if not self._num_consumed and not self._matcher.validate_tokens([text]):
                text = int(self._texts.behind_mark[token])
            self._matcher.consume_token(text)
            _check(self._matcher)
        self._num_consumed += 1
        self._end = self._texts.end_behind(self._end, token)

    @property
    def _numbers(self) -> NDArray[np.intp]:
        """Number of each token's text at the current position of the output."""
        return self._texts.behind_mark if self._texts.is_behind_mark(self._end) else self._texts.elsewhere


class _Vocabulary:
    """Texts of tokens in the form of a tokenizer, for the library. It never tokenises, as it forces no
    tokens."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)

    def __init__(self, texts: list[bytes]) -> None:
        self.tokens = texts

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError


def _rule(decode: Decode) -> str:
    from llguidance import regex_to_lark

    if decode.json_schema is not None:
        schema = json.loads(decode.json_schema)
        if isinstance(schema, dict):
            schema = {_SETTINGS: {"whitespace_pattern": _WHITE_SPACE}, **schema}
        return f"start: %json {json.dumps(schema)}"
    regex = "|".join(map(re.escape, decode.choices)) or decode.regex or ""
    return f"start: /{regex_to_lark(regex, use_ascii='')}/"


def _check(matcher: Any) -> None:
    """Raise ValueError if the library reports an error or a panic of its own; it does not raise them.

    Raises ConfigError if the structure is beyond the library's limits.
    """
    if not matcher.is_error():
        return
    problem = matcher.get_error().partition("\n<backtrace>")[0]
    if not problem.startswith("panic") and _LIMITS.search(problem):
        raise ConfigError(f"unusable structure: too large: {problem.partition(chr(10))[0]}")
    raise ValueError(problem)


@contextmanager
def _failing_as(kind: type[StrettoError], problem: str) -> Iterator[None]:
    """Context that turns all errors of the library into `kind`, even panics of its Rust code."""
    try:
        yield
    except StrettoError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{problem}: {error}") from error
