"""The model of a server is the one that is named, or the only one that can be meant."""

from __future__ import annotations

import json

import pytest

from stretto.model.errors import BadReply, ConfigError
from stretto.wire.models import ModelCard, choose_model, models_json, read_models


def _listed(*names: str) -> list[ModelCard]:
    return [ModelCard(name) for name in names]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("only",), "only"),
        (("nomic-embed-text:latest",), "nomic-embed-text:latest"),
        (("nomic-embed-text:latest", "llama3.1:8b"), "llama3.1:8b"),
        (("text-embedding-3-small", "whisper-1", "dall-e-3", "gpt"), "gpt"),
        (("BAAI/bge-m3", "BAAI/bge-reranker-v2", "Qwen/Qwen3-8B"), "Qwen/Qwen3-8B"),
    ],
)
def test_the_only_model_that_can_be_meant_is_taken(names: tuple[str, ...], chosen: str) -> None:
    assert choose_model(_listed(*names), None).id == chosen


@pytest.mark.parametrize(
    "names", [("a", "b"), ("qwen3:8b", "nomic-embed-text", "llama3.1:8b"), ("embed-a", "embed-b")]
)
def test_several_models_without_a_name_are_refused_with_their_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="name the one to use: ") as refused:
        choose_model(_listed(*names), None)
    assert all(name in str(refused.value) for name in names)


def test_a_named_model_is_taken_even_if_it_is_not_listed() -> None:
    assert choose_model([ModelCard("a", max_model_tokens=7), ModelCard("b")], "a").max_model_tokens == 7
    assert choose_model(_listed("a"), "hidden").id == "hidden"
    assert choose_model([], "hidden").id == "hidden"


def test_adapters_and_further_names_of_the_same_weights_are_no_other_models() -> None:
    base, adapter = ModelCard("base", root="/w"), ModelCard("tuned", root="/t", parent="base")
    assert choose_model([adapter, base], None) is base
    assert choose_model([base, ModelCard("alias", root="/w")], None) is base


def test_a_server_that_compares_texts_is_asked_for_its_model_that_does() -> None:
    names = ("llama3.1:8b", "nomic-embed-text:latest", "whisper-1")
    assert choose_model(_listed(*names), None, does="compare").id == "nomic-embed-text:latest"
    with pytest.raises(ConfigError):
        choose_model(_listed("my-model", "other-model"), None, does="compare")


def test_no_model_is_no_choice() -> None:
    with pytest.raises(BadReply, match="no model"):
        choose_model([], None)


def test_lists_come_in_an_object_alone_or_as_null() -> None:
    cards = (ModelCard("a", root="/w", parent="b"),)
    assert read_models(json.loads(json.dumps(models_json(cards)))) == cards
    assert read_models([{"id": "a"}]) == (ModelCard("a"),)
    assert read_models({"data": None}) == ()
    for body in ({}, {"data": 3}, {"data": [{"id": ""}]}, None):
        with pytest.raises(BadReply):
            read_models(body)
