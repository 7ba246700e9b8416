"""Loads the tokenizer of a checkpoint: a folder in Hugging Face layout, or a GGUF file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from stretto.engines.gguf_file import is_gguf, read_gguf
from stretto.engines.loading import one_load
from stretto.model.errors import ConfigError


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
