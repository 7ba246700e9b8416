"""Reranking: pointwise, in order, and better than the scores it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.engines.batch.reranking import Reranking, RerankingConfig
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit, document_order

PASSAGES = [
    "Paris is the capital of France. It lies on the Seine.",
    "The capital of Australia is Canberra, not Sydney.",
    "Sydney hosted the Olympic games. Its harbour leads to the Pacific.",
    "",
]


def hits_of(*scores: float) -> list[Hit]:
    return [Hit(Chunk("a.txt", index, PASSAGES[index]), score) for index, score in enumerate(scores)]


def rerank(engine: Reranking, question: str, hits: list[Hit]) -> list[Hit]:
    (reranked,) = engine.run([Task(1, "q", "s", "rerank", {"question": question, "hits": hits}, {})])
    assert isinstance(reranked, list)
    return reranked


@pytest.fixture
def engine() -> Reranking:
    return Reranking(RerankingConfig())


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("What is Australia's capital?", 1),
        ("Which city lies on the Seine?", 0),
        ("Where were the Olympic Games hosted?", 2),
        ("Where does the harbour lead?", 2),
    ],
)
def test_passage_with_the_words_of_the_question_wins(engine: Reranking, question: str, best: int) -> None:
    assert rerank(engine, question, hits_of(0.5, 0.5, 0.5, 0.5))[0].chunk.index == best


def test_score_of_the_search_counts_where_words_do_not(engine: Reranking) -> None:
    hits = rerank(engine, "What is it?", hits_of(0.1, 0.2, 0.4, 0.3))
    assert [hit.chunk.index for hit in hits] == [2, 3, 1, 0]


@given(st.text(), st.lists(st.floats(allow_nan=False), min_size=4, max_size=4))
def test_any_score_is_between_0_and_1(question: str, scores: list[float]) -> None:
    hits = rerank(Reranking(RerankingConfig()), question, hits_of(*scores))
    assert all(0 <= hit.score <= 1 for hit in hits)
    assert hits == document_order(hits)


def test_score_depends_on_the_pair_alone(engine: Reranking) -> None:
    hits = hits_of(0.5, 0.1, 0.9, 0.3)
    question = "capital of France"
    together = rerank(engine, question, hits)
    alone = [rerank(engine, question, [hit])[0] for hit in hits]
    assert together == document_order(alone)


def test_what_is_no_hit_is_a_bad_reply(engine: Reranking) -> None:
    with pytest.raises(BadReply, match="hits"):
        rerank(engine, "question", ["text"])  # type: ignore[list-item]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights that scores pairs."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("cross-encoder")
    words = sorted({word.strip(".,?").lower() for passage in PASSAGES for word in passage.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (path / "vocab.txt").write_text("\n".join(vocabulary))
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    transformers.set_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return path


def test_cross_encoder_scores_all_pairs_of_a_batch_in_one_call(cross_encoder: Path) -> None:
    engine = Reranking(RerankingConfig(model=str(cross_encoder)))
    hits = hits_of(0.5, 0.5, 0.5, 0.5)
    tasks = [
        Task(id, "q", "s", "rerank", {"question": question, "hits": hits[: id + 1]}, {})
        for id, question in enumerate(["the capital", "Sydney", "France"])
    ]
    answers = engine.run(tasks)
    for task, answer in zip(tasks, answers, strict=True):
        assert isinstance(answer, list)
        assert answer == document_order(answer)
        (alone,) = engine.run([task])
        assert isinstance(alone, list)
        assert [hit.chunk for hit in answer] == [hit.chunk for hit in alone]
        assert [hit.score for hit in answer] == pytest.approx([hit.score for hit in alone], abs=1e-5)


def test_unusable_model_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        Reranking(RerankingConfig(model=str(tmp_path / "missing")))
