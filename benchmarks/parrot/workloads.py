"""The workloads of the paper's evaluation, with made-up texts of the lengths that it gives.

Lengths of documents, and of the applications of "GPTs", are those that the paper's artifact has; lengths of
chats are log-normal with the means of ShareGPT.

Source: Parrot §8.2, §8.3 and §8.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from random import Random
from typing import Any

from benchmarks.common.arrivals import poisson
from benchmarks.parrot.agents import coding
from benchmarks.parrot.workflows import Arrival, Call, Output, Part, Workflow
from stretto.model.tasks import Objective
from stretto.sim.synthetic_output import filler

DOCUMENT_TOKENS = (20952, 14620, 16094, 15414, 17528, 19105, 28723, 31063, 15744, 18311)
"""Lengths of ten documents: a quarter of the characters of ten articles."""

GPTS = {
    "productivity": (7437, 7, 704),
    "images": (1116, 8, 89),
    "code": (1694, 4, 631),
    "data": (2031, 4, 416),
}
"""Tokens of the system prompt, the question and the answer of four applications."""

_APART_S = 10_000.0
_INSTRUCTION_TOKENS = 30
_SHAREGPT = (161.0, 338.0)
_DEVIATION = 1.0
_MAX_CHAT = 2048


def chain(name: str, num_tokens: int, chunk_tokens: int, num_output: int) -> Workflow:
    """Return the summary of a document that is refined with one chunk after the other."""
    instruction = filler("refine", _INSTRUCTION_TOKENS)
    calls: list[Call] = []
    for number, chunk in enumerate(_chunks(name, num_tokens, chunk_tokens)):
        earlier: tuple[Part, ...] = (Output(calls[-1].name),) if calls else ()
        calls.append(Call(f"refine{number}", (instruction, chunk, *earlier), num_output, 1))
    return Workflow("chain", tuple(calls))


def map_reduce(
    name: str, num_tokens: int, chunk_tokens: int, num_output: int, criteria: Objective = "latency"
) -> Workflow:
    """Return the summary of a document whose chunks are summarised side by side, then together."""
    instruction = filler("map", _INSTRUCTION_TOKENS)
    maps = tuple(
        Call(f"map{number}", (instruction, chunk), num_output, 1)
        for number, chunk in enumerate(_chunks(name, num_tokens, chunk_tokens))
    )
    parts: tuple[Part, ...] = (filler("reduce", _INSTRUCTION_TOKENS), *(Output(call.name) for call in maps))
    return Workflow("map-reduce", (*maps, Call("reduce", parts, num_output, 1)), criteria)


def _chunks(name: str, num_tokens: int, chunk_tokens: int) -> Iterator[str]:
    for start in range(0, num_tokens, chunk_tokens):
        yield filler(f"{name} from {start}", min(chunk_tokens, num_tokens - start))


def chat(name: str, draw: Random) -> Workflow:
    """Return one turn of a chat, whose prompt is a text of its own."""
    prompt, output = (
        min(_MAX_CHAT, max(4, round(draw.lognormvariate(math.log(mean) - _DEVIATION**2 / 2, _DEVIATION))))
        for mean in _SHAREGPT
    )
    return Workflow("chat", (Call("answer", (filler(name, prompt),), output),))


# --- loads, whose last argument is the seed


def one_by_one(
    seed: int, *, app: str, num: int = 10, chunk_tokens: int = 1024, num_output: int = 50
) -> list[Arrival]:
    """Return summaries of `num` documents, each alone on the machine. `app` is "chain" or "map-reduce"."""
    make = {"chain": chain, "map-reduce": map_reduce}[app]
    return [
        Arrival(_APART_S * number, make(f"document {number} of {seed}", length, chunk_tokens, num_output))
        for number, length in enumerate(DOCUMENT_TOKENS[:num])
    ]


def chats(seed: int, *, rate_per_s: float, until_s: float = 120.0) -> list[Arrival]:
    """Return chats that arrive until `until_s`, in seconds, as a Poisson process."""
    draw = Random(f"chats/{seed}")
    times_s = takewhile(lambda at_s: at_s < until_s, poisson(rate_per_s, seed))
    return [Arrival(at_s, chat(f"chat {number} of {seed}", draw)) for number, at_s in enumerate(times_s)]


def chain_in_chats(seed: int, *, rate_per_s: float, num: int = 5) -> list[Arrival]:
    """Return chains over documents, one every minute, beside chats."""
    apart_s = 60.0
    chains = [
        Arrival(10.0 + apart_s * number, chain(f"document {number} of {seed}", length, 1024, 50))
        for number, length in enumerate(DOCUMENT_TOKENS[:num])
    ]
    return chains + (chats(seed, rate_per_s=rate_per_s, until_s=apart_s * num) if rate_per_s else [])


def chains_in_parts(
    seed: int, *, prompt_tokens: int, rate_per_s: float, num: int = 3, num_calls: int = 10
) -> list[Arrival]:
    """Return chains of `num_calls` calls whose prompts have `prompt_tokens` tokens, one every minute, beside
    chats.
    """
    num_output, apart_s = 50, 60.0
    chunk_tokens = prompt_tokens - _INSTRUCTION_TOKENS - num_output
    chains = [
        chain(f"document {number} of {seed}", num_calls * chunk_tokens, chunk_tokens, num_output)
        for number in range(num)
    ]
    arrivals = [Arrival(10.0 + apart_s * number, one) for number, one in enumerate(chains)]
    return arrivals + chats(seed, rate_per_s=rate_per_s, until_s=apart_s * num)


def chains_at_once(seed: int, *, num: int, chunk_tokens: int = 1024, num_output: int = 50) -> list[Arrival]:
    """Return `num` chains that begin at the same time."""
    return [
        Arrival(
            0.0, chain(f"document {number} of {seed}", DOCUMENT_TOKENS[number % 10], chunk_tokens, num_output)
        )
        for number in range(num)
    ]


def copilot(
    seed: int, *, num: int, system_tokens: int = 6000, least_output: int = 180, most_output: int = 800
) -> list[Arrival]:
    """Return `num` requests at once whose prompts begin with the same system prompt."""
    draw = Random(f"copilot/{seed}")
    system = filler("the system prompt of a search engine's chat", system_tokens)
    return [
        Arrival(
            0.0,
            Workflow(
                "search chat",
                (
                    Call(
                        "answer",
                        (system, filler(f"question {number} of {seed}", draw.randint(20, 300))),
                        draw.randint(least_output, most_output),
                        1,
                    ),
                ),
            ),
        )
        for number in range(num)
    ]


def gpts(seed: int, *, rate_per_s: float, num: int = 200, length_share: float = 1.0) -> list[Arrival]:
    """Return Poisson arrivals at four applications, each as likely as the others.

    Args:
        length_share: lengths of system prompts and answers, as a share of those of the paper's artifact.
    """
    draw = Random(f"gpts/{seed}")
    found = []
    for number, at_s in enumerate(islice(poisson(rate_per_s, seed), num)):
        app = draw.choice(list(GPTS))
        system_tokens, question_tokens, num_output = GPTS[app]
        system = filler(app, round(length_share * system_tokens))
        question = filler(f"question {number} of {seed}", question_tokens)
        call = Call("answer", (system, question), round(length_share * num_output), 1)
        found.append(Arrival(at_s, Workflow("GPTs", (call,))))
    return found


def agents(seed: int, *, num_files: int) -> list[Arrival]:
    """Return one team of agents that write `num_files` files."""
    return [Arrival(0.0, coding(f"project of {seed}", num_files))]


def teams(seed: int, *, num: int, num_files: int, length_share: float) -> list[Arrival]:
    """Return `num` teams of agents that begin at the same time; `length_share` is that of `coding`."""
    return [
        Arrival(0.0, coding(f"project {number} of {seed}", num_files, length_share)) for number in range(num)
    ]


def map_reduces(
    seed: int, *, num: int, every_s: float, chunk_tokens: int = 1024, num_output: int = 50
) -> list[Arrival]:
    """Return `num` map-reduce summaries, one every `every_s` seconds."""
    return [
        Arrival(
            every_s * number,
            map_reduce(
                f"document {number} of {seed}", DOCUMENT_TOKENS[number % 10], chunk_tokens, num_output
            ),
        )
        for number in range(num)
    ]


def mixed(seed: int, *, num: int = 40, chat_rate_per_s: float = 1.0, every_s: float = 2.5) -> list[Arrival]:
    """Return `num` map-reduce summaries, one every `every_s` seconds, beside chats."""
    summaries = [
        Arrival(
            every_s * number,
            map_reduce(f"document {number} of {seed}", DOCUMENT_TOKENS[number % 10], 1024, 50, "throughput"),
        )
        for number in range(num)
    ]
    return summaries + chats(seed, rate_per_s=chat_rate_per_s, until_s=every_s * num)


LOADS: Mapping[str, Callable[..., list[Arrival]]] = {
    function.__name__: function
    for function in (
        chats,
        one_by_one,
        chain_in_chats,
        chains_in_parts,
        chains_at_once,
        copilot,
        gpts,
        agents,
        teams,
        map_reduces,
        mixed,
    )
}
"""Functions that make the loads, by name."""


def make_load(name: str, seed: int, settings: Mapping[str, Any]) -> list[Arrival]:
    """Return the load of a name, with settings of that load."""
    return LOADS[name](seed, **settings)
