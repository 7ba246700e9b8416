"""The tokens of a prompt, the same for every in-process engine, so that their results can be compared.

Each segment is tokenised by itself: the tokens of a prompt begin with the tokens of each of its leading
parts, wherever it is cut. Special tokens are parsed in constants only; `<|im_end|>` in a retrieved
document stays eight harmless characters. Some vocabularies (Unigram, word level) have special tokens among
their ordinary pieces; text that would become one is split again.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.engines.chat_markup import ChatMarkup, roles_of
from stretto.engines.gguf_file import is_gguf, read_gguf
from stretto.engines.loading import one_load
from stretto.llm.output.thoughts import opens_thoughts
from stretto.model.errors import ConfigError, UserError
from stretto.model.extras import imports_of
from stretto.model.values import Prompt


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of the checkpoint at `path`, as transformers has it, without network access.

    Raises:
        ConfigError: a package is not installed, a GGUF file is damaged, or the tokenizer has no fast form.
    """
    if is_gguf(path):
        return _from_gguf(path)
    with one_load(f"the tokenizer in {path}"):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    if not tokenizer.is_fast:
        raise ConfigError(f"{path}: the tokenizer has no tokenizer.json form")
    return tokenizer


def _from_gguf(path: Path) -> Any:
    """Load the tokenizer in a GGUF file. A folder with this file alone keeps out files that lie beside it."""
    if "tokenizer.ggml.tokens" not in read_gguf(path).num_of:
        raise ConfigError(f"{path} has no tokenizer")
    with one_load(f"the tokenizer in {path}"), tempfile.TemporaryDirectory() as name:
        from transformers import PreTrainedTokenizerFast

        alone = Path(name) / "model.gguf"
        alone.symlink_to(path.resolve())
        try:
            return PreTrainedTokenizerFast.from_pretrained(name, gguf_file=alone.name, local_files_only=True)
        except Exception as error:  # whatever the loader raises, it is about this file
            raise ConfigError(f"cannot load the tokenizer in {path}: {error!r:.200}") from error


if TYPE_CHECKING:
    from tokenizers import Tokenizer

_log = logging.getLogger(__name__)

_NUM_CONSTANTS = 512
"""Number of constants whose ids are kept. Every query of an app brings the same ones, data are its own."""
_NUM_DATA = 256
"""Number of other segments whose ids are kept: those of a prompt are needed again when its KV is retained,
and those of a conversation with each turn."""
_MAX_KEPT_CHARS = 8192
"""Length of the longest segment whose ids are kept. All together take some 75 MB at most, even where each
query brings constants of its own."""


