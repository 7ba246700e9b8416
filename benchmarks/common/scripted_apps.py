"""The three apps with real engines: settings, inputs, questions, and the engines for a scheme."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.teola.schemes import Scheme
from stretto.model.deployment import Deployment
from stretto.model.values import Document

_WORDS = 4


def configuration(app: str, answer_tokens: int) -> dict[str, dict[str, object]]:
    """Configuration of an app that limits the tokens of an answer."""
    steps = ("proxy", "answer") if app == "search" else ("synthesis",)
    return {step: {"max_tokens": answer_tokens} for step in steps}


def inputs_of(app: str, question: str, documents: Sequence[Document]) -> dict[str, object]:
    """Inputs of a query."""
    inputs: dict[str, object] = {"question": question}
    return inputs if app == "search" else {**inputs, "files": list(documents)}


def fresh_questions(documents: Sequence[Document], count: int, seed: str) -> list[str]:
    """Make `count` different questions, each about a few consecutive words; another `seed` gives others.

    The questions differ from their first words on. So a prompt finds nothing of another question's prompt in
    a cache, except for the constant beginning of all prompts.
    """
    texts = [section.text.split() for document in documents for section in document.sections]
    long = [words for words in texts if len(words) > _WORDS] or texts
    generator = random.Random(seed)
    questions = []
    for number in range(1, count + 1):
        words = generator.choice(long)
        start = generator.randrange(max(1, len(words) - _WORDS))
        place = " ".join(words[start : start + _WORDS])
        questions.append(f"{place}: what is said about this, and why? ({seed}, no. {number})")
    return questions


def scripted_engines(
    scheme: Scheme, llm_config: object, documents: Sequence[Document], vectors: Deployment | None = None
) -> list[Deployment]:
    """What the apps run on, one instance of each engine; search is in `documents`.

    Args:
        llm_config: `TransformerConfig` of both LLMs.
        vectors: engine for vector search; None for one in memory.
    """
    from benchmarks.common.scripted_transformer import ForgetfulLLM, ScriptedTransformer
    from stretto.engines.catalogue import local_engines, search_engines
    from stretto.engines.llms import llm_engine

    executable = ScriptedTransformer if scheme.caches else ForgetfulLLM
    llm = llm_engine(None).changed(executable=executable, config=llm_config)
    engines = [
        *local_engines(llm=llm, vectors=vectors, kept_texts=0),
        *search_engines(llm, None, documents)[1:],
    ]
    return [engine.changed(policy=scheme.policy, fill_timeout_s=scheme.fill_timeout_s) for engine in engines]
