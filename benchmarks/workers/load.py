"""Programs that a door gets in real time: agents that come back, and chats of one request."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, replace

import httpx

_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class ProgramLoad:
    """Programs of one kind.

    Attributes:
        num: number of programs.
        over_s: seconds in which they begin, evenly.
        turns: requests of each.
        prompt_tokens: tokens of a first prompt that is the program's own, beside those of its instructions.
        turn_tokens: tokens that each later prompt has more.
        output_tokens: tokens of an answer, from half to one and a half times as many.
        think_s: mean seconds between an answer and the next request.
    """

    num: int
    over_s: float
    turns: int
    prompt_tokens: int
    turn_tokens: int
    output_tokens: int
    think_s: float
    system_tokens: int = 600


async def run_programs(url: str, model: str, load: ProgramLoad, seed: int, speed: float) -> list[float]:
    """Run the programs, whose times are emulated seconds; return the real seconds that each took."""
    load = replace(load, over_s=load.over_s / speed, think_s=load.think_s / speed)
    system = _words(random.Random(f"system {seed}"), load.system_tokens)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as client:
        programs = (_program(client, model, load, system, number, seed) for number in range(load.num))
        return await asyncio.gather(*programs)


async def _program(
    client: httpx.AsyncClient, model: str, load: ProgramLoad, system: str, number: int, seed: int
) -> float:
    rng = random.Random(f"{seed} {number}")
    await asyncio.sleep(load.over_s * number / load.num)
    task = _words(rng, load.prompt_tokens)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    begun_s = time.monotonic()
    for turn in range(load.turns):
        if turn:
            await asyncio.sleep(rng.uniform(0.5, 1.5) * load.think_s)
        num_output = max(1, round(load.output_tokens * rng.uniform(0.5, 1.5)))
        text = await _ask(client, model, messages, num_output, f"p{number}")
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": _words(rng, load.turn_tokens)},
        ]
    return time.monotonic() - begun_s


async def _ask(
    client: httpx.AsyncClient, model: str, messages: list[dict[str, str]], num_output: int, program: str
) -> str:
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": num_output,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    headers = {"x-stretto-program": program}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and (piece := choices[0]["delta"].get("content")):
                    pieces.append(piece)
    return "".join(pieces)


def _words(rng: random.Random, num_tokens: int) -> str:
    return "".join(f"{rng.getrandbits(12):03x} " for _ in range(num_tokens))
