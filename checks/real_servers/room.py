"""Agents before a real vLLM server whose KV memory holds half of them, with the router and without it.

Counters of the server tell what its cache has kept, whatever else runs on the machine; times are told as
ratios of runs by turns.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import httpx

from checks.real_servers.doors import door
from checks.real_servers.outcome import Outcome
from stretto.wire.metrics import read_samples

KV_BLOCKS, BLOCK_TOKENS = 160, 32
OPTIONS = ("--num-gpu-blocks-override", str(KV_BLOCKS))
"""Options of a server with a small KV memory, in blocks of `serving`."""
_AGENTS, _CALLS, _REPEATS = 10, 4, 3
_SYSTEM_TOKENS, _TASK_TOKENS, _TOOL_TOKENS, _ANSWER_TOKENS = 100, 300, 250, 8
_TOOL_S, _LIMIT_S = 0.2, 900.0
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
_PREEMPTIONS = "vllm:num_preemptions_total"


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of all agents once: tokens of answers in a second, the share of the prompts' tokens that the
    cache had, and requests that the server has preempted.
    """

    tokens_s: float
    hits: float
    preempted: int


def check_room(server: str, model: str) -> Iterator[Outcome]:
    """Run the same agents at the server and at a router before it, by turns."""
    alone, routed = [], []
    with door("route", "--worker", server) as url:
        for seed in range(_REPEATS):
            alone.append(asyncio.run(_run(server, server, model, seed)))
            routed.append(asyncio.run(_run(url, server, model, seed)))
    ratios = [there.tokens_s / here.tokens_s for here, there in zip(alone, routed, strict=True)]
    hits = [median(one.hits for one in runs) for runs in (alone, routed)]
    seen = f"ratios of tokens/s {', '.join(f'{one:.2f}' for one in ratios)}; alone {alone}; routed {routed}"
    yield Outcome("room, hits at the server with the router and without it", hits[1] > hits[0], seen)


async def _run(url: str, server: str, model: str, seed: int) -> Ran:
    async with httpx.AsyncClient(timeout=_LIMIT_S) as client:
        (await client.post(f"{server}/reset_prefix_cache")).raise_for_status()
        before = await _counted(client, server)
        start_s = time.monotonic()
        system = _words(random.Random(seed), _SYSTEM_TOKENS)
        rngs = [random.Random(1000 * seed + number + 1) for number in range(_AGENTS)]
        agents = [_agent(client, url, model, system + _words(rng, _TASK_TOKENS), rng) for rng in rngs]
        await asyncio.gather(*agents)
        took_s = time.monotonic() - start_s
        after = await _counted(client, server)
    queries, hits, preempted = (there - here for here, there in zip(before, after, strict=True))
    return Ran(_AGENTS * _CALLS * _ANSWER_TOKENS / took_s, hits / queries, round(preempted))


async def _agent(
    client: httpx.AsyncClient, url: str, model: str, prompt: list[int], rng: random.Random
) -> None:
    """Run an agent that names itself, as prompts of token ids are recognised by ids alone."""
    headers = {"x-stretto-program": f"agent-{rng.randrange(10**9)}"}
    for _ in range(_CALLS):
        body = {"model": model, "prompt": prompt, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        answer = await client.post(f"{url}/v1/completions", json=body, headers=headers)
        answer.raise_for_status()
        prompt = prompt + answer.json()["choices"][0]["token_ids"] + _words(rng, _TOOL_TOKENS)
        await asyncio.sleep(_TOOL_S)


def _words(rng: random.Random, num: int) -> list[int]:
    """Return random token ids."""
    return [rng.randrange(100, 1000) for _ in range(num)]


async def _counted(client: httpx.AsyncClient, server: str) -> tuple[float, ...]:
    text = (await client.get(f"{server}/metrics")).text
    return tuple(sum(one.value for one in read_samples(text, (n,))) for n in (_QUERIES, _HITS, _PREEMPTIONS))
