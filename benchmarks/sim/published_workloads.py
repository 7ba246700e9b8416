"""Workloads by name: requests of a published trace, or drawn like them, at generated times of arrival.

Trace files are looked for in the folder `traces` of the data, by the names in `WORKLOADS`.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmarks.common.arrivals import bursts, poisson, zipf
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import ConfigError
from stretto.sched.messages import Submit
from stretto.sim.synthetic_output import filler
from stretto.sim.traces import TraceRequest, read_azure
from stretto.trace.agents.mooncake import read_mooncake_trace
from stretto.trace.agents.requests import SizedPrompt
from stretto.trace.lines import text_lines

ARRIVALS: Mapping[str, Callable[[float, int], Iterator[float]]] = {"poisson": poisson, "bursts": bursts}
"""Table of functions from (mean rate per second, seed) to endless times of arrival in seconds."""

BLOCK_TOKENS = 512
_NUM_DRAWN = 10_000
_NUM_DOCUMENTS = 200
_DOCUMENT_BLOCKS = 4
_EXPONENT = 1.0


@dataclass(frozen=True, slots=True)
class PublishedRequest(TraceRequest):
    """A request of a trace that may share the beginning of its prompt with others.

    Attributes:
        blocks: ids of the prompt's pieces of `BLOCK_TOKENS` tokens (the last may be shorter): equal ids in
            equal places are equal prefixes. An empty tuple shares nothing with others.
    """

    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedWorkload:
    """A set of LLM requests (lengths and shared prefixes) to choose from, without times of arrival.

    Attributes:
        source: origin of the requests, in words.
        in_turn: whether requests are taken one after the other, because neighbours share prefixes; otherwise
            they are drawn at random.
    """

    requests: tuple[PublishedRequest, ...]
    source: str
    in_turn: bool = False

    def arriving(self, arrivals_s: Iterable[float], seed: int) -> Iterator[PublishedRequest]:
        """Yield one request of the workload for each time of arrival in `arrivals_s`. If requests are taken
        one after the other, it ends with the last of them.
        """
        draw = random.Random(f"load/{seed}")
        if self.in_turn:
            for request, at_s in zip(self.requests, arrivals_s, strict=False):
                yield replace(request, arrival_s=at_s)
            return
        for at_s in arrivals_s:
            yield replace(draw.choice(self.requests), arrival_s=at_s)


def workload(name: str, data: Path | None, seed: int, max_tokens: int) -> PublishedWorkload:
    """Return the workload (set of LLM requests) of this name, without requests whose prompt and output have
    more than `max_tokens` tokens together.

    Args:
        name: name of the workload, a key of `WORKLOADS`.
        data: folder that holds the folder `traces`; drawn workloads need none.

    Raises:
        ConfigError: the name is unknown, `data` is missing, or no request is short enough.
        TraceError: the file cannot be used.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    found = WORKLOADS[name](data, seed)
    fitting = [
        replace(request, output_tokens=max(1, request.output_tokens))
        for request in found.requests
        if request.prompt_tokens + max(1, request.output_tokens) <= max_tokens
    ]
    if not fitting:
        raise ConfigError(f"workload {name!r}: no request has at most {max_tokens} tokens")
    return replace(found, requests=tuple(fitting))


def lognormal_lengths(num: int, seed: int) -> list[tuple[int, int]]:
    """Return `num` random pairs (prompt tokens, output tokens), distributed like those in Azure's trace of
    conversations, which is not needed for it.

    Prompts have a median of 1020 tokens and a mean of 1155, outputs 129 and 211; at most 4096 and 1000.
    """
    draw = random.Random(f"lognormal/{seed}")
    return [
        (
            min(4096, max(2, round(draw.lognormvariate(6.93, 0.62)))),
            min(1000, max(1, round(draw.lognormvariate(4.92, 0.93)))),
        )
        for _ in range(num)
    ]


def prompt_text(name: str, request: PublishedRequest) -> str:
    """Return a meaningless text of as many tokens as a trace request's prompt has; requests that share blocks
    of the prompt share text.
    """
    if not request.blocks:
        return filler(name, request.prompt_tokens)
    text = "".join(map(_block_text, request.blocks))
    return text[: 4 * request.prompt_tokens - 1]


