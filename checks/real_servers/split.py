"""Two real vLLM servers that pass KV on over NIXL: one computes prompts, the other writes answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import httpx

from checks.real_servers.doors import door
from checks.real_servers.lines import CHAT, COMPLETION
from checks.real_servers.outcome import Outcome
from stretto.wire.metrics import read_samples

CONNECTOR = (
    "--kv-transfer-config",
    '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}',
)
"""Options of a server that passes KV on."""
SIDE_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
"""Variable with the port where a server tells others of its KV."""
_FETCHED = "vllm:external_prefix_cache_hits_total"
_LIMIT_S = 600.0
_AT_ONCE = 6
_Answer: TypeAlias = tuple[httpx.Response, str]


def check_split(prefill: str, decode: str, model: str, kill: Callable[[], None]) -> Iterator[Outcome]:
    """Compare answers whose prompt another server computes with those of the second server alone.

    Args:
        kill: kills the first server at once.
    """
    few = [_request(number, model) for number in range(6)]
    many = [_request(number, model, 24) for number in range(100, 100 + 2 * _AT_ONCE)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        alone = [
            [text for _, text in pool.map(lambda one: _ask(decode, *one), asked)] for asked in (few, many)
        ]
    for url in (prefill, decode):
        httpx.post(f"{url}/reset_prefix_cache", timeout=_LIMIT_S).raise_for_status()
    command = ("route", "--worker", f"{prefill},role=prefill", "--worker", f"{decode},role=decode")
    with door(*command) as url:
        before = _fetched(decode)
        found = [_ask(url, *one) for one in few]
        yield _same("split, answers of one server", found, alone[0])
        is_split = _num_split(found) == len(few) and not any("attempt" in _reason(one) for one in found)
        yield Outcome("split, told as such", is_split, _reason(found[-1]))
        num = _fetched(decode) - before
        yield Outcome(
            "split, KV fetched by the second server", num > 0, f"{num} tokens of {len(few)} prompts"
        )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            futures = [pool.submit(_ask, url, *one) for one in many]
            futures[0].result()
            kill()
            found = [one.result() for one in futures]
        yield _same("split, first server killed", found, alone[1])
        late = _reason(_ask(url, *_request(7, model)))
        yield Outcome("split, after the kill", "goes on" not in late, late)


def _same(name: str, found: Sequence[_Answer], alone: Sequence[str]) -> Outcome:
    texts = [text for _, text in found]
    others = [pair for pair in zip(texts, alone, strict=True) if pair[0] != pair[1]]
    seen = f"{len(texts) - len(others)} of {len(texts)} equal, {_num_split(found)} were split {others}"
    return Outcome(name, not others, seen)


def _num_split(found: Sequence[_Answer]) -> int:
    return sum("goes on from the KV of its prompt" in _reason(one) for one in found)


def _reason(found: _Answer) -> str:
    return found[0].headers["x-stretto-reason"]


def _request(number: int, model: str, max_tokens: int = 16) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a greedy request; completions, chats and streams by turns."""
    text = " ".join(f"Line {line} of letter {number}: the ship is at sea." for line in range(20))
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    body["stream"] = number % 3 == 2
    if number % 2:
        return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
    return COMPLETION, {**body, "prompt": text}


def _ask(url: str, path: str, body: dict[str, Any]) -> _Answer:
    answer = httpx.post(url + path, json=body, timeout=_LIMIT_S)
    answer.raise_for_status()
    if not body["stream"]:
        return answer, _text(answer.json())
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return answer, "".join(_text(json.loads(line)) for line in lines)


def _text(answer: dict[str, Any]) -> str:
    return "".join(
        choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        for choice in answer["choices"]
    )


def _fetched(url: str) -> int:
    """Return how many tokens of prompts a server has fetched from another one so far."""
    return round(sum(one.value for one in read_samples(httpx.get(f"{url}/metrics").text, (_FETCHED,))))
