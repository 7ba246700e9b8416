"""Engines for virtual time: they have measured speeds, and outputs of the right size.

Speeds are those of an RTX 3090 with Llama-2-7b-chat (fp16), bge-large-en-v1.5, bge-reranker-large and
pgvector, one instance of each and two LLM instances, the setting of the Teola paper (§7). `TIMINGS` has the
source of each number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Document, Section

CHUNK_CHARS = 400
QUESTION_WORDS = 12


@dataclass(frozen=True, slots=True)
class Timing:
    """The profile of an engine, and its source."""

    engine: str
    profile: Profile
    source: str


_LOG = "logs of the Teola prototype's advanced RAG example, RTX 3090, 666 passages of 330-480 characters"
TIMINGS = (
    Timing(
        "chunking",
        Profile(base_s=0.0, per_unit_s=0.008, max_efficient_batch=1),
        "assumed, 8 ms per document: the prototype's passages come ready cut",
    ),
    Timing(
        "embedding",
        Profile(base_s=0.025, per_unit_s=0.00105, max_efficient_batch=128),
        f"{_LOG}: 128 texts in 0.158-0.164 s, 26 in 0.053 s, 1 in 0.026-0.041 s; 128 costs no throughput",
    ),
    Timing(
        "vectors",
        Profile(base_s=0.0015, per_unit_s=0.00052, max_efficient_batch=1024),
        f"{_LOG}: 666 rows in 0.348 s; 1 search in 1.9-3.3 ms. 3 searches took 5.8 ms, here 3.1",
    ),
    Timing(
        "reranking",
        Profile(base_s=0.014, per_unit_s=0.0017, max_efficient_batch=64),
        f"{_LOG}: 60 pairs in 116 ms, 20 pairs in 47-49 ms",
    ),
    Timing(
        "llm",
        Profile(base_s=0.010, per_unit_s=0.0003, max_efficient_batch=1, per_output_s=0.0215),
        "decode: the same logs, 20 tokens in 0.435 s. Prefill: Vidur's profile of Llama-2-7b on an A100"
        " (32 layers: 4.3 ms + 0.064 ms/token, attention left out), scaled by peak fp16 with fp32"
        " accumulation (312 to 71 TFLOP/s) and the base by memory bandwidth (2.0 to 0.94 TB/s)",
    ),
)
TOY_PREFILL = Timing(
    "llm",
    Profile(base_s=0.2, per_unit_s=0.000586, max_efficient_batch=1, per_output_s=0.0215),
    "prefill as in the Teola paper's toy example: 512 tokens in 0.5 s, 1024 in 0.8 s; decode as above",
)
PROFILES: Mapping[str, Profile] = {timing.engine: timing.profile for timing in TIMINGS}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the scripted LLM's outputs, in tokens of the simulator (four characters each)."""

    num_queries: int = 3
    query_tokens: int = 20
    answer_tokens: int = 10


class LengthLLM(ScriptedLLM):
    """A `SteppedLLM` whose outputs have the given lengths, with different words for every prompt."""

    def __init__(self, lengths: Lengths) -> None:
        super().__init__(lambda task, decode: _write(lengths, task, decode), max_running=1)


def _write(lengths: Lengths, task: LLMTask, decode: Decode) -> str:
    words = two_letter_words("".join(segment.text for segment in task.prompt))
    if decode.items is None:
        return " ".join(next(words) for _ in range(lengths.answer_tokens))
    num_items = min(lengths.num_queries, decode.max_items or lengths.num_queries)
    num_words = -(-(4 * lengths.query_tokens - 3) // 3)  # words of two letters that have this many tokens
    return json.dumps([" ".join(next(words) for _ in range(num_words)) for _ in range(num_items)])


def two_letter_words(seed: str) -> Iterator[str]:
    """Yield words of two letters; each one, with a space, is one token of the simulator."""
    block = 0
    while True:
        digest = blake2b(f"{block} {seed}".encode(), digest_size=64).digest()
        for place in range(0, len(digest), 2):
            yield chr(97 + digest[place] % 26) + chr(97 + digest[place + 1] % 26)
        block += 1


def virtual_engines(
    lengths: Lengths = Lengths(),
    *,
    policy: str = "topology_aware",
    llm: Profile | None = None,
    llm_instances: int = 2,
) -> list[Deployment]:
    """Two LLM instances and one of every other engine."""
    engines = [
        deploy(
            name,
            FakeBatch,
            FakeBatchConfig(),
            policy=policy,
            keeps_state=name == "vectors",
            profile=profile,
        )
        for name, profile in PROFILES.items()
        if name != "llm"
    ]
    engines.append(
        deploy(
            "llm",
            LengthLLM,
            lengths,
            instances=llm_instances,
            contract="llm",
            policy=policy,
            keeps_state=True,
            profile=llm or PROFILES["llm"],
        )
    )
    return engines


def documents(num_chunks: int, *, seed: int = 0) -> list[Document]:
    """Make one document that is cut into `num_chunks` chunks, because each section is a bit shorter than a
    chunk."""
    sections = [
        Section(" ".join(f"{seed}-{number}-{word:02}" for word in range(64))[:CHUNK_CHARS].rstrip())
        for number in range(num_chunks)
    ]
    return [Document(f"document{seed}.txt", tuple(sections), f"{seed:064x}")]


def question(seed: int = 0) -> str:
    """Make a question of a dozen words, different for each seed."""
    words = two_letter_words(f"question {seed}")
    return " ".join(next(words) + next(words) for _ in range(QUESTION_WORDS)) + "?"


def inputs(num_chunks: int, seed: int = 0) -> dict[str, object]:
    """Inputs of a query, for both apps."""
    return {"question": question(seed), "files": documents(num_chunks, seed=seed)}


def profiles_of(engines: Sequence[Deployment]) -> dict[str, Profile]:
    """Return profiles by engine, for a plan cache."""
    return {engine.name: engine.profile for engine in engines}
