"""Workloads by name: requests of a published trace, or drawn like them, at generated times of arrival.

Trace files are looked for in the folder `traces` of the data, by the names in `WORKLOADS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stretto.model.errors import ConfigError
from stretto.sim.synthetic_workloads import bursts, lognormal_lengths, poisson, zipf
from stretto.sim.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, read_azure, read_lengths, read_mooncake

ARRIVALS: Mapping[str, Callable[[float, int], Iterator[float]]] = {"poisson": poisson, "bursts": bursts}
"""Table of functions from (mean rate per second, seed) to endless times of arrival in seconds."""

_NUM_DRAWN = 10_000
_NUM_DOCUMENTS = 200
_DOCUMENT_BLOCKS = 4
_EXPONENT = 1.0


@dataclass(frozen=True, slots=True)
class PublishedWorkload:
    """A set of LLM requests (lengths and shared prefixes) to choose from, without times of arrival.

    Attributes:
        source: origin of the requests, in words.
        in_turn: whether requests are taken one after the other, because neighbours share prefixes; otherwise
            they are drawn at random.
    """

    requests: tuple[TraceRequest, ...]
    source: str
    in_turn: bool = False

    def arriving(self, arrivals_s: Iterable[float], seed: int) -> Iterator[TraceRequest]:
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


def _trace(file: str, read: Callable[[Path], list[TraceRequest]], *, in_turn: bool = False) -> _Source:
    def found(data: Path | None, seed: int) -> PublishedWorkload:
        if data is None:
            raise ConfigError(f"this workload needs --data DIR, with traces/{file}")
        return PublishedWorkload(tuple(read(data / "traces" / file)), f"of {file}", in_turn)

    return found


def _of_lengths(path: Path) -> list[TraceRequest]:
    return [TraceRequest(0.0, prompt, output) for prompt, output in read_lengths(path)]


def _like_conversations(data: Path | None, seed: int) -> PublishedWorkload:
    lengths = lognormal_lengths(_NUM_DRAWN, seed)
    return PublishedWorkload(
        tuple(TraceRequest(0.0, *pair) for pair in lengths), "drawn like Azure's conversations of 2023"
    )


def _about_documents(data: Path | None, seed: int) -> PublishedWorkload:
    """Questions that each begin with a document; document k is used as often as 1 / (k + 1) (Zipf)."""
    documents = zipf(_NUM_DOCUMENTS, _EXPONENT, seed)
    requests = []
    for number, (question, output) in enumerate(lognormal_lengths(_NUM_DRAWN, seed)):
        first = next(documents) * _DOCUMENT_BLOCKS
        own = -(-question // MOONCAKE_BLOCK_TOKENS)
        own_first = (_NUM_DOCUMENTS + number) * 16
        blocks = (*range(first, first + _DOCUMENT_BLOCKS), *range(own_first, own_first + own))
        tokens = _DOCUMENT_BLOCKS * MOONCAKE_BLOCK_TOKENS + question
        requests.append(TraceRequest(0.0, tokens, output, blocks))
    length = _DOCUMENT_BLOCKS * MOONCAKE_BLOCK_TOKENS
    return PublishedWorkload(
        tuple(requests), f"drawn, each after one of {_NUM_DOCUMENTS} documents of {length} tokens (Zipf)"
    )


_Source = Callable[[Path | None, int], PublishedWorkload]
WORKLOADS: Mapping[str, _Source] = {
    "like-conversations": _like_conversations,
    "about-documents": _about_documents,
    "azure-conversations": _trace("azure_llm_2023_conv.csv", read_azure),
    "azure-code": _trace("azure_llm_2023_code.csv", read_azure),
    "mooncake": _trace("mooncake_synthetic.jsonl.gz", read_mooncake, in_turn=True),
    "arxiv": _trace("arxiv_summarization_lengths.csv", _of_lengths),
}
