"""Emulated servers with a model's own tokenizer: clients may send token ids and follow KV events."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from support.emulated import emulating, fleet_of

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from benchmarks.common.mini_model import MINI
from stretto.emulate.llm_plan import load_tokens
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask
from stretto.model.values import Segment

TEXT = "Every house has a kitchen; every kitchen has a table. "


def test_pieces_of_a_text_are_its_tokens() -> None:
    tokens = load_tokens(str(MINI))
    pieces = tokens.cut(TEXT)
    assert "".join(text for _, text in pieces) == TEXT
    assert [one for one, _ in pieces] == tokens.encode(TEXT, is_prompt=False)
    assert tokens.decode(tokens.encode(TEXT, is_prompt=False)).strip() == TEXT.strip()


def test_made_up_texts_consist_of_tokens() -> None:
    with emulating(fleet_of(tokenizer=str(MINI))) as (url,):
        body = {"prompt": TEXT, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
        (choice,) = httpx.post(f"{url}/v1/completions", json=body).json()["choices"]
        tokens = load_tokens(str(MINI))
        assert len(choice["token_ids"]) == 12
        assert tokens.decode(choice["token_ids"]).strip() == choice["text"].strip()


def test_the_client_sends_token_ids_and_knows_what_is_cached(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    task = LLMTask(1, "q", "answer", (Segment(TEXT * 20),), Decode(max_tokens=4))

    async def main(url: str) -> tuple[list[LLMEvent], int]:
        events: list[LLMEvent] = []
        told: list[object] = []
        config = OpenAIServerConfig(
            url, api="completions", kv_events=KVEventsConfig(endpoint, f"{endpoint}-replay")
        )
        server = OpenAIServer(config)
        watching = asyncio.create_task(server.watch(told.append))
        async with asyncio.timeout(100):
            await server.generate(task, events.append)
            while not told:
                await asyncio.sleep(0.01)
        watching.cancel()
        await server.aclose()
        return events, len(told)

    with emulating(fleet_of(tokenizer=str(MINI), kv_events=endpoint)) as (url,):
        events, num_told = asyncio.run(main(url))
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage.num_prompt_tokens > 100
    assert num_told > 0
