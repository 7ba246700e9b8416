"""Measures passes 3 and 4 on an unmodified vLLM server: advanced RAG, one question at a time.

The documents are indexed before. The LLM is a small trained model behind vLLM's CPU server, on one thread,
greedy, and gets token ids. A partial prefill is a request for one token that leaves its prompt in the
server's prefix cache; it is sent only where the adapter has learned that it pays. All other engines are those
of the command line.

Each choice of passes has its own tenant, and so its own cache salt: it finds in the cache what its earlier
questions left (the beginnings of the prompts), and nothing of the other choices. Every question is asked with
every choice in turn, each time beginning with another one.

All this runs once in float32, where the texts must be equal, and once in bfloat16.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.corpora import question_sets, questions_about, some_documents
from benchmarks.common.mini_model import MINI
from benchmarks.common.vllm_server import MODEL, NOT_INSTALLED, find_vllm, serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value, spread, versions
from benchmarks.vllm.probe import probe
from stretto.apps import advanced_rag
from stretto.apps.template import Template
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply
from stretto.model.values import ABSENT, Document, Hit
from stretto.runtime.runtime import Runtime
from stretto.trace.recorder import Recorder, Span

BASE = "prune_order"
BOTH = "prune_order,split_prefill,pipeline_decode"
VARIANTS = ("none", BASE, "prune_order,split_prefill", "prune_order,pipeline_decode", BOTH, "all", "weighed")
DTYPES = ("float32", "bfloat16")

_MAX_CHARS = 48_000
_NUM_WARM_UPS = 2
_STRICT = {"query_expansion": {"constrained": False, "fallback": False}}
"""A list that cannot be read fails the question, so that all choices of passes do the same work."""
_COLLECTION = "documents"


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """One run of one question. `first_token_s` and the token counts are those of the answering calls; those
    whose answer came whole, because nobody read its parts, have no time to a first token.
    """

    question: str
    wall_s: float
    answer: object
    sources: tuple[tuple[str, int], ...]
    first_token_s: tuple[float, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_warmed: int


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: ten minutes, or two if `quick`, with a few questions and without bfloat16.

    Raises:
        ConfigError: `options.vllm` has no vLLM, or there is no such checkpoint.
        DocumentError: `options.data` has no question set.
    """
    vllm = find_vllm(options.vllm)
    if vllm is None:
        return Report("vllm", options.seed, {}, (), (), (NOT_INSTALLED,))
    num_questions = 6 if options.quick else 20
    checkpoint = options.checkpoint or MINI
    source, documents, questions = _questions(options.data, num_questions + _NUM_WARM_UPS, options.seed)
    asked: dict[str, Mapping[str, Sequence[AnsweredQuestion]]] = {}
    rows: list[Row] = []
    notes: list[str] = []
    for dtype in DTYPES[:1] if options.quick else DTYPES:
        with serving(vllm, checkpoint, dtype=dtype, num_threads=1, say=options.say) as url:
            engines = server_engines(url, checkpoint)
            options.say(f"{dtype}: single requests")
            num_prompts = 6 if options.quick else 16
            rows += asyncio.run(probe(url, checkpoint, documents, num_prompts=num_prompts, dtype=dtype))
            asked[dtype], num_failed = asyncio.run(compare(engines, documents, questions, options, dtype))
            if num_failed:
                notes.append(f"{dtype}: {num_failed} questions left out, whose list of queries was no JSON")
    rows += [row for dtype, variants in asked.items() for row in rows_of(dtype, variants)]
    notes += [
        f"{len(questions) - _NUM_WARM_UPS} questions over {len(documents)} documents from {source};"
        f" model {checkpoint.name}",
        "speed_up: median over the questions of the time with no passes over this one; tokens: of the prompts"
        " of the calls that answer, three a question; first_token_ms: of those that were streamed; warmed:"
        " prefills answered in time",
        "each choice of passes has a cache salt of its own on the server; near-ties of logits excuse nothing",
        *(note for dtype, variants in asked.items() for note in differing(dtype, variants)),
    ]
    return Report(
        "vllm",
        options.seed,
        {"questions": num_questions, "checkpoint": checkpoint.name, "quick": options.quick},
        tuple(rows),
        goals_of(asked),
        tuple(notes),
        versions={**versions(), "vllm": vllm.version},
    )


def _questions(data: Path | None, count: int, seed: int) -> tuple[str, Sequence[Document], list[str]]:
    """Load documents and questions; returns their origin, the documents, and `count` questions."""
    if data is None:
        source, documents = some_documents(None, _MAX_CHARS)
        return source, documents, questions_about(documents, count, seed)
    first, *_ = question_sets(data, 2 * count, seed)
    return first.name, first.documents, [question.text for question in first.questions[:count]]


def server_engines(url: str, checkpoint: Path) -> list[Deployment]:
    """Return the command line's engines, which send the server token ids."""
    from stretto.engines.catalogue import local_engines
    from stretto.engines.llms import llm_engine
    from stretto.engines.openai_server import OpenAIServerConfig

    llm = llm_engine(url)
    config = llm.replicas[0].config
    assert isinstance(config, OpenAIServerConfig)
    served = replace(config, model=MODEL, tokenizer=str(checkpoint))
    return local_engines(llm=llm.changed(config=served), kept_texts=0)


