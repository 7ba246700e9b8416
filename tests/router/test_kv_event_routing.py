"""Routing by what servers report of their caches, on emulated servers that publish KV events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
import uvloop

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from support.emulated import MODEL, emulating, fleet_of
from support.routing import run, until

from benchmarks.common.mini_model import MINI
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.config_file import read_router_config
from stretto.router.serve import RunningRouter
from stretto.router.token_reader import TokenReader
from stretto.router.worker_config import WorkerConfig
from stretto.wire.metrics import read_samples

PROMPT = "The harbour lies in the north, and its lanterns burn all night. " * 20
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[WorkerConfig, ...]]:
    """Two emulated servers with a model's own tokenizer, which publish KV events."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        found = []
        for number in range(2):
            endpoint = f"ipc://{folder}/{number}"
            fleet = fleet_of(tokenizer=str(MINI), kv_events=endpoint)
            (url,) = stack.enter_context(emulating(fleet))
            found.append(WorkerConfig(url=url, kv_events=KVEventsConfig(endpoint, f"{endpoint}-replay")))
        yield tuple(found)


@asynccontextmanager
async def routed(
    workers: tuple[WorkerConfig, ...], tokenizer: str | None
) -> AsyncIterator[tuple[RunningRouter, httpx.AsyncClient]]:
    """Run a router that waits long for token ids, and wait until it has read what its workers hold."""
    config = RouterConfig(worker=workers, port=0, placement="stretto", tokenizer=tokenizer)
    async with (
        RunningRouter(config) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        router_state = router.front.router_state
        if tokenizer is not None:
            router.front.tokens = TokenReader(Path(tokenizer), PATIENCE_S)
            await until(lambda: all(worker.shares_tokenizer for worker in router_state.view.workers()))
        await until(lambda: router_state.view.has_reports)
        yield router, client


async def warm(url: str, prompt: str | list[int]) -> None:
    """Bring a prompt into the cache of a server, past the router."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as direct:
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        assert (await direct.post("/v1/completions", json=asked)).status_code == 200


async def reset(workers: tuple[WorkerConfig, ...]) -> None:
    """Empty the caches of the servers."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as direct:
        for worker in workers:
            await direct.post(f"{worker.url}/reset_prefix_cache")


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_prompt_goes_to_the_server_that_has_reported_it(
    workers: tuple[WorkerConfig, ...], as_ids: bool
) -> None:
    async def main() -> None:
        await reset(workers)
        tokens = TokenReader(MINI)
        prompt = tokens.encode(PROMPT) if as_ids else PROMPT
        await warm(workers[1].url, prompt)
        async with routed(workers, None if as_ids else str(MINI)) as (router, client):
            asked = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
            reply = await client.post("/v1/completions", json=asked)
            assert reply.headers["x-stretto-worker"] == "1"
            cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 100
            text = (await client.get("/metrics")).text
            for name in ("stretto_predicted_cached_tokens_total", "stretto_cached_tokens_total"):
                assert sum(one.value for one in read_samples(text, (name,))) == cached
            await reset(workers)
            await until(
                lambda: (
                    not any(router.front.router_state._caches.held(tokens.encode(PROMPT), (0, 1)).values())
                )
            )

    run(main())


def test_a_prompt_of_token_ids_is_placed_once_though_texts_are_tokenised(
    workers: tuple[WorkerConfig, ...],
) -> None:
    async def main() -> None:
        async with routed(workers, str(MINI)) as (_, client):
            asked = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2}
            assert (await client.post("/v1/completions", json=asked)).status_code == 200
            samples = read_samples((await client.get("/metrics")).text, ("stretto_attempts_total",))
            assert sum(one.value for one in samples) == 1

    run(main())


