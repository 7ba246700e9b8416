"""Measures a checkpoint on questions that were not used for training.

The questions are the English part of XQuAD, which is taken from the development set of SQuAD v1.1.

The model runs in the in-process engine, in float32, greedily, as the ready-made apps would run it.
An answer *hits* if, of all sentences of its context, the one that shares most words with it is the
sentence that holds the known answer (and at least half of the words, by F1).
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from stretto.apps.components.prompt_segments import load_prompt, parse_prompt
from stretto.documents.sentences import split_sentences
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.graph.graph import Constant
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode, Done, LLMTask, Task
from stretto.model.values import Document, Prompt, Section, Segment, as_text
from tools.training.baselines import BM25
from tools.training.corpus import paragraph_sentences
from tools.training.examples import NO_ANSWER
from tools.training.questions import content_words

HELD_OUT = "squad_xquad_en"
_ANSWER_TOKENS = 96
_LIST_TOKENS = 200
_NUM_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class EvaluationItem:
    """A question, its answer, the sentence and the paragraph with the answer, and the next paragraph."""

    question: str
    answer: str
    sentence: str
    paragraph: str
    other_paragraph: str
    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A ready-made prompt with its values."""

    prompt: str
    values: dict[str, str]
    num_queries: int = 3


Run = Callable[[Sequence[Call]], list[str]]


def evaluate(model: Path, data: Path, num_questions: int, report: Callable[[str], None]) -> dict[str, float]:
    """Compute all measures by name, as shares from 0 to 1, on `num_questions` spread evenly over the set."""
    items, paragraphs = read_items(data / HELD_OUT, num_questions)
    run = engine_run(TransformerConfig(model, num_threads=None, max_running=32))
    scores: dict[str, float] = {"questions": len(items)}
    bm25 = BM25(s for p in paragraphs for s, _ in paragraph_sentences(p))
    for measure in (_gold, _three_chunks, _unanswerable, _judge, _refine, _combine, _expand, _summarise):
        if measure is _three_chunks:
            items = retrieve(items, data / HELD_OUT)
        found = measure(items, run, bm25)
        scores |= found
        report(json.dumps({name: round(value, 4) for name, value in found.items()}))
    return scores


def read_items(folder: Path, num_questions: int) -> tuple[list[EvaluationItem], list[str]]:
    """Read questions of the held-out set, and all its paragraphs.

    Raises:
        ConfigError: the set is not there.
    """
    if not (folder / "questions.jsonl").is_file():
        raise ConfigError(f"no {HELD_OUT} in {folder.parent}")
    documents = {row["doc_id"]: row["paragraphs"] for row in _rows(folder / "documents.jsonl")}
    rows = _rows(folder / "questions.jsonl")
    step = max(1.0, len(rows) / num_questions)
    items = []
    for row in (rows[int(n * step)] for n in range(min(num_questions, len(rows)))):
        paragraphs = documents[row["doc_id"]]
        paragraph = paragraphs[row["paragraph"]]
        other = paragraphs[(row["paragraph"] + 1) % len(paragraphs)]
        sentence = _sentence_at(paragraph, row["answer_start"])
        items.append(EvaluationItem(row["question"], row["answer"], sentence, paragraph, other))
    return items, [paragraph for paragraphs in documents.values() for paragraph in paragraphs]


def retrieve(items: Sequence[EvaluationItem], folder: Path) -> list[EvaluationItem]:
    """Add to each item the three chunks of all documents whose vectors are nearest to the question's."""
    chunking, embedding = Chunking(ChunkingConfig()), Embedding(EmbeddingConfig(num_threads=None))
    files = [
        Document(row["doc_id"], (Section("\n\n".join(row["paragraphs"])),), row["doc_id"])
        for row in _rows(folder / "documents.jsonl")
    ]
    config = {"tokens": 256, "overlap": 30}
    task = Task(0, "evaluation", "chunks", "chunk", {"files": files}, config, len(files), ("files",))
    (lists,) = chunking.run([task])
    assert isinstance(lists, list)
    chunks = [as_text(chunk) for found in lists for chunk in found]

    def vectors(texts: Sequence[str]) -> np.ndarray:
        task = Task(0, "evaluation", "vectors", "embed", {"texts": list(texts)}, {}, len(texts), ("texts",))
        (found,) = embedding.run([task])
        return np.stack(found)  # type: ignore[call-overload,no-any-return]

    scores = vectors([item.question for item in items]) @ vectors(chunks).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_NUM_CHUNKS]
    return [
        EvaluationItem(
            item.question,
            item.answer,
            item.sentence,
            item.paragraph,
            item.other_paragraph,
            tuple(chunks[place] for place in places),
        )
        for item, places in zip(items, best, strict=True)
    ]


