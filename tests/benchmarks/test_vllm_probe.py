"""Single requests to a server, cold, prefilled ahead and cancelled, against a small server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from support.openai_stub import OpenAIStub, Reply

from benchmarks.common.mini_model import MINI
from benchmarks.report import Row
from benchmarks.vllm.probe import probe
from stretto.model.values import Document, Section

DOCUMENT = Document("a.txt", (Section(" ".join(f"word{n % 97}" for n in range(3000))),), "")


def rows_of_probe(warms: bool) -> tuple[dict[str, Row], list[Mapping[str, Any]]]:
    """The probe's rows by name, and the requests of the completions."""

    def answer(body: Mapping[str, Any]) -> Reply:
        if body["max_tokens"] > 100:
            return Reply(ending="hang")
        return Reply(("said",), num_cached=4)

    async def run() -> tuple[dict[str, Row], list[Mapping[str, Any]]]:
        def metrics(_: Mapping[str, Any]) -> str:
            lines = (
                f'vllm:cache_config_info{{block_size="32",enable_prefix_caching="{warms}"}} 1.0',
                f"vllm:num_requests_running {stub.num_open - 1}.0",
                "vllm:num_requests_waiting 0.0",
                "vllm:kv_cache_usage_perc 0.0",
            )
            return "\n".join(lines)

        stub: OpenAIStub = OpenAIStub(answer, pages={"GET /metrics": metrics})
        async with stub:
            rows = await probe(stub.url, MINI, [DOCUMENT], num_prompts=2, dtype="float32")
            return {row.name: row for row in rows}, stub.requests

    return asyncio.run(run())


def test_a_prompt_is_asked_cold_and_with_its_beginning_prefilled() -> None:
    """The first time in any case, for the sake of evidence; later, if measured times say so."""
    rows, requests = rows_of_probe(warms=True)
    assert {"cold", "cancelled"} <= set(rows)
    cold, prefill, warm = requests[:3]
    assert prefill["max_tokens"] == 1
    assert cold["prompt"] == warm["prompt"]
    assert warm["prompt"][: len(prefill["prompt"])] == prefill["prompt"]
    assert cold["cache_salt"] != prefill["cache_salt"] == warm["cache_salt"]


def test_a_server_without_a_prefix_cache_is_sent_no_prefill() -> None:
    rows, requests = rows_of_probe(warms=False)
    assert set(rows) == {"cold", "cancelled"}
    assert all(request["max_tokens"] > 1 for request in requests)