def test_events_that_fail_to_be_applied_end_a_subscription_with_a_warning(
    workers: tuple[WorkerConfig, ...], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        await reset(workers)
        await warm(workers[0].url, PROMPT)
        async with routed(workers, None) as (router, client):
            router_state = router.front.router_state
            router_state.reported = broken  # type: ignore[assignment, method-assign]
            for worker in workers:
                await warm(worker.url, f"{worker.url} {PROMPT}")
            await until(lambda: caplog.text.count("are followed no more: RuntimeError('a bug')") == 2)
            assert not router_state.view.has_reports
            asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
            assert (await client.post("/v1/completions", json=asked)).status_code == 200

    run(main())


@pytest.mark.parametrize("has_late_ids", [False, True])
def test_a_request_that_fails_to_be_placed_is_answered(
    workers: tuple[WorkerConfig, ...], has_late_ids: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        await warm(workers[0].url, PROMPT)
        async with routed(workers, str(MINI) if has_late_ids else None) as (router, client):
            front = router.front
            if has_late_ids:
                front.tokens = TokenReader(MINI, timeout_s=1e-6)
            arrive, front.router_state.arrive = front.router_state.arrive, broken  # type: ignore
            asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
            reply = await client.post("/v1/completions", json=asked)
            assert reply.status_code == 500
            assert "could not place the request" in reply.json()["error"]["message"]
            assert "a request could not be placed" in caplog.text
            front.router_state.arrive = arrive  # type: ignore
            assert (await client.post("/v1/completions", json=asked)).status_code == 200
            assert front.router_state.view.num_clients == 0

    run(main())


def test_another_tokenizer_than_the_servers_is_not_used(
    workers: tuple[WorkerConfig, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    other = Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    other.save(str(tmp_path / "tokenizer.json"))

    async def main() -> None:
        config = RouterConfig(worker=workers, port=0, placement="stretto", tokenizer=str(tmp_path))
        async with RunningRouter(config) as router:
            await until(lambda: caplog.text.count("does not agree with the router's tokenizer") == 2)
            assert not any(worker.shares_tokenizer for worker in router.front.router_state.view.workers())

    run(main())


def test_late_token_ids_are_not_waited_for() -> None:
    async def main() -> None:
        reader, found = TokenReader(MINI, timeout_s=1e-6), list[Sequence[int]]()
        for _ in range(50):
            reader.read(PROMPT * 50, found.append)
        assert len(found) >= 40, "what cannot begin soon gets none at once"
        await until(lambda: len(found) == 50)
        await asyncio.sleep(0.05)
        assert found == [()] * 50
        reader.close()

    run(main())


def test_token_ids_come_once() -> None:
    async def main() -> None:
        reader, found = TokenReader(MINI, PATIENCE_S), list[Sequence[int]]()
        reader.read(PROMPT, found.append)
        await until(lambda: bool(found))
        assert found == [reader.encode(PROMPT)]
        reader.close()

    run(main())


def test_token_ids_that_come_just_when_they_are_late_come_once() -> None:
    """A request that began twice would be answered twice. uvloop rounds the times of its timers."""

    class Slow(TokenReader):
        def encode(self, text: str, *, is_prompt: bool = True) -> list[int]:
            time.sleep(0.0018)
            return [1]

    async def main() -> None:
        reader, found = Slow(MINI, timeout_s=0.002), list[Sequence[int]]()
        for number in range(400):
            found.clear()
            reader.read("text", found.append)
            await asyncio.sleep(0.004)
            await until(lambda: reader._num_pending == 0)
            assert found in ([()], [[1]]), number
        reader.close()

    uvloop.run(main())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('kv_events = {endpoint = "nonsense"}', "must be tcp://"),
        ('kv_events = {replay_endpoint = "ipc:///tmp/x"}', "endpoint"),
        ("", "a tokenizer is only of use where a worker has kv_events"),
    ],
)
def test_settings_of_kv_events_that_cannot_work_are_refused(tmp_path: Path, more: str, why: str) -> None:
    file = tmp_path / "router.toml"
    file.write_text(f'[router]\ntokenizer = "/x"\n[[router.worker]]\nurl = "http://a:1"\n{more}\n')
    with pytest.raises(ConfigError, match=why):
        read_router_config(file)


def test_a_folder_without_a_tokenizer_is_refused(workers: tuple[WorkerConfig, ...], tmp_path: Path) -> None:
    async def main() -> None:
        config = RouterConfig(worker=workers, port=0, placement="stretto", tokenizer=str(tmp_path))
        with pytest.raises(ConfigError, match="cannot load the tokenizer"):
            async with RunningRouter(config):
                pass

    run(main())