def engine_run(config: TransformerConfig) -> Run:
    """Make a function that fills prompts and completes them in batches, in order."""
    llm = TransformerLLM(config)

    def run(calls: Sequence[Call]) -> list[str]:
        for number, call in enumerate(calls):
            max_tokens = _LIST_TOKENS if call.prompt == "expand" else _ANSWER_TOKENS
            task = LLMTask(number, f"q{number}", call.prompt, _prompt(call), Decode(max_tokens))
            llm.admit(task, ())
        texts: dict[int, str] = {}
        while llm.has_work():
            for event in llm.step():
                if isinstance(event, Done):
                    texts[event.task] = str(event.value)
        for number in range(len(calls)):
            llm.release(f"q{number}")
        return [texts.get(number, "") for number in range(len(calls))]

    return run


def _prompt(call: Call) -> Prompt:
    known = (("num_queries", str(call.num_queries)),) if call.prompt == "expand" else ()
    parts = parse_prompt(load_prompt(call.prompt), frozenset(call.values), known)
    return tuple(
        Segment(part.text) if isinstance(part, Constant) else Segment(call.values[part.port], part.port)
        for part in parts
    )


def _answered(
    items: Sequence[EvaluationItem], contexts: Sequence[str], run: Run, bm25: BM25, name: str
) -> dict[str, float]:
    calls = [
        Call("answer", {"question": item.question, "context": context})
        for item, context in zip(items, contexts, strict=True)
    ]
    outputs = run(calls)
    rng = Random(0)
    hits, bm25_hits, random_hits, f1, f1_sentence, copied, refused, held = [], [], [], [], [], [], [], []
    bm25_f1, random_f1 = [], []
    for item, context, output in zip(items, contexts, outputs, strict=True):
        sentences = [sentence for sentence, _ in paragraph_sentences(context)]
        best, any_one = sentences[bm25.best(item.question, sentences)], rng.choice(sentences)
        hits.append(is_hit(output, item.sentence, sentences))
        bm25_hits.append(is_hit(best, item.sentence, sentences))
        random_hits.append(sum(s == item.sentence for s in sentences) / len(sentences))
        f1.append(token_f1(output, item.answer))
        f1_sentence.append(token_f1(output, item.sentence))
        bm25_f1.append(token_f1(best, item.answer))
        random_f1.append(token_f1(any_one, item.answer))
        copied.append(output in " ".join(sentences))
        refused.append(output == NO_ANSWER)
        held.append(item.answer in output)
    return {
        f"{name}: sentence hit": _mean(hits),
        f"{name}: sentence hit, BM25": _mean(bm25_hits),
        f"{name}: sentence hit, random": _mean(random_hits),
        f"{name}: answer in output": _mean(held),
        f"{name}: token F1": _mean(f1),
        f"{name}: token F1, BM25": _mean(bm25_f1),
        f"{name}: token F1, random": _mean(random_f1),
        f"{name}: token F1 with the answer's sentence": _mean(f1_sentence),
        f"{name}: copied word for word": _mean(copied),
        f"{name}: refused": _mean(refused),
    }


