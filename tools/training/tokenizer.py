"""Trains the small model's tokenizer: byte-level BPE over text with single spaces.

White space becomes one space and a blank line one newline, so that a sentence has the same tokens in a
wrapped text, in a draft and in an answer. A word after a bracket, quote or hyphen has the same tokens as
after a space; an invisible mark stands for the missing space. The heading of each part of our prompts
("Question: ") is a single special token. Retrieved texts cannot contain it, because special tokens are parsed
in constants only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from stretto.apps.components.prompt_segments import load_prompt, parse_prompt
from stretto.graph.graph import Constant

BOS, EOS = "<|begin|>", "<|end|>"
CONTEXT_TOKENS = 4096
GLUE = "\u2060"  # word joiner: the word after it has no space before it
CHAT_TEMPLATE = (
    BOS + "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if not add_generation_prompt %}" + EOS + "{% endif %}"
)
# Headings of the parts of the ready-made prompts, in the order of their tokens after BOS and EOS.
MARKERS = (
    "\nQuestion: ",
    "\nContext: ",
    "\nText: ",
    "\nDrafts: ",
    "\nDraft: ",
    "\nAnswer:",
    "\nJSON:",
    "\nSummary:",
)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a tokenizer of `vocabulary` tokens; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\s*\n\s*\n\s*"), "\u2029"),
            normalizers.Replace(Regex(r"[^\S\u2029]+"), " "),
            normalizers.Replace("\u2029", "\n "),
            normalizers.Replace(Regex(r"(?<=[\[({\"“‘/-])(?=\p{L})"), GLUE + " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(GLUE + " ", ""), decoders.Replace(GLUE, "")]
    )
    special = [AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, *MARKERS)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


class PromptEncoder:
    """Makes token ids of prompts and answers, segment by segment, like `stretto.engines.prompt_tokens`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spec = json.loads(tokenizer.to_str()) | {"added_tokens": []}
        self._plain = Tokenizer.from_str(json.dumps(spec))
        self.bos, self.eos = token_id(tokenizer, BOS), token_id(tokenizer, EOS)
        self._constants: dict[str, list[int]] = {}

    def prompt(self, name: str, values: dict[str, str], constants: dict[str, str] | None = None) -> list[int]:
        """Tokens of BOS and the ready-made prompt `name` with its values."""
        known = tuple(sorted((constants or {}).items()))
        tokens = [self.bos]
        for part in parse_prompt(load_prompt(name), frozenset(values), known):
            if isinstance(part, Constant):
                if part.text not in self._constants:
                    self._constants[part.text] = self._tokenizer.encode(
                        part.text, add_special_tokens=False
                    ).ids
                tokens += self._constants[part.text]
            else:
                tokens += self._plain.encode(values[part.port], add_special_tokens=False).ids
        return tokens

    def answer(self, text: str) -> list[int]:
        """Tokens of an answer and EOS."""
        return [*self._plain.encode(text, add_special_tokens=False).ids, self.eos]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a token, which must exist."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found