@lru_cache(maxsize=4096)
def _block_text(block: int) -> str:
    """Return the text of a block of a prompt, which may be part of many requests."""
    return filler(f"block {block}", BLOCK_TOKENS) + "|"


def submits(
    requests: Iterable[PublishedRequest],
    egraph: ExecutionGraph,
    note_length: Callable[[str, int], None],
) -> Iterator[tuple[float, Submit]]:
    """Yield queries for the simulator: for each LLM request of a trace an (arrival in seconds, `Submit`) pair
    of a query that runs `egraph`.

    Args:
        note_length: function that is called with each query's name and output length, in tokens.
    """
    for number, request in enumerate(requests):
        query = f"r{number}"
        note_length(query, request.output_tokens)
        yield request.arrival_s, Submit(query, egraph, {"prompt": prompt_text(query, request)})


def _trace(file: str, read: Callable[[Path], list[PublishedRequest]], *, in_turn: bool = False) -> _Source:
    def found(data: Path | None, seed: int) -> PublishedWorkload:
        if data is None:
            raise ConfigError(f"this workload needs --data DIR, with traces/{file}")
        return PublishedWorkload(tuple(read(data / "traces" / file)), f"of {file}", in_turn)

    return found


def _of_azure(path: Path) -> list[PublishedRequest]:
    return [PublishedRequest(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in read_azure(path)]


def _of_mooncake(path: Path) -> list[PublishedRequest]:
    """Return the requests of Mooncake's trace, whose prompts are given by their lengths and blocks."""
    found = []
    for one in read_mooncake_trace(path).requests:
        assert isinstance(one.prompt, SizedPrompt)
        prompt = one.prompt
        found.append(
            PublishedRequest(one.arrival_s, prompt.num_tokens, one.output_tokens or 0, tuple(prompt.blocks))
        )
    return found


def _of_lengths(path: Path) -> list[PublishedRequest]:
    """Return requests with the lengths of a CSV file without times, such as that of arXiv summarisation."""
    return [
        PublishedRequest(0.0, int(row["prompt_tokens"]), int(row["output_tokens"]))
        for row in csv.DictReader(text_lines(path))
    ]


def _like_conversations(data: Path | None, seed: int) -> PublishedWorkload:
    lengths = lognormal_lengths(_NUM_DRAWN, seed)
    return PublishedWorkload(
        tuple(PublishedRequest(0.0, *pair) for pair in lengths), "drawn like Azure's conversations of 2023"
    )


def _about_documents(data: Path | None, seed: int) -> PublishedWorkload:
    """Questions that each begin with a document; document k is used as often as 1 / (k + 1) (Zipf)."""
    documents = zipf(_NUM_DOCUMENTS, _EXPONENT, seed)
    requests = []
    for number, (question, output) in enumerate(lognormal_lengths(_NUM_DRAWN, seed)):
        first = next(documents) * _DOCUMENT_BLOCKS
        own = -(-question // BLOCK_TOKENS)
        own_first = (_NUM_DOCUMENTS + number) * 16
        blocks = (*range(first, first + _DOCUMENT_BLOCKS), *range(own_first, own_first + own))
        tokens = _DOCUMENT_BLOCKS * BLOCK_TOKENS + question
        requests.append(PublishedRequest(0.0, tokens, output, blocks))
    length = _DOCUMENT_BLOCKS * BLOCK_TOKENS
    return PublishedWorkload(
        tuple(requests), f"drawn, each after one of {_NUM_DOCUMENTS} documents of {length} tokens (Zipf)"
    )


_Source = Callable[[Path | None, int], PublishedWorkload]
WORKLOADS: Mapping[str, _Source] = {
    "like-conversations": _like_conversations,
    "about-documents": _about_documents,
    "azure-conversations": _trace("azure_llm_2023_conv.csv", _of_azure),
    "azure-code": _trace("azure_llm_2023_code.csv", _of_azure),
    "mooncake": _trace("mooncake_synthetic.jsonl.gz", _of_mooncake, in_turn=True),
    "arxiv": _trace("arxiv_summarization_lengths.csv", _of_lengths),
}
