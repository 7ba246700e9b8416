"""An extractive stand-in for a language model: no weights, no network, always the same answer.

The stand-in is *not* a language model. It reads the named segments of a prompt (`question`, `context`,
`draft`, or several `drafts` to combine) and copies the sentences that fit. It judges with yes or no whether a
`text` fits a `question`. That is enough to run every workflow on a machine without a model; the answers are
sentences of the user's own documents.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Prompt

NO_ANSWER = "The context does not answer this question."

_STOP_WORDS = frozenset(
    """a about all also am an and any are as at be because been but by can could did do does for from get had
    has have how i if in into is it its many may me mean means might more most much must my no not of on or
    our please say says shall should so some such tell than that the their them then there these they this
    those to us was we were what when where which while who whom whose why will with would you
    your""".split()  # noqa: SIM905
)
_MAX_SENTENCE_WORDS = 60
_MARKS = ".,;:!?\"'()"
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[a-z]|e\.g|i\.e|cf|etc|vs|fig|mr|mrs|ms|dr|prof|st)\.$", re.I)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[`*]*[A-Z0-9])")
_PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)")
_HEADING = re.compile(r"^.*\n[ \t]*[=~^*_-]{3,}[ \t]*$|^[ \t]*#+[ \t].*$|[=~^*_-]{4,}", re.M)
_LIST_MARKER = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class StandInConfig:
    """Configuration of `StandIn`, an LLM engine without a model whose answers are made of its prompts.

    At most `max_running` sequences run at the same time.
    """

    max_running: int = 16


class StandIn(ScriptedLLM):
    """An LLM engine without a model: it answers with sentences quoted from the prompt's context."""

    def __init__(self, config: StandInConfig) -> None:
        super().__init__(_answer, config.max_running)


def _answer(task: LLMTask, decode: Decode) -> str:
    named = [segment.text for segment in task.prompt if segment.name is not None]
    question, draft = _segment(task.prompt, "question"), _segment(task.prompt, "draft")
    context = _segment(task.prompt, "context") or _segment(task.prompt, "drafts").replace(NO_ANSWER, "")
    if decode.items is not None:
        topic = question or (named[-1] if named else "")
        num_items = 3 if decode.max_items is None else decode.max_items
        return json.dumps(reformulate(topic, num_items, decode.max_tokens), ensure_ascii=False)
    judged = _segment(task.prompt, "text")
    if question and judged and not context and not draft:
        return (
            "no" if judged.strip() == NO_ANSWER or quoted_answer(question, judged, "") == NO_ANSWER else "yes"
        )
    if question:
        return quoted_answer(question, context, draft)
    source = context or (named[-1] if named else "")
    return next(iter(sentences(source)), source.strip())


def _segment(prompt: Prompt, name: str) -> str:
    return "\n\n".join(segment.text for segment in prompt if segment.name == name)


def reformulate(question: str, num_items: int, max_words: int) -> list[str]:
    """Return up to `num_items` different versions of a question, with at most `max_words` words in all."""
    words = question.split()
    keywords = [word.strip(_MARKS) for word in words if _is_keyword(word)]
    runs = [list(run) for is_run, run in groupby(words, key=_is_keyword) if is_run]
    subject = [word.strip(_MARKS) for word in max(runs, key=len, default=[])]
    variants = [
        [*words[:-1], words[-1].rstrip(" ?!.")] if words else [],
        keywords,
        ["definition", "of", *subject],
        ["examples", "of", *subject],
        ["explain", *keywords],
        subject,
    ]
    distinct = {" ".join(variant).casefold(): variant for variant in reversed(variants) if keywords}
    chosen = [variant for variant in variants if variant in distinct.values()][:num_items]
    return [" ".join(variant[: max(1, max_words // len(chosen))]) for variant in chosen]


def _is_keyword(word: str) -> bool:
    bare = word.strip(_MARKS).casefold()
    return bool(bare) and bare not in _STOP_WORDS


def quoted_answer(question: str, context: str, draft: str) -> str:
    """Return the one or two sentences of `context` that best answer `question`, judged by the words they
    share.

    Returns `draft` if no sentence fits better than that, and `NO_ANSWER` if nothing fits.
    """
    candidates = sentences(context)
    drafted = [] if draft.strip() == NO_ANSWER else sentences(draft)
    weights = _weights(question, [*candidates, *drafted])
    best = max(candidates, key=lambda sentence: _fit(sentence, weights), default="")
    best_fit = _fit(best, weights)
    if drafted and best_fit <= max(_fit(sentence, weights) for sentence in drafted):
        return draft.strip()
    if best_fit == 0:
        return NO_ANSWER
    missing = {term: weight for term, weight in weights.items() if term not in _terms(best)}
    second = max(candidates, key=lambda sentence: _fit(sentence, missing))
    if 3 * _fit(second, missing) < best_fit:
        return best
    return " ".join(sorted((best, second), key=candidates.index))


def sentences(text: str) -> list[str]:
    """Split a text into its sentences; return each on one line, without headings and list markers.

    Very long sentences are cut short.
    """
    found: list[str] = []
    for paragraph in _PARAGRAPH_END.split(_HEADING.sub("\n\n", text)):
        line = " ".join(_LIST_MARKER.sub("", paragraph).split())
        start = 0
        for end in _SENTENCE_END.finditer(line):
            if not _ABBREVIATION.search(line[start : end.start()]):
                found.append(line[start : end.end()].strip())
                start = end.end()
        found.append(line[start:])
    return [_clip(sentence) for sentence in found if sentence]


def _clip(sentence: str) -> str:
    words = sentence.split()
    return " ".join([*words[:_MAX_SENTENCE_WORDS], "…"]) if len(words) > _MAX_SENTENCE_WORDS else sentence


def _terms(text: str) -> set[str]:
    """Content words of a text, without common endings."""
    words = re.findall(r"\w+", text.casefold())
    return {
        re.sub(r"(?<=\w{3})(?:ies|es|s|ing|ed|e|y)$", "", word) for word in words if word not in _STOP_WORDS
    }


def _weights(question: str, candidates: Sequence[str]) -> dict[str, float]:
    """Weight of each term of the question: the rarer among the candidates, the larger."""
    frequency = Counter(term for sentence in candidates for term in _terms(sentence))
    return {
        term: math.log(1 + (1 + len(candidates)) / (1 + frequency[term])) for term in sorted(_terms(question))
    }


def _fit(sentence: str, weights: dict[str, float]) -> float:
    """Weight of a sentence's shared terms; 0 below a quarter of all, and less for fragments, questions and
    long sentences."""
    terms = _terms(sentence)
    shared = sum(weight for term, weight in weights.items() if term in terms)
    if shared == 0 or 4 * shared < sum(weights.values()):
        return 0.0
    is_whole = sentence[-1:] in ".!\"'”’)" and not sentence[:1].islower()
    return shared * (1.0 if is_whole else 0.5) / (1 + len(sentence.split()) / 60)