async def compare(
    engines: Sequence[Deployment],
    documents: Sequence[Document],
    questions: Sequence[str],
    options: BenchmarkOptions,
    dtype: str,
) -> tuple[dict[str, list[AnsweredQuestion]], int]:
    """Ask all questions with every choice of passes. The first questions warm up and do not count.

    Returns:
        The results by choice of passes, and the number of questions left out, because a small model sometimes
        writes broken JSON, with all choices of passes.
    """
    template = advanced_rag(named_collection=True)
    asked: dict[str, list[AnsweredQuestion]] = {variant: [] for variant in VARIANTS}
    recorder = Recorder()
    num_failed = 0
    async with Runtime(engines, observers=[recorder]) as runtime:
        options.say(f"{dtype}: indexing")
        inputs = {"files": list(documents), "collection": _COLLECTION}
        for variant in VARIANTS:  # each is a tenant, with a collection of its own
            for question in questions:
                with contextlib.suppress(BadReply):
                    await runtime.run(
                        template, {"question": question, **inputs}, configuration=_STRICT, tenant=variant
                    )
                    break
        for number, question in enumerate(questions):
            options.say(f"{dtype}: question {number + 1} of {len(questions)}")
            order = [VARIANTS[(number + place) % len(VARIANTS)] for place in range(len(VARIANTS))]
            try:
                found = {order[0]: await _ask(runtime, recorder, template, question, order[0])}
            except BadReply:
                num_failed += 1
                continue
            for variant in order[1:]:
                found[variant] = await _ask(runtime, recorder, template, question, variant)
            if number >= _NUM_WARM_UPS:
                for variant, one in found.items():
                    asked[variant].append(one)
    return asked, num_failed


async def _ask(
    runtime: Runtime, recorder: Recorder, template: Template, question: str, passes: str
) -> AnsweredQuestion:
    recorder.spans.clear()
    recorder.queries.clear()
    inputs = {"question": question, "files": [], "collection": _COLLECTION}
    start_s = time.perf_counter()
    outputs = await runtime.run(template, inputs, configuration=_STRICT, passes=passes, tenant=passes)
    wall_s = time.perf_counter() - start_s
    answer, sources = outputs["answer"], outputs["sources"]
    answering = [span for span in recorder.spans if _is_answering(span)]
    usages = [span.usage for span in answering if span.usage is not None]
    warming = [span for span in recorder.spans if span.parts[0].op == "prefill"]
    return AnsweredQuestion(
        question,
        wall_s,
        None if answer is ABSENT else answer,
        tuple((hit.chunk.source, hit.chunk.index) for hit in sources if isinstance(hit, Hit)),
        tuple(span.marks_s[0] - span.start_s for span in answering if len(span.marks_s) > 1),
        sum(usage.num_prompt_tokens for usage in usages),
        sum(usage.num_cached_tokens for usage in usages),
        sum(span.usage is not None and span.usage.num_prompt_tokens > 0 for span in warming),
    )


def _is_answering(span: Span) -> bool:
    (part, *_) = span.parts
    return part.op == "decode" and part.step.startswith("draft")


def rows_of(dtype: str, asked: Mapping[str, Sequence[AnsweredQuestion]]) -> list[Row]:
    """Rows of all choices of passes."""
    none = asked["none"]
    rows = []
    for variant, runs in asked.items():
        num_equal = sum(_text(one) == _text(base) for one, base in zip(runs, none, strict=True))
        first_s = [seconds for one in runs for seconds in one.first_token_s]
        values: dict[str, Value] = {
            **spread([one.wall_s for one in runs], "s"),
            "saved_ms": 1000
            * statistics.median(base.wall_s - one.wall_s for one, base in zip(runs, none, strict=True)),
            "speed_up": statistics.median(_ratios(none, runs)),
            "equal": f"{num_equal} of {len(runs)}",
            "first_token_ms": 1000 * statistics.median(first_s) if first_s else "not streamed",
            "prompt_tokens": statistics.median(one.num_prompt_tokens for one in runs),
            "cached_tokens": statistics.median(one.num_cached_tokens for one in runs),
            "warmed": statistics.median(one.num_warmed for one in runs),
        }
        rows.append(Row(f"advanced RAG on vLLM, {dtype}", variant, values))
    return rows


def differing(dtype: str, asked: Mapping[str, Sequence[AnsweredQuestion]]) -> list[str]:
    """Questions whose text differs from the one without passes."""
    return [
        f"{dtype}, {variant}: another text for {one.question!r}"
        for variant, runs in asked.items()
        for one, base in zip(runs, asked["none"], strict=True)
        if _text(one) != _text(base)
    ]


def _text(one: AnsweredQuestion) -> tuple[object, object]:
    return one.answer, one.sources


def _ratios(slow: Sequence[AnsweredQuestion], fast: Sequence[AnsweredQuestion]) -> list[float]:
    return [a.wall_s / b.wall_s for a, b in zip(slow, fast, strict=True)]


def goals_of(asked: Mapping[str, Mapping[str, Sequence[AnsweredQuestion]]]) -> tuple[Goal, ...]:
    """Goals for runs by type of numbers and choice of passes."""
    goals = []
    for dtype, variants in asked.items():
        both, every = (
            statistics.median(_ratios(variants[slow], variants[fast]))
            for slow, fast in ((BASE, BOTH), ("none", "weighed"))
        )
        goals += [
            Goal(f"{dtype}: speed-up by passes 3 and 4 over pass 1 alone", both, 1.0, "higher"),
            Goal(f"{dtype}: speed-up by weighed passes over none", every, 1.0, "higher"),
        ]
    exact = asked[DTYPES[0]]
    share = 1 - len(differing(DTYPES[0], exact)) / sum(map(len, exact.values()))
    return (*goals, Goal(f"{DTYPES[0]}: share of equal texts", share, 1.0, "higher"))
