"""Measures the adapter alone on an unmodified vLLM server: what a prefill ahead saves, and how cancelling
works.

Every prompt is asked twice, each time with a new cache salt: cold, and after its beginning was prefilled as
pass 3 does it, if the adapter judges that this pays.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.vllm_server import MODEL
from benchmarks.report import Row
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.http import Http
from stretto.engines.openai_server.metrics import read_load
from stretto.model.errors import EngineTimeout
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece
from stretto.model.values import Document, Segment
from stretto.wire import paths

_HEAD_WORDS, _REST_WORDS = 500, 120
_NUM_WARM_UPS = 3
_DECODE = Decode(max_tokens=16, ignore_eos=True)
_LONG = Decode(max_tokens=1000, ignore_eos=True)
_LOOK_S, _PATIENCE_S = 0.01, 30.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered request; `done` has its text."""

    first_token_s: float
    done: Done


async def probe(
    url: str, checkpoint: Path, documents: Sequence[Document], *, num_prompts: int, dtype: str
) -> list[Row]:
    """Measure requests that are cold, prefilled ahead, and cancelled."""
    words = " ".join(section.text for document in documents for section in document.sections).split()
    config = OpenAIServerConfig(url, model=MODEL, tokenizer=str(checkpoint))
    server = OpenAIServer(config, http := Http(config))
    try:
        pairs = []
        for number in range(_NUM_WARM_UPS + num_prompts):
            start = number * (_HEAD_WORDS + _REST_WORDS) // 2 % max(1, len(words) - _HEAD_WORDS - _REST_WORDS)
            middle = start + _HEAD_WORDS
            head = Segment(" ".join(words[start:middle]))
            rest = Segment(" ".join(words[middle : middle + _REST_WORDS]))
            pairs.append(await _cold_and_prefilled(server, number, head, rest))
        cancelled_s = [await _cancelled_s(server, http, number, words) for number in range(3)]
    finally:
        await server.aclose()
    table = f"one request on vLLM, {dtype}"
    counted = pairs[_NUM_WARM_UPS:]
    sent = [pair for pair in counted if pair[1] > 0]
    rows = [
        Row(
            table,
            "cold",
            {
                "first_token_ms": _median_ms([cold.first_token_s for cold, _, _ in counted]),
                "prompt_tokens": statistics.median(c.done.usage.num_prompt_tokens for c, _, _ in counted),
            },
        ),
        Row(
            table, "cancelled", {"aborted_ms": _median_ms(cancelled_s), "largest_ms": 1000 * max(cancelled_s)}
        ),
    ]
    if sent:
        rows.insert(
            1,
            Row(
                table,
                "beginning prefilled",
                {
                    "first_token_ms": _median_ms([warm.first_token_s for _, _, warm in sent]),
                    "cached_tokens": statistics.median(w.done.usage.num_cached_tokens for _, _, w in sent),
                    "prefill_ms": _median_ms([prefill_s for _, prefill_s, _ in sent]),
                    "sent": f"{len(sent)} of {len(counted)}",
                    "equal": f"{sum(c.done.value == w.done.value for c, _, w in sent)} of {len(sent)}",
                },
            ),
        )
    return rows


async def _cold_and_prefilled(
    server: OpenAIServer, number: int, head: Segment, rest: Segment
) -> tuple[Answered, float, Answered]:
    """Ask a prompt cold and prefilled; returns both answers with the prefill's seconds between them, 0 for
    none."""
    cold = await _answer(server, LLMTask(number, "q", "cold", (head, rest), _DECODE, f"cold {number}"))
    tenant = f"prefilled {number}"
    start_s = time.perf_counter()
    events: list[LLMEvent] = []
    await server.generate(LLMTask(number, "q", "prefill", (head,), None, tenant), events.append)
    prefill_s = time.perf_counter() - start_s
    (done,) = [event for event in events if isinstance(event, Done)]
    warm = await _answer(server, LLMTask(number, "q", "warm", (head, rest), _DECODE, tenant))
    return cold, prefill_s if done.usage.num_prompt_tokens else 0.0, warm


async def _answer(server: OpenAIServer, task: LLMTask) -> Answered:
    start_s = time.perf_counter()
    first_s: list[float] = []
    done: list[Done] = []

    def emit(event: LLMEvent) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Piece):
            first_s.append(time.perf_counter() - start_s)
        if isinstance(event, Done):
            first_s.append(time.perf_counter() - start_s)  # where all of the text came at the end
            done.append(event)

    await server.generate(task, emit)
    return Answered(first_s[0], done[0])


async def _cancelled_s(server: OpenAIServer, http: Http, number: int, words: Sequence[str]) -> float:
    """Seconds from cancelling a long answer until the server runs nothing."""
    prompt = (Segment(" ".join(words[:50])),)
    running = asyncio.create_task(_answer(server, LLMTask(number, "q", "long", prompt, _LONG)))
    try:
        await _until(http, lambda num_running: num_running > 0 or running.done())
    finally:
        running.cancel()
        start_s = time.perf_counter()
        await asyncio.wait([running])
    await _until(http, lambda num_running: num_running == 0)
    return time.perf_counter() - start_s


async def _until(http: Http, is_so: Callable[[int], bool]) -> None:
    """Wait until the server's number of running requests satisfies `is_so`.

    Raises:
        EngineTimeout: it did not in time.
    """
    deadline_s = time.perf_counter() + _PATIENCE_S
    while not is_so(read_load((await http.fetch(paths.METRICS)).decode()).num_running):
        if time.perf_counter() > deadline_s:
            raise EngineTimeout(
                f"vLLM's /metrics did not show the expected number of requests in {_PATIENCE_S:.0f} s"
            )
        await asyncio.sleep(_LOOK_S)


def _median_ms(seconds: Sequence[float]) -> float:
    return 1000 * statistics.median(seconds)