def _gold(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    return _answered(items, [item.paragraph for item in items], run, bm25, "gold paragraph")


def _three_chunks(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    return _answered(items, ["\n\n".join(item.chunks) for item in items], run, bm25, "three chunks")


def _unanswerable(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure questions whose context is another paragraph of the article."""
    calls = [Call("answer", {"question": i.question, "context": i.other_paragraph}) for i in items]
    return {"other paragraph: refused": _mean([output == NO_ANSWER for output in run(calls)])}


def _judge(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure verdicts on contexts and drafts, half of which should be yes."""
    texts = [
        [(item.paragraph, "yes"), (item.other_paragraph, "no"), (item.sentence, "yes"), (_wrong(item), "no")]
        for item in items
    ]
    calls = [
        Call("judge", {"question": item.question, "text": text})
        for item, four in zip(items, texts, strict=True)
        for text, _ in four
    ]
    right = [
        output == verdict
        for output, (_, verdict) in zip(run(calls), (pair for four in texts for pair in four), strict=True)
    ]
    return {
        "judge": _mean(right),
        "judge, contexts": _mean([*right[0::4], *right[1::4]]),
        "judge, drafts": _mean([*right[2::4], *right[3::4]]),
    }


def _refine(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure refinement: a draft is to be kept if the new context adds nothing, and replaced if it
    answers."""
    cases = (
        ("refine, no answer yet", lambda i: (NO_ANSWER, i.paragraph, i.sentence)),
        ("refine, a wrong draft", lambda i: (_wrong(i), i.paragraph, i.sentence)),
        ("refine, a right draft", lambda i: (i.sentence, i.other_paragraph, i.sentence)),
        ("refine, still no answer", lambda i: (NO_ANSWER, i.other_paragraph, NO_ANSWER)),
    )
    scores = {}
    for name, case in cases:
        filled = [case(item) for item in items]
        outputs = run(
            [
                Call("refine", {"question": item.question, "context": context, "draft": draft})
                for item, (draft, context, _) in zip(items, filled, strict=True)
            ]
        )
        scores[name] = _mean(
            [
                is_hit(output, wanted, [draft, NO_ANSWER, *(s for s, _ in paragraph_sentences(context))])
                for output, (draft, context, wanted) in zip(outputs, filled, strict=True)
            ]
        )
    return {"refine": _mean(list(scores.values())), **scores}


def _combine(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure combining three drafts: a right one, a wrong one, and one that says that it does not know."""
    rng = Random(0)
    calls, drafts = [], []
    for item in items:
        three = [item.sentence, _wrong(item), NO_ANSWER]
        rng.shuffle(three)
        drafts.append(three)
        calls.append(Call("combine", {"question": item.question, "drafts": "\n\n".join(three)}))
    outputs = run(calls)
    return {
        "combine": _mean(
            [is_hit(o, i.sentence, three) for o, i, three in zip(outputs, items, drafts, strict=True)]
        )
    }


def _expand(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure expansion to lists of 1 to 6 queries, without constrained decoding."""
    numbers = [3 if place % 2 else 1 + place // 2 % 6 for place in range(len(items))]
    outputs = run([Call("expand", {"question": i.question}, n) for i, n in zip(items, numbers, strict=True)])
    is_valid, has_number, kept = [], [], []
    for item, number, output in zip(items, numbers, outputs, strict=True):
        queries = _json_list(output)
        is_valid.append(bool(queries))
        has_number.append(len(queries) == number)
        words = {word.casefold() for word in content_words(item.question)}
        found = {word.casefold() for query in queries for word in content_words(query)}
        kept.append(len(words & found) / max(1, len(words)))
    return {
        "expand: valid JSON": _mean(is_valid),
        "expand: as many as asked": _mean(has_number),
        "expand: kept content words": _mean(kept),
    }


def _summarise(items: Sequence[EvaluationItem], run: Run, bm25: BM25) -> dict[str, float]:
    """Measure summaries; the wanted one is the first sentence."""
    texts = sorted({item.paragraph for item in items})
    outputs = run([Call("summarise", {"text": text}) for text in texts])
    right = []
    for text, output in zip(texts, outputs, strict=True):
        sentences = [sentence for sentence, _ in paragraph_sentences(text)]
        right.append(is_hit(output, sentences[0], sentences))
    return {"summarise": _mean(right)}


def _wrong(item: EvaluationItem) -> str:
    """A wrong draft: the last sentence of the other paragraph."""
    return paragraph_sentences(item.other_paragraph)[-1][0]


def _json_list(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def is_hit(output: str, wanted: str, sentences: Sequence[str]) -> bool:
    """Whether the output is close to `wanted`, and closer to it than to any other of `sentences`."""
    near = token_f1(output, wanted)
    return wanted in sentences and near >= 0.5 and all(token_f1(output, s) <= near for s in sentences)


def token_f1(text: str, wanted: str) -> float:
    """F1 of the shared words, without articles and punctuation. Source: SQuAD's evaluation script (Rajpurkar
    et al. 2016)."""
    found, known = Counter(_normal(text)), Counter(_normal(wanted))
    shared = sum((found & known).values())
    if not shared:
        return float(found == known)
    return 2 * shared / (sum(found.values()) + sum(known.values()))


def _normal(text: str) -> list[str]:
    bare = "".join(char for char in text.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _sentence_at(paragraph: str, place: int) -> str:
    start, end = next((a, b) for a, b in split_sentences(paragraph) if place < b)
    return " ".join(paragraph[start:end].split())


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / max(1, len(found))
