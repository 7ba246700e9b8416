"""Requests that no client should send: an emulated server refuses them and serves the others."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.emulated import emulating

PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi."}]},
    "completions": {"prompt": "Hi."},
}


@pytest.mark.parametrize("api", PATHS)
def test_more_least_tokens_than_the_answer_may_have_are_refused(api: str) -> None:
    with emulating() as (url,):

        def ask(**options: Any) -> httpx.Response:
            return httpx.post(f"{url}/v1/{api}", json={**PATHS[api], **options})

        for options in (
            {"min_tokens": 2**60},
            {"min_tokens": 4097},
            {"max_tokens": 4096, "min_tokens": 4096},
        ):
            refused = ask(**options)
            assert refused.status_code == 400
            assert (
                "min_tokens must be less than or equal to max_tokens=" in refused.json()["error"]["message"]
            )
        assert ask(max_tokens=3, min_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_a_method_that_a_path_does_not_take_is_refused_by_name() -> None:
    with emulating() as (url,):
        refused = httpx.get(f"{url}/v1/completions")
        assert refused.status_code == 405
        assert "takes POST, not GET" in refused.json()["error"]["message"]
        assert httpx.post(f"{url}/nowhere").status_code == 404


def test_a_chat_is_tokenized_as_it_would_be_answered() -> None:
    with emulating() as (url,):
        messages = PATHS["chat/completions"]["messages"]
        tokens = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()["tokens"]
        asked = {"messages": messages, "max_tokens": 1}
        usage = httpx.post(f"{url}/v1/chat/completions", json=asked).json()["usage"]
        assert len(tokens) == usage["prompt_tokens"] > 3
        assert httpx.post(f"{url}/tokenize", json={"messages": []}).status_code == 400
