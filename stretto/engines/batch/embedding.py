"""Engine for sentence embeddings: all-MiniLM-L6-v2, or another model with sentence-transformers.

On a CPU each text is computed by itself, on one thread. So its vector is the same, bit for bit, whatever else
is in its batch and however busy the machine is. Several texts are computed side by side while no other engine
of this process computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.engines.batch.applications import OpApplication, answer_batch, unwanted
from stretto.engines.batch.leading_text import LeadingText
from stretto.engines.batch.local_models import MINILM, checked_minilm, loading_model
from stretto.engines.batch.side_by_side import SideBySide
from stretto.engines.contract import BatchEngine
from stretto.engines.processor import COMPUTING, Computing, has_bfloat16, num_cores
from stretto.model.errors import BadReply, ConfigError
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.values import as_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

GPU_BATCH_SIZE = 64
DTYPES = ("float32", "bfloat16", "float16")
"""Types in which a model on this machine may compute."""


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """Configuration of `Embedding`, the engine that turns texts into vectors.

    Attributes:
        model: "all-MiniLM-L6-v2" comes with the package; anything else is a name or path that
            sentence-transformers loads.
        num_threads: largest number of texts that are computed side by side on a CPU, each on one thread; None
            takes the number of cores.
        dtype: type of weights and activations: "float32", "bfloat16" or "float16". "auto" takes bfloat16 on a
            CPU that computes with it natively, else float32. Vectors are float32 in any case.
        device: torch device that runs the model, such as "cpu" or "cuda:1"; "auto" is the first GPU if there
            is one, else the CPU.
        kept_texts: number of texts, those used last, whose vectors are kept on a CPU: queries over the same
            documents compute each text once. A kept text takes some 3 kB.

    Raises:
        ConfigError: `num_threads`, `dtype` or `kept_texts` is unusable.
    """

    model: str = MINILM
    num_threads: int | None = None
    dtype: str = "auto"
    device: str = "cpu"
    kept_texts: int = 0

    def __post_init__(self) -> None:
        if self.kept_texts < 0:
            raise ConfigError(f"kept_texts is {self.kept_texts}; it must be at least 0")
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"num_threads is {self.num_threads}; it must be at least 1, or None")
        known = ("auto", *DTYPES)
        if self.dtype not in known:
            raise ConfigError(f"there is no dtype {self.dtype!r}; there are {', '.join(known)}")

    def dtype_on(self, device: str) -> str:
        """Return the name of the type that the model is loaded with on "cpu" or "cuda"."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if device == "cpu" and has_bfloat16() else "float32"


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded model. It reads `max_tokens` of a text; None is any number.

    Attributes:
        encode: returns the vectors of texts, one row each.
        tokenizer: None if it is not of the package `tokenizers`.
    """

    encode: Callable[[list[str]], NDArray[np.float32]]
    tokenizer: Tokenizer | None
    max_tokens: int | None
    is_on_cpu: bool


class Embedding(BatchEngine):
    """A batch engine that turns texts into vectors of unit length.

    It runs the op `embed`: input `texts` (str, Chunk or Hit). It answers a float32 vector. On
    a CPU it depends on the text alone. On a GPU the texts of a batch go to the model together, and the vector
    depends on them by float rounding. Text beyond the model's limit is cut off, as the model does.

    Args:
        computing: what else computes in this process.
    """

    op_names = ("embed",)

    def __init__(self, config: EmbeddingConfig, computing: Computing = COMPUTING) -> None:
        """Load the model.

        Raises:
            ConfigError: packages are missing, or the model cannot be loaded.
            EngineFailure: the packaged weights are not those of all-MiniLM-L6-v2.
        """
        model = _load(config)
        self._encode = model.encode
        self._leading = LeadingText(model.tokenizer, model.max_tokens)
        self._computing = computing
        self._is_unwanted: Callable[[int], bool] = lambda _: False
        self._vector_of = lru_cache(config.kept_texts)(self._compute)
        num_helpers = (config.num_threads or num_cores()) - 1
        self._one_by_one = SideBySide(self._answer, num_helpers, _use_one_thread) if model.is_on_cpu else None

    def heed(self, is_unwanted: Callable[[int], bool]) -> None:
        """Take the function that says which tasks are not wanted any more. On a CPU it is asked before each
        text, on a GPU before each batch.
        """
        self._is_unwanted = is_unwanted

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Embed the texts of all tasks; return a vector, or vectors, for each."""
        return answer_batch(tasks, {"embed": self._embed})

    def close(self) -> None:
        """End the threads that compute side by side. Memory is freed with the object."""
        if self._one_by_one is not None:
            self._one_by_one.close()

    def _embed(self, applications: Sequence[OpApplication]) -> list[object]:
        texts = [embedded_text(application) for application in applications]
        if self._one_by_one is None:
            if all(self._is_unwanted(application.task.id) for application in applications):
                return [unwanted(application) for application in applications]
            return list(self._encode([self._leading.cut(text) for text in texts]))
        own = threading.get_ident()
        return self._one_by_one.map(applications, lambda: not self._computing.is_any_but(own))

    def _answer(self, application: OpApplication) -> object:
        if self._is_unwanted(application.task.id):
            return unwanted(application)
        vector: NDArray[np.float32] = self._vector_of(self._leading.cut(embedded_text(application)))
        return vector

    def _compute(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._encode([text])[0]
        vector.setflags(write=False)  # all that ask for the text share it
        return vector


def embedded_text(application: OpApplication) -> str:
    """Return the text to embed. Raises BadReply if there is none."""
    value = application.require("texts", object)
    try:
        return as_text(value)
    except TypeError as cause:
        raise BadReply(f"embed: {cause}", step=application.task.step) from cause


def _load(config: EmbeddingConfig) -> _Model:
    is_packaged = config.model == MINILM
    path = checked_minilm() if is_packaged else config.model
    with imports_of("local", f"the model {config.model!r}"):
        from stretto.engines.transformer.device import device_of
    device = device_of(config.device)
    if is_packaged and device.type == "cpu":
        return _minilm(Path(path), config.dtype_on("cpu"))
    with loading_model(config.model, 1):
        from sentence_transformers import SentenceTransformer

        from stretto.engines.packed_matrix import pack_linears

        model = SentenceTransformer(
            str(path),
            device=str(device),
            local_files_only=is_packaged,  # asks no hub; HF_HUB_OFFLINE would bind the whole process
            model_kwargs={"dtype": config.dtype_on(device.type)},
        )
        _pool_in_float32(model)
        pack_linears(model)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        vectors = model.encode(
            texts, batch_size=GPU_BATCH_SIZE, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)

    encode([""])  # a tokenizer's first use sets its padding, which no other thread may read then
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    return _Model(encode, backend, model.max_seq_length, device.type == "cpu")


def _minilm(path: Path, dtype: str) -> _Model:
    with imports_of("local", f"the model {MINILM}"):
        import torch

        from stretto.engines.batch.minilm import MiniLM
    _use_one_thread()
    model = MiniLM(path, getattr(torch, dtype))
    return _Model(
        lambda texts: np.stack([model.encode(text) for text in texts]),
        model.tokenizer,
        model.max_tokens,
        True,
    )


def _pool_in_float32(model: SentenceTransformer) -> None:
    """Let all modules of a model after the first, which is the transformer, compute in float32.

    They pool the vectors of a text's tokens and scale the result. That is cheap, and a short type would lose
    most there.
    """
    import torch

    def widen(module: object, args: object, features: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in features.items()
        }

    transformer, *others = model
    transformer.register_forward_hook(widen)
    for module in others:
        module.float()


def _use_one_thread() -> None:
    """Let torch compute on one thread what the calling thread asks of it."""
    import torch

    torch.set_num_threads(1)