class PromptTokenizer:
    """The tokenizer of a checkpoint, which puts prompts into the checkpoint's chat template if it has one.

    A prompt without roles becomes the user's message. The template's text before each message is part of the
    prompt; its text after the last one is `end_of(prompt)`, which the caller appends before decoding.

    Attributes:
        name: path of the checkpoint. Tokens that an LLM has generated are taken as they are if they belong to
            it.
        has_template: whether there is a chat template. Without one, prompts get their plain form.
        ending: tokens that end an answer: EOS, and what the chat template ends the assistant's messages with.

    Raises:
        ConfigError: the checkpoint's tokenizer cannot be used.
    """

    def __init__(self, path: Path) -> None:
        """Load the tokenizer of the checkpoint at `path`. Raises ConfigError if it cannot be used."""
        self.name = str(path.resolve())
        tokenizer = load_tokenizer(path)
        with imports_of("local", f"the tokenizer in {path}"):
            from tokenizers import Tokenizer
        self._tokenizer = tokenizer
        self._decoder: Tokenizer = tokenizer.backend_tokenizer
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        # Without added tokens and what the post-processor adds: text is only text.
        spec |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._plain = Tokenizer.from_str(json.dumps(spec))
        self._special = _special_ids(tokenizer)
        self._kept: Callable[[str], tuple[int, ...]] = lru_cache(_NUM_CONSTANTS)(self._tokenise_constant)
        self._kept_data: Callable[[str], tuple[int, ...]] = lru_cache(_NUM_DATA)(self._tokenise_data)
        self.has_template = bool(tokenizer.chat_template)
        if not self.has_template:
            _warn_of_plain_form(self.name)
        self._markup = ChatMarkup(str(path), self._render if self.has_template else None)
        self._bos = [tokenizer.bos_token_id] if tokenizer.bos_token_id in tokenizer("").input_ids else []
        self.suffix: list[int] = self.end_of(())
        self.eos_token_id: int | None = tokenizer.eos_token_id
        after_turn = (id_ for id_ in self._constant(self._markup.end_of_turn()) if id_ in self._special)
        self.ending = frozenset({self.eos_token_id, next(after_turn, None)} - {None})

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt: BOS, then each message with the chat template's text before it.

        The template's end, `end_of(prompt)`, is left out.

        Raises:
            UserError: a segment is not a text, contains half of a surrogate pair, or has a character that is
                a special token by itself; or the template refuses messages of these roles.
        """
        before = iter(self._markup.of(roles_of(prompt)).before)
        tokens = list(self._constant(next(before)))
        if tokens[: len(self._bos)] != self._bos:
            tokens = self._bos + tokens
        for number, segment in enumerate(prompt):
            try:
                if segment.role is not None and number > 0:
                    tokens += self._constant(next(before))
                if segment.tokens is not None and segment.tokens.tokenizer == self.name:
                    tokens += segment.tokens.ids
                    tokens += self.data_tokens(segment.text[segment.tokens.num_chars :])
                elif segment.name is None:
                    tokens += self._constant(segment.text)
                else:
                    tokens += self.data_tokens(segment.text)
            except (TypeError, ValueError) as error:
                where = f"segment {segment.name or number} of the prompt"
                raise UserError(f"{where} cannot be tokenised: {ascii(segment.text)[:100]}") from error
        return tokens

    def end_of(self, prompt: Prompt) -> list[int]:
        """Return the token ids that the chat template puts between a whole prompt and the model's answer.

        There are none if the prompt ends with a message of the assistant, because the model goes on writing
        it.

        Raises:
            UserError: the template refuses messages of these roles.
        """
        return list(self._constant(self._markup.of(roles_of(prompt)).end))

    def opens_thoughts(self, prompt: Prompt) -> bool:
        """Return whether the chat template ends with the opening tag of the model's thoughts, so that they
        begin without one.

        Raises:
            UserError: the template refuses messages of these roles.
        """
        return opens_thoughts(self._markup.of(roles_of(prompt)).end)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of generated tokens; special tokens are left out.

        If the last token ends within a character, the text ends with U+FFFD.
        """
        return self._decoder.decode(tokens, skip_special_tokens=True)

    def data_tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that is data: none of them is special.

        Raises:
            ValueError: a single character is a special token.
        """
        return self._kept_data(text) if len(text) <= _MAX_KEPT_CHARS else self._tokenise_data(text)

    def _tokenise_data(self, text: str) -> tuple[int, ...]:
        encoding = self._plain.encode(text, add_special_tokens=False)
        if self._special.isdisjoint(encoding.ids):
            return tuple(encoding.ids)
        ids: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._special:
                ids.append(token)
            elif end - start < 2:
                raise ValueError(f"{text[start:end]!r} is a special token")
            else:
                for part in (text[start : start + 1], text[start + 1 : end]):
                    ids += self._tokenise_data(part)
        return tuple(ids)

    def _constant(self, text: str) -> tuple[int, ...]:
        return self._kept(text) if len(text) <= _MAX_KEPT_CHARS else self._tokenise_constant(text)

    def _tokenise_constant(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _render(self, messages: Sequence[Mapping[str, str]], is_to_be_answered: bool) -> str:
        chat = [dict(message) for message in messages]
        return str(
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=is_to_be_answered)
        )


@cache
def _warn_of_plain_form(folder: str) -> None:
    """Say, once for each folder, that its model is taken for a base model."""
    _log.warning(
        "%s has no chat template: prompts are sent in their plain form, as to a base model. A model that is "
        "trained for chats answers badly then; its template belongs into tokenizer_config.json or "
        "chat_template.jinja",
        folder,
    )


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the tokens that text must not become.

    The token for unknown text is not among them, unless it has another meaning too.
    """
    named = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    others = {token for name, token in named.items() if name != "unk_token"}
    added = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = {*added, *tokenizer.all_special_ids}
    if named.get("unk_token") not in others:
        special.discard(tokenizer.unk_token_id)
    return frozenset(special)
