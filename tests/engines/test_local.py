"""The engines of this machine as the catalogue makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.mini_model import MINI
from stretto.engines.batch.calls import CallsConfig
from stretto.engines.batch.local_models import minilm_path
from stretto.engines.catalogue import local_engines
from stretto.engines.chat_markup import PLAIN_STOP
from stretto.engines.executables import engine_and_model
from stretto.engines.llms import DEFAULT_LLM, STAND_IN, checkpoint_path, llm_engine
from stretto.engines.profiling import profile_engine
from stretto.model.deployment import Deployment


def by_name(engines: list[Deployment]) -> dict[str, Deployment]:
    return {engine.name: engine for engine in engines}


def test_chunking_is_profiled_within_the_limit_of_its_embedder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((minilm_path() / "tokenizer.json").read_bytes())
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    engine = by_name(local_engines(embedding_model=str(tmp_path)))["chunking"]
    measurements, _ = profile_engine(engine, lambda measured: None)
    assert [measured.units for measured in measurements] == [1, 2, 4, 8]


def test_functions_make_an_engine_for_calls() -> None:
    (replica,) = by_name(local_engines(functions={"upper": str.upper}))["calls"].replicas
    assert replica.config == CallsConfig({"upper": str.upper})
    assert "calls" not in by_name(local_engines())


def test_vectors_of_documents_are_kept_unless_that_is_turned_off() -> None:
    for kept, engines in ((10_000, local_engines()), (0, local_engines(kept_texts=0))):
        (replica,) = by_name(engines)["embedding"].replicas
        assert replica.config.kept_texts == kept  # type: ignore[attr-defined]


def test_chunks_are_measured_by_the_embedder_that_was_chosen() -> None:
    engines = by_name(local_engines(embedding_model="other"))
    configs: list[Any] = [engines[name].replicas[0].config for name in ("chunking", "embedding")]
    assert [config.model for config in configs] == ["other", "other"]


def test_completions_of_a_server_stop_at_a_further_question() -> None:
    for url, api, stop in (
        ("http://127.0.0.1:9", "auto", ()),
        ("http://127.0.0.1:9/v1/completions", "completions", PLAIN_STOP),
        ("http://127.0.0.1:9/v1/chat/completions", "chat", ()),
    ):
        config: Any = llm_engine(url).replicas[0].config
        assert (config.api, config.stop) == (api, stop)


def test_a_profile_is_of_an_engine_and_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.llms.DEFAULT_LLM", DEFAULT_LLM)  # others have a stand-in
    names = [engine_and_model(engine).removesuffix("@bfloat16") for engine in local_engines()]
    assert names == [
        "chunking:all-MiniLM-L6-v2",
        "embedding:all-MiniLM-L6-v2",
        "vectors:MemoryVectors",
        "reranking:Reranking",
        f"llm:{checkpoint_path(DEFAULT_LLM)}",
    ]
    assert engine_and_model(llm_engine(str(MINI))) == f"llm:{MINI.resolve()}"
    assert engine_and_model(llm_engine(STAND_IN)) == "llm:StandIn"
    several = llm_engine(["http://127.0.0.1:1", "http://127.0.0.1:2"], api="chat")
    configs: list[Any] = [replica.config for replica in several.replicas]
    assert [(config.url, config.api) for config in configs] == [
        ("http://127.0.0.1:1", "chat"),
        ("http://127.0.0.1:2", "chat"),
    ]
    assert engine_and_model(llm_engine(str(tmp_path))) == f"llm:{tmp_path.resolve()}"
    other = by_name(local_engines(embedding_model=str(tmp_path), reranking_model="a/cross-encoder"))
    assert engine_and_model(other["embedding"]) == f"embedding:{tmp_path.resolve()}"
    assert engine_and_model(other["reranking"]) == "reranking:a/cross-encoder"
