"""The engines of the LLM benchmark; each completes prompts of tokens, greedily and to a fixed length.

`transformers` and Stretto run in this process. vLLM runs behind its HTTP server, as it is used: one request
for each prompt, all at once, over open connections. Answers are not streamed, which would take vLLM longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from benchmarks.common.vllm_server import MAX_RUNNING, MODEL
from benchmarks.llm.model import NEW_TOKENS, complete, make_engine, prefill
from stretto.engines.loading import one_load
from stretto.model.errors import BadReply, EngineTimeout, EngineUnavailable, InternalError

_TIMEOUT_S = 120


class Contestant(Protocol):
    """An engine with the benchmark's model.

    `rest_s` is the time for which its threads keep the cores busy after an answer; the next engine waits for
    it.
    """

    name: str
    rest_s: float

    def generate(self, prompts: list[list[int]]) -> int:
        """Complete all prompts at once; returns the number of new tokens."""
        ...


class Caching(Contestant, Protocol):
    """An engine that caches prefixes."""

    def first_token_s(self, prompt: list[int], num_cached: int) -> float:
        """Measure the seconds to the first token, with exactly `num_cached` tokens of the prompt in the
        cache."""
        ...


class TransformersGenerate:
    """`generate` of transformers, with one batch, so that all prompts must have the same length."""

    name = "transformers generate"
    rest_s = 0.0

    def __init__(self, checkpoint: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        with one_load("transformers"):
            self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)

    def generate(self, prompts: list[list[int]]) -> int:
        """See `Contestant`."""
        import torch

        ids = torch.tensor(prompts)
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return int(output[:, len(prompts[0]) :].numel())


class Stretto:
    """The engine under test."""

    name = "stretto"
    rest_s = 0.0

    def __init__(self, checkpoint: Path) -> None:
        self._llm = make_engine(checkpoint)

    def generate(self, prompts: list[list[int]]) -> int:
        """See `Contestant`."""
        return complete(self._llm, prompts)

    def first_token_s(self, prompt: list[int], num_cached: int) -> float:
        """See `Caching`."""
        if num_cached:
            prefill(self._llm, prompt[:num_cached])
        start_s = time.perf_counter()
        complete(self._llm, [prompt], new_tokens=1)
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Drop the model."""
        self._llm.close()


class VLLMServer:
    """vLLM behind `url`. Each measurement has a different salt, so that it finds nothing in the cache."""

    rest_s = 2.0  # its OpenMP threads spin for about a second

    def __init__(self, name: str, url: str, client: httpx.Client, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self._url = f"{url}/v1/completions"
        self._client = client
        self._threads = threads
        self._num_salts = 0

    @classmethod
    @contextmanager
    def at(cls, url: str, name: str) -> Iterator[VLLMServer]:
        """Open connections for as many requests as the server runs at once.

        At the end, running requests are not waited for; they end with the server.
        """
        limits = httpx.Limits(max_keepalive_connections=MAX_RUNNING)
        client = httpx.Client(timeout=_TIMEOUT_S, limits=limits, trust_env=False)
        threads = ThreadPoolExecutor(MAX_RUNNING)
        server = cls(name, url, client, threads)
        try:
            yield server
            client.close()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def generate(self, prompts: list[list[int]]) -> int:
        """See `Contestant`."""
        salt = self._salt()
        answers = self._threads.map(lambda prompt: self._complete(prompt, NEW_TOKENS, salt), prompts)
        return sum(usage["completion_tokens"] for usage in answers)

    def first_token_s(self, prompt: list[int], num_cached: int) -> float:
        """See `Caching`."""
        salt = self._salt()
        if num_cached:
            self._complete(prompt[:num_cached], 1, salt)
        start_s = time.perf_counter()
        usage = self._complete(prompt, 1, salt)
        seconds = time.perf_counter() - start_s
        try:
            found = usage["prompt_tokens_details"]["cached_tokens"]
        except (LookupError, TypeError) as cause:
            raise BadReply(f"{self.name} did not say what it had cached: {usage}") from cause
        if found != num_cached:
            raise InternalError(f"{self.name} had {found} tokens cached, not {num_cached}")
        return seconds

    def _salt(self) -> str:
        self._num_salts += 1
        return f"{self.name} {self._num_salts}"

    def _complete(self, prompt: list[int], new_tokens: int, salt: str) -> dict[str, Any]:
        """Complete a prompt; returns the counted tokens."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
        }
        try:
            response = self._client.post(self._url, json=body)
        except httpx.TimeoutException as cause:
            raise EngineTimeout(f"{self.name} gave no answer in {_TIMEOUT_S} s") from cause
        except httpx.HTTPError as cause:
            raise EngineUnavailable(f"{self.name} cannot be reached: {cause!r}") from cause
        if not response.is_success:
            raise BadReply(f"{self.name} answered {response.status_code}: {response.text[:300]}")
        try:
            usage: dict[str, Any] = response.json()["usage"]
            counted = (usage["prompt_tokens"], usage["completion_tokens"])
        except (ValueError, LookupError, TypeError) as cause:
            raise BadReply(f"{self.name} did not say its usage: {response.text[:300]!r}") from cause
        if counted != (len(prompt), new_tokens):
            raise BadReply(f"{self.name} was to complete {len(prompt)} tokens by {new_tokens}: {usage}")
        return usage
