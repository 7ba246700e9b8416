"""Makes training examples: values for a ready-made prompt, and the answer to it.

Every example depends on a `Random` alone, so that a run can be repeated and resumed.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from tools.training.corpus import SHARES, Corpus, Passage
from tools.training.questions import content_words, make_question, rewrite

NO_ANSWER = "The context does not answer the question."
NO_KNOWLEDGE = "I do not know."
MAX_CHUNK_WORDS = 190  # about 256 tokens of the embedder
_MAX_ANSWER_WORDS = 60
_CAPITALISED = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b|\b\d{2,}\b")
_CONSONANTS, _VOWELS, _ENDINGS = "bdfghklmnprstvwz", "aeiou", "lnrsk"


@dataclass(frozen=True, slots=True)
class Example:
    """An example. `values` fill the variables of `prompt`, `constants` those that are known beforehand."""

    prompt: str
    values: dict[str, str]
    answer: str
    constants: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Posed:
    """A question, the sentence that answers it, and its place (None if it is in no passage)."""

    question: str
    answer: str
    passage: int
    sentence: int


class ExampleMaker:
    """Makes examples from a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        """Find possible answers in a corpus.

        Raises:
            ValueError: no sentence of the corpus can be an answer.
        """
        self._corpus = corpus
        self._answers = [_answers(passage) for passage in corpus.passages]
        by_source: dict[str, list[int]] = {}
        for place, passage in enumerate(corpus.passages):
            if self._answers[place] and len(passage.sentences) >= 2:
                by_source.setdefault(passage.source, []).append(place)
        if not by_source:
            raise ValueError("no sentence of the corpus could be an answer")
        self._by_source = list(by_source.items())
        self._source_bounds = list(accumulate(SHARES[source] for source, _ in self._by_source))
        self._bounds = {
            source: list(accumulate(len(self._answers[place]) for place in places))
            for source, places in self._by_source
        }
        tasks: tuple[tuple[float, Callable[[Random, int], Example]], ...] = (
            (0.40, self._answer),
            (0.13, self._refine),
            (0.05, self._combine),
            (0.23, self._expand),
            (0.15, self._judge),
            (0.03, self._summarise),
            (0.01, self._proxy),
        )
        self._tasks = [task for _, task in tasks]
        self._task_bounds = list(accumulate(share for share, _ in tasks))

    def make(self, rng: Random, max_words: int) -> Example:
        """Make an example whose texts have at most about `max_words` words."""
        return self._tasks[_draw(self._task_bounds, rng)](rng, max_words)

    def _answer(self, rng: Random, max_words: int) -> Example:
        posed = self._pose(rng)
        kind = rng.random()
        if kind < 0.94:
            context, answer = self._context(posed, rng, max_words, has_answer=True), posed.answer
        else:
            context, answer = self._context(posed, rng, max_words, has_answer=False), NO_ANSWER
        return _example(rng, "answer", {"question": posed.question, "context": context}, answer)

    def _refine(self, rng: Random, max_words: int) -> Example:
        posed = self._pose(rng)
        kind = rng.random()
        has_answer = kind < 0.6
        if kind < 0.25:
            draft = NO_ANSWER
        elif kind < 0.5:
            draft = self._other_sentence(posed, rng)
        elif kind < 0.95:
            draft = posed.answer
        else:
            draft = NO_ANSWER
        answer = posed.answer if has_answer else draft
        context = self._context(posed, rng, min(max_words, MAX_CHUNK_WORDS), has_answer=has_answer)
        values = {"question": posed.question, "context": context, "draft": draft}
        return _example(rng, "refine", values, answer)

    def _combine(self, rng: Random, max_words: int) -> Example:
        posed = self._pose(rng)
        wrong = [
            NO_ANSWER if rng.random() < 0.6 else self._other_sentence(posed, rng)
            for _ in range(rng.choice((1, 2, 2, 2, 3)))
        ]
        if rng.random() < 0.06:
            drafts, answer = [NO_ANSWER] * len(wrong), NO_ANSWER
        else:
            drafts, answer = [posed.answer, *wrong], posed.answer
        rng.shuffle(drafts)
        return _example(rng, "combine", {"question": posed.question, "drafts": "\n\n".join(drafts)}, answer)

    def _expand(self, rng: Random, max_words: int) -> Example:
        question = self._question(rng)
        num_queries = 3 if rng.random() < 0.5 else rng.randint(1, 6)
        constants = {"num_queries": str(num_queries)}
        return Example("expand", {"question": question}, rewrite(question, num_queries), constants)

    def _judge(self, rng: Random, max_words: int) -> Example:
        posed = self._pose(rng)
        is_yes = rng.random() < 0.5
        if rng.random() < 0.35:
            text = posed.answer if is_yes else self._wrong_draft(posed, rng)
        else:
            text = self._context(posed, rng, min(max_words, MAX_CHUNK_WORDS), has_answer=is_yes)
        values = {"question": posed.question, "text": text}
        return _example(rng, "judge", values, "yes" if is_yes else "no")

    def _summarise(self, rng: Random, max_words: int) -> Example:
        place, first = self._place(rng)
        passage = self._corpus.passages[place]
        text = _text(passage, first, _end(passage, first, rng.randint(20, max(21, max_words))))
        return _example(rng, "summarise", {"text": text}, passage.sentences[first])

    def _proxy(self, rng: Random, max_words: int) -> Example:
        return Example("proxy", {"question": self._question(rng)}, NO_KNOWLEDGE)

    def _question(self, rng: Random) -> str:
        loose = self._corpus.loose_questions
        if loose and rng.random() < 0.65:
            return rng.choice(loose)
        return self._pose(rng).question

    def _pose(self, rng: Random) -> Posed:
        asked = self._corpus.asked
        if asked and rng.random() < 0.06:
            real = rng.choice(asked)
            sentence = self._corpus.passages[real.passage].sentences[real.sentence]
            return Posed(real.question, sentence, real.passage, real.sentence)
        place, number = self._place(rng)
        sentence = self._corpus.passages[place].sentences[number]
        return Posed(make_question(sentence, rng), sentence, place, number)

    def _place(self, rng: Random) -> tuple[int, int]:
        source, places = self._by_source[_draw(self._source_bounds, rng)]
        place = places[_draw(self._bounds[source], rng)]
        return place, rng.choice(self._answers[place])

    def _context(self, posed: Posed, rng: Random, max_words: int, *, has_answer: bool) -> str:
        """Make a context with or without the answer: a window, a mixture, or several chunks."""
        words = int(30 * (max(31, max_words) / 30) ** rng.random())
        if words > MAX_CHUNK_WORDS or rng.random() < 0.2:
            return self._chunks(posed, rng, words, has_answer=has_answer)
        if rng.random() < 0.35:
            return self._mixture(posed, rng, words, has_answer=has_answer)
        return self._window(posed, rng, words, has_answer=has_answer)

    def _chunks(self, posed: Posed, rng: Random, words: int, *, has_answer: bool) -> str:
        each = min(MAX_CHUNK_WORDS, words // 3 + 10)
        chunks = [self._elsewhere(posed, rng, each) for _ in range(2)]
        chunks.append(self._window(posed, rng, each, has_answer=has_answer))
        rng.shuffle(chunks)
        return "\n\n".join(chunks)

    def _window(self, posed: Posed, rng: Random, words: int, *, has_answer: bool) -> str:
        """Make a context of the answer's neighbours, with the answer or with a gap in its place."""
        passage = self._corpus.passages[posed.passage]
        start, end = posed.sentence, posed.sentence + 1
        used = len(posed.answer.split())
        while used < words and (start > 0 or end < len(passage.sentences)):
            if start > 0 and (rng.random() < 0.5 or end == len(passage.sentences)):
                start -= 1
                used += passage.sentences[start].count(" ") + 1
            else:
                used += passage.sentences[end].count(" ") + 1
                end += 1
        if has_answer:
            return _text(passage, start, end)
        if end - start == 1 or rng.random() < 0.5:
            return self._elsewhere(posed, rng, words)
        before, behind = _text(passage, start, posed.sentence), _text(passage, posed.sentence + 1, end)
        return " ".join(part for part in (before, behind) if part)

    def _mixture(self, posed: Posed, rng: Random, words: int, *, has_answer: bool) -> str:
        """Make a context of the answer and sentences of its passage that share words with it."""
        passage = self._corpus.passages[posed.passage]
        wanted = {word.casefold() for word in content_words(posed.question)}
        pool = [n for n in range(len(passage.sentences)) if n != posed.sentence]
        pool = rng.sample(pool, min(len(pool), 40))
        scored = sorted(
            pool, key=lambda n: -len(wanted & {w.casefold() for w in passage.sentences[n].split()})
        )
        near = scored[: rng.randint(0, 3)]
        chosen = [*near, *rng.sample(scored[len(near) :], len(scored) - len(near))]
        texts, used = [], 0
        for n in chosen:
            if used >= words:
                break
            texts.append(passage.sentences[n])
            used += passage.sentences[n].count(" ") + 1
        if has_answer:
            texts.append(posed.answer)
        rng.shuffle(texts)
        return rng.choice((" ", " ", "\n\n")).join(texts)

    def _elsewhere(self, posed: Posed, rng: Random, words: int) -> str:
        """Make a context without the answer: from another passage of the same source, or far from the
        answer."""
        for _ in range(8):
            place, number = self._place(rng)
            if rng.random() < 0.5:
                place = posed.passage
                number = rng.randrange(len(self._corpus.passages[place].sentences))
            passage = self._corpus.passages[place]
            end = _end(passage, number, words)
            if posed.answer not in passage.sentences[number:end]:
                return _text(passage, number, end)
        return "Nothing is said here."

    def _other_sentence(self, posed: Posed, rng: Random) -> str:
        """Choose a sentence that is not the answer, in two of three cases from the same passage."""
        near = self._answers[posed.passage] if rng.random() < 0.67 else []
        options = [n for n in near if abs(n - posed.sentence) < 12 and n != posed.sentence]
        if options:
            return self._corpus.passages[posed.passage].sentences[rng.choice(options)]
        place, number = self._place(rng)
        other = self._corpus.passages[place].sentences[number]
        return other if other != posed.answer else NO_ANSWER

    def _wrong_draft(self, posed: Posed, rng: Random) -> str:
        return NO_ANSWER if rng.random() < 0.3 else self._other_sentence(posed, rng)


def _example(rng: Random, prompt: str, values: dict[str, str], answer: str) -> Example:
    """Make an example, sometimes with made-up names and numbers, so that copying does not depend on known
    words."""
    if rng.random() < 0.35:
        found = sorted(set(_CAPITALISED.findall(answer)))
        chosen = {word: _made_up(word, rng) for word in found if rng.random() < 0.7}
        if chosen:
            pattern = re.compile(r"\b(" + "|".join(map(re.escape, chosen)) + r")\b")

            def exchange(text: str) -> str:
                return pattern.sub(lambda match: chosen[match.group()], text)

            values = {name: exchange(text) for name, text in values.items()}
            answer = exchange(answer)
    return Example(prompt, values, answer)


def _made_up(word: str, rng: Random) -> str:
    if word[0].isdigit():
        return str(rng.randrange(10 ** (len(word) - 1), 10 ** len(word))) if len(word) < 9 else word
    syllables = [rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4))]
    return ("".join(syllables) + rng.choice(_ENDINGS)).capitalize()


