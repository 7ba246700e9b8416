"""`stretto bench router --vllm PYTHON`: two real vLLM servers behind the router.

Both serve the small model that comes with Stretto, in float32 on one thread each, and publish KV events. Each
way of placing gets the same completions, four at a time, and empty caches. Prompts are pieces of documents,
each followed by several questions.

    hits       share of the prompts' tokens that servers found in their caches, as they report it
    predicted  the same, as the router expected it when it sent the requests
    error      how far they are apart, as a share of the hits
    equal      answers with the text that one server gives when it is asked directly, one request at a time

Times are left out: two servers, the router and the client share the machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvloop

from benchmarks.common.corpora import some_documents
from benchmarks.common.mini_model import MINI
from benchmarks.common.vllm_server import MODEL, VLLM, find_vllm, serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value, versions
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.wire.metric_table import PREDICTED
from stretto.wire.metrics import read_samples

TABLE = "two vLLM servers behind the router"
MAX_ERROR = 0.02
_PIECE_CHARS = 1600
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class RealSize:
    """Sizes of the comparison: pieces of documents, questions about each, requests at once, tokens of an
    answer.
    """

    pieces: int = 24
    questions: int = 8
    at_once: int = 4
    output_tokens: int = 8


QUICK_REAL = RealSize(pieces=8, questions=4)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of placing: the policy, whether the router follows KV events, and whether prompts come as ids."""

    name: str
    placement: str
    has_events: bool = False
    as_ids: bool = False


