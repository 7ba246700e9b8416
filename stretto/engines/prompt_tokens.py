"""The tokens of a prompt, the same for every in-process engine, so that their results can be compared.

Each segment is tokenised by itself: the tokens of a prompt begin with the tokens of each of its leading
parts, wherever it is cut. Special tokens are parsed in constants only; `<|im_end|>` in a retrieved
document stays eight harmless characters.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from stretto.core import Prompt
from stretto.errors import ConfigError, UserError

_CONTENT = "STRETTO-PROMPT"


class PromptTokenizer:
    """The tokenizer of a checkpoint, which puts prompts into the checkpoint's chat template if it has one.

    The prompt becomes the user's message. The template's text before that message leads every prompt; its
    text after it is `suffix`, which the caller appends before decoding.

    Raises:
        ConfigError: the folder's tokenizer cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer from `folder`. Raises ConfigError if it cannot be used."""
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not tokenizer.is_fast:
            raise ConfigError(f"{folder}: the tokenizer has no tokenizer.json form")
        self._tokenizer = tokenizer
        self._decoder: Tokenizer = tokenizer.backend_tokenizer
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        # Without added tokens and what the post-processor adds: text is only text.
        spec |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._plain = Tokenizer.from_str(json.dumps(spec))

        before, behind = "", ""
        if tokenizer.chat_template:
            before, behind = self._template_parts(folder)
        bos = [tokenizer.bos_token_id] if tokenizer.bos_token_id in tokenizer("").input_ids else []
        prefix = self._constant(before)
        self._prefix: list[int] = prefix if prefix[: len(bos)] == bos else bos + prefix
        self.suffix: list[int] = self._constant(behind)
        self.eos_token_id: int | None = tokenizer.eos_token_id

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt: BOS, the chat template's beginning, then the prompt's segments.

        The template's end, `suffix`, is left out.

        Raises:
            UserError: a segment is not a text, or contains half of a surrogate pair.
        """
        tokens = list(self._prefix)
        for number, segment in enumerate(prompt):
            try:
                if segment.name is None:
                    tokens += self._constant(segment.text)
                else:
                    tokens += self._plain.encode(segment.text, add_special_tokens=False).ids
            except (TypeError, ValueError) as error:
                where = f"segment {segment.name or number} of the prompt"
                raise UserError(f"{where} cannot be tokenised: {ascii(segment.text)[:100]}") from error
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Return the text of generated tokens; special tokens are left out.

        If the last token ends within a character, the text ends with U+FFFD.
        """
        return self._decoder.decode(tokens, skip_special_tokens=True)

    def _constant(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _template_parts(self, folder: Path) -> tuple[str, str]:
        chat = [{"role": "user", "content": _CONTENT}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        parts = str(text).split(_CONTENT)
        if len(parts) != 2:
            raise ConfigError(f"{folder}: the chat template does not show the user's message exactly once")
        return parts[0], parts[1]