def _answers(passage: Passage) -> list[int]:
    """Indices of the sentences that can be answers: whole ones, neither short nor long."""
    return [n for n, sentence in enumerate(passage.sentences) if can_answer(sentence)]


def can_answer(sentence: str) -> bool:
    """Whether a text is a whole sentence with some content and of moderate length."""
    return (
        5 <= sentence.count(" ") + 1 <= _MAX_ANSWER_WORDS
        and (sentence[0].isupper() or sentence[0] in "\"“'‘(" or sentence[0].isdigit())
        and sentence.rstrip("\"”'’)]")[-1:] in (".", "!", "?")
        and len(content_words(sentence)) >= 4
    )


def _text(passage: Passage, start: int, end: int) -> str:
    """Join the sentences of a half-open range, with a blank line between paragraphs."""
    parts: list[str] = []
    for n in range(start, end):
        if n > start:
            parts.append("\n\n" if passage.starts_paragraph[n] else " ")
        parts.append(passage.sentences[n])
    return "".join(parts)


def _end(passage: Passage, start: int, words: int) -> int:
    """End of a window of about `words` words."""
    end, used = start, 0
    while end < len(passage.sentences) and (used < words or end == start):
        used += passage.sentences[end].count(" ") + 1
        end += 1
    return end


def _draw(bounds: Sequence[float], rng: Random) -> int:
    """Draw an index with weights whose cumulative sums are `bounds`."""
    return min(bisect(bounds, rng.random() * bounds[-1]), len(bounds) - 1)