WAYS = (
    Way("least_loaded", "least_loaded"),
    Way("stretto, without events", "stretto"),
    Way("stretto, KV events, texts", "stretto", has_events=True),
    Way("stretto, KV events, token ids", "stretto", has_events=True, as_ids=True),
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of one request."""

    text: str
    worker: str
    num_prompt: int
    num_cached: int


def measure_real(size: RealSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says.

    Raises:
        ConfigError: `options.vllm` has no vLLM.
    """
    vllm = find_vllm(options.vllm)
    if vllm is None:
        raise ConfigError("name the Python of an environment with vLLM: --vllm PYTHON")
    prompts = make_prompts(size, options)
    rows = []
    with two_servers(vllm, options) as workers:
        options.say("one server, asked directly")
        alone = uvloop.run(_ask_all(workers[0].url, prompts, size, at_once=1))
        for way in WAYS:
            options.say(way.name)
            rows.append(Row(TABLE, way.name, uvloop.run(run_way(way, workers, prompts, alone, size))))
    by_prefix = [row.values for row in rows if row.values["predicted"] is not None]
    goals = (
        Goal("hits predicted, largest relative error", _largest(by_prefix, "error"), MAX_ERROR, "lower"),
        Goal("answers with another text", _largest([r.values for r in rows], "other_texts"), 0, "lower"),
    )
    notes = (f"{len(prompts)} requests; hits that are possible: {_possible(alone):.3f}",)
    config = asdict(size)
    known = {**versions(), "vllm": vllm.version}
    return Report("router", options.seed, config, tuple(rows), goals, notes, versions=known)


def make_prompts(size: RealSize, options: BenchmarkOptions) -> list[str]:
    """Return the prompts, in random order: pieces of documents, each with several questions."""
    _, documents = some_documents(options.data, 4 * size.pieces * _PIECE_CHARS)
    text = "\n".join(section.text for document in documents for section in document.sections)
    pieces = [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]
    prompts = [
        f"{piece}\n\nQuestion {number}: what does part {number} of this text say?\nAnswer:"
        for piece in pieces[: size.pieces]
        for number in range(size.questions)
    ]
    random.Random(options.seed).shuffle(prompts)
    return prompts


@contextmanager
def two_servers(vllm: VLLM, options: BenchmarkOptions) -> Iterator[tuple[WorkerConfig, WorkerConfig]]:
    """Run two servers that publish KV events; yield them as workers."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        workers = []
        for number in range(2):
            endpoint = f"ipc://{folder}/{number}"
            events = KVEventsConfig(endpoint, f"{endpoint}-replay")
            start = serving(vllm, MINI, dtype="float32", num_threads=1, say=options.say, kv_events=events)
            workers.append(WorkerConfig(url=stack.enter_context(start), kv_events=events))
        yield workers[0], workers[1]


async def run_way(
    way: Way,
    workers: Sequence[WorkerConfig],
    prompts: Sequence[str],
    alone: Sequence[Answered],
    size: RealSize,
) -> dict[str, Value]:
    """Return what one way of placing makes of the prompts, on servers with empty caches."""
    await _empty_caches(workers)
    chosen = tuple(worker if way.has_events else replace(worker, kv_events=None) for worker in workers)
    tokenizer = str(MINI) if way.has_events and not way.as_ids else None
    config = RouterConfig(worker=chosen, port=0, placement=way.placement, tokenizer=tokenizer)
    async with RunningRouter(config) as router:
        router_state = router.front.router_state
        if tokenizer is not None:
            await _until(lambda: all(worker.shares_tokenizer for worker in router_state.view.workers()))
        if way.has_events:
            await _until(lambda: router_state.view.has_reports)
        asked: Sequence[str | list[int]] = prompts
        if way.as_ids:
            asked = await _token_ids(workers[0].url, prompts)
        answers = await _ask_all(router.url, asked, size, at_once=size.at_once)
        async with httpx.AsyncClient(timeout=60) as client:
            metrics = (await client.get(f"{router.url}/metrics")).text
    predicted = sum(sample.value for sample in read_samples(metrics, (PREDICTED.name,)))
    num_prompt = sum(one.num_prompt for one in answers)
    num_cached = sum(one.num_cached for one in answers)
    counts = [sum(one.worker == str(number) for one in answers) for number in range(len(workers))]
    knows = way.placement != "least_loaded"
    return {
        "hits": num_cached / num_prompt,
        "predicted": predicted / num_prompt if knows else None,
        "error": abs(predicted / max(1, num_cached) - 1) if knows else None,
        "max_per_mean": max(counts) * len(counts) / len(answers),
        "other_texts": sum(one.text != other.text for one, other in zip(answers, alone, strict=True)),
    }


async def _ask_all(
    url: str, prompts: Sequence[str | list[int]], size: RealSize, *, at_once: int
) -> list[Answered]:
    """Ask for a completion of each prompt, `at_once` at a time; return the answers in their order."""
    turn = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:

        async def ask(prompt: str | list[int]) -> Answered:
            body = {
                "model": MODEL,
                "prompt": prompt,
                "max_tokens": size.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            async with turn:
                reply = await client.post("/v1/completions", json=body)
            reply.raise_for_status()
            answer: dict[str, Any] = json.loads(reply.content)
            usage = answer["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            worker = reply.headers.get("x-stretto-worker", "")
            return Answered(answer["choices"][0]["text"], worker, usage["prompt_tokens"], cached)

        return await asyncio.gather(*map(ask, prompts))


async def _empty_caches(workers: Sequence[WorkerConfig]) -> None:
    """Empty the caches of servers. vLLM publishes that with its next step, so each gets a short request."""
    body = {"model": MODEL, "prompt": "?", "max_tokens": 1}
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
        for worker in workers:
            (await client.post(f"{worker.url}/reset_prefix_cache")).raise_for_status()
            (await client.post(f"{worker.url}/v1/completions", json=body)).raise_for_status()


async def _token_ids(url: str, prompts: Sequence[str]) -> list[list[int]]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        found = []
        for prompt in prompts:
            reply = await client.post("/tokenize", json={"model": MODEL, "prompt": prompt})
            found.append(reply.raise_for_status().json()["tokens"])
        return found


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


def _possible(alone: Sequence[Answered]) -> float:
    """Return the hits of a server that gets all requests, one at a time."""
    return sum(one.num_cached for one in alone) / sum(one.num_prompt for one in alone)


def _largest(values: Sequence[Any], name: str) -> float:
    return max(float(one[name]) for one in values)
