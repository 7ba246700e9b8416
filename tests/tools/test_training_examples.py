"""What the small model learns from: examples made of documents."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tools.training.corpus import Corpus, Passage, PlacedQuestion, load_corpus, read_corpus, save_corpus
from tools.training.examples import NO_ANSWER, NO_KNOWLEDGE, Example, ExampleMaker, can_answer
from tools.training.questions import content_words, make_question, rewrite

DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("documents")
    for name in ("treasure-island-opening.txt", "pep-0257.rst"):
        (folder / name).write_bytes((DOCUMENTS / name).read_bytes())
    return read_corpus(folder)


@pytest.fixture(scope="module")
def examples(corpus: Corpus) -> list[Example]:
    maker = ExampleMaker(corpus)
    return [maker.make(Random(n), 60 if n % 2 else 500) for n in range(600)]


def _of(examples: list[Example], prompt: str) -> list[Example]:
    found = [example for example in examples if example.prompt == prompt]
    assert found
    return found


def test_a_seed_gives_the_same_example(corpus: Corpus) -> None:
    one, other = ExampleMaker(corpus), ExampleMaker(corpus)
    assert [one.make(Random(n), 100) for n in range(50)] == [other.make(Random(n), 100) for n in range(50)]


def test_an_answer_is_a_sentence_of_its_context_or_says_that_there_is_none(examples: list[Example]) -> None:
    answers = _of(examples, "answer")
    for example in answers:
        assert example.answer == NO_ANSWER or example.answer in example.values["context"]
        assert example.values["question"].strip()
    assert 0.02 < sum(example.answer == NO_ANSWER for example in answers) / len(answers) < 0.3


def test_a_refined_answer_is_the_draft_or_stands_in_the_context(examples: list[Example]) -> None:
    refined = _of(examples, "refine")
    kept = [example for example in refined if example.answer == example.values["draft"]]
    for example in refined:
        assert example in kept or example.answer in example.values["context"]
    assert 0 < len(kept) < len(refined)


def test_drafts_are_joined_as_synthesis_joins_them_and_hold_the_answer(examples: list[Example]) -> None:
    for example in _of(examples, "combine"):
        assert example.answer in example.values["drafts"].split("\n\n")


def test_verdicts_are_even(examples: list[Example]) -> None:
    verdicts = [example.answer for example in _of(examples, "judge")]
    assert set(verdicts) == {"yes", "no"}
    assert 0.3 < verdicts.count("yes") / len(verdicts) < 0.7


def test_a_summary_leads_its_text(examples: list[Example]) -> None:
    for example in _of(examples, "summarise"):
        assert example.values["text"].startswith(example.answer)


def test_what_no_context_says_is_not_known(examples: list[Example]) -> None:
    assert {example.answer for example in _of(examples, "proxy")} == {NO_KNOWLEDGE}


def test_expanded_queries_are_json_of_the_number_asked_for(examples: list[Example]) -> None:
    for example in _of(examples, "expand"):
        queries = json.loads(example.answer)
        assert len(queries) == len(set(queries)) == int(example.constants["num_queries"])
        wanted = set(content_words(example.values["question"])[:10])
        assert wanted <= set(content_words(queries[0]))


@pytest.mark.parametrize("question", ["?", "is it", 'Who said "x\\y" {z}?', "a " * 300, "word " * 300])
def test_any_question_can_be_rewritten(question: str) -> None:
    for number in range(1, 7):
        assert len(json.loads(rewrite(question, number))) == number


def test_a_made_question_keeps_words_of_its_sentence() -> None:
    sentence = "The captain promised to pay Jim a silver fourpenny on the first of every month."
    shared = 0
    for seed in range(50):
        words = {word.casefold() for word in content_words(make_question(sentence, Random(seed)))}
        shared += bool(words & {word.casefold() for word in content_words(sentence)})
    assert shared >= 48


def test_headings_and_fragments_are_no_answers() -> None:
    assert can_answer("The captain lived at the old inn.")
    for sentence in ("Rationale", "see below for what follows here.", "It is so.", "The one and the other:"):
        assert not can_answer(sentence)


def test_peoples_questions_are_used_and_a_corpus_is_kept_as_it_is(tmp_path: Path) -> None:
    passage = Passage("tatqa", "a", ("Sales rose by nine percent in 2019.", "Costs fell too."), (True, False))
    corpus = Corpus((passage,), (PlacedQuestion("How much did sales rise?", 0, 0),), ("who was first?",))
    save_corpus(corpus, tmp_path / "corpus.json")
    assert load_corpus(tmp_path / "corpus.json") == corpus
    maker = ExampleMaker(corpus)
    questions = {maker.make(Random(n), 50).values.get("question") for n in range(300)}
    assert {"How much did sales rise?", "who was first?"} <= questions


def test_known_sets_are_read_without_the_demo_and_the_held_out_set(tmp_path: Path) -> None:
    def write(path: str, *rows: dict[str, object]) -> None:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("".join(json.dumps(row) + "\n" for row in rows))

    text = "# Title\n\nThe first page tells a long story. The second one is much shorter.\n"
    write(
        "corpus_prompt_book/chapters_en.jsonl",
        {"doc_id": "00b-history", "text": text},
        {"doc_id": "01-models", "text": text},
    )
    write("tatqa/documents.jsonl", {"doc_id": "t", "paragraphs": ["Sales rose by 9%. Costs fell."]})
    asked = {
        "doc_id": "t",
        "question": "How much?",
        "answer": ["9%"],
        "answer_type": "span",
        "answer_from": "text",
    }
    write("tatqa/questions.jsonl", asked, asked | {"answer_from": "table"})
    write("webquestions/test.jsonl", {"question": "who was first?"})
    write("squad_xquad_en/documents.jsonl", {"doc_id": "s", "paragraphs": ["Never read this held out text."]})
    corpus = read_corpus(tmp_path)
    assert [passage.name for passage in corpus.passages] == ["01-models#0", "t"]
    assert corpus.asked == (PlacedQuestion("How much?", 1, 0),)
    assert corpus.loose_questions == ("who was first?",)


def test_a_corpus_without_sentences_is_refused() -> None:
    with pytest.raises(ValueError, match="no sentence"):
        ExampleMaker(Corpus((Passage("documents", "a", ("Word",), (True,)),), (), ()))
