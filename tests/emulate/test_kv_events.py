"""KV events of emulated servers, as Stretto's client understands them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest
from support.emulated import emulating, fleet_of

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

import asyncio

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockStored, KVEvent
from stretto.emulate.kv_publisher import KVPublisher
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.engines.openai_server.kv_event_stream import KVEventStream
from stretto.model.errors import ConfigError

PROMPT = list(range(100, 164))


class Heard:
    """What a subscriber has heard so far, on a thread of its own."""

    def __init__(self, config: KVEventsConfig) -> None:
        self.events: list[KVEvent] = []
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        async def follow() -> None:
            async for events in KVEventStream(self._config).events():
                self.events += events

        self._task = self._loop.create_task(follow())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)

    def num_stored(self) -> int:
        return sum(isinstance(event, BlockStored) for event in self.events)


@contextmanager
def heard(folder: Path) -> Iterator[tuple[str, Heard]]:
    endpoint = f"ipc://{folder}/kv"
    with emulating(fleet_of(kv_events=endpoint)) as (url,):
        listener = Heard(KVEventsConfig(endpoint, f"{endpoint}-replay"))
        listener.start()
        try:
            yield url, listener
        finally:
            listener.stop()


def ask(url: str, prompt: Sequence[int] = PROMPT) -> None:
    body = {"prompt": list(prompt), "max_tokens": 2, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body).raise_for_status()


def wait_until(listener: Heard, num_blocks: int) -> None:
    deadline_s = time.monotonic() + 100
    while listener.num_stored() < num_blocks:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_stored_blocks_are_published_and_missed_ones_sent_again(tmp_path: Path) -> None:
    with heard(tmp_path) as (url, listener):
        ask(url)
        wait_until(listener, 4)
        stored = [event for event in listener.events if isinstance(event, BlockStored)]
        assert [token for event in stored for token in event.tokens] == PROMPT
        ask(url)  # all of it is cached
        ask(url, PROMPT[::-1])
        wait_until(listener, 8)
        assert len(listener.events) == 8


def test_lost_messages_leave_a_gap_that_a_subscriber_notices(tmp_path: Path) -> None:
    with heard(tmp_path) as (url, listener):
        ask(url)
        wait_until(listener, 4)
        faults = f"{url}/emulator/faults"
        httpx.post(faults, json={"kind": "lost_events"})
        while not httpx.get(faults).json()["faults"]:
            time.sleep(0.01)
        ask(url, PROMPT[::-1])
        httpx.delete(faults)
        ask(url, [5, *PROMPT])
        wait_until(listener, 8)
        assert AllBlocksCleared() in listener.events


@pytest.mark.parametrize("path", ["reset_prefix_cache", "sleep"])
def test_an_emptied_cache_is_reported(tmp_path: Path, path: str) -> None:
    with heard(tmp_path) as (url, listener):
        ask(url)
        wait_until(listener, 4)
        httpx.post(f"{url}/{path}")
        deadline_s = time.monotonic() + 100
        while AllBlocksCleared() not in listener.events:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_two_servers_cannot_publish_at_one_address() -> None:
    for endpoint in ("ipc:///tmp/kv", "ipc:///tmp/kv-{port}"):
        with pytest.raises(
            ConfigError, match=r"server 1: KV events at 'ipc:///tmp/kv(-0)?' are published by"
        ):
            fleet_of(2, kv_events=endpoint)


def stored(number: int, salt: str = "") -> BlockStored:
    """A first block of a prompt."""
    return BlockStored(number.to_bytes(16), Hasher(1).root(salt), (number,))


def test_a_subscriber_that_comes_late_gets_all_that_is_kept(tmp_path: Path) -> None:
    async def follow() -> None:
        config = KVEventsConfig(f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/kv-replay")
        publisher = KVPublisher(config)
        try:
            for number in range(5000):
                publisher.publish([stored(number)])
            found: list[KVEvent] = []
            async for events in KVEventStream(config).events():
                found += events
                if len(found) == 5000:
                    break
            assert [event.tokens for event in found if isinstance(event, BlockStored)] == [
                (number,) for number in range(5000)
            ]
        finally:
            publisher.close()

    asyncio.run(asyncio.wait_for(follow(), 100))


def test_only_the_last_tenants_are_remembered(tmp_path: Path) -> None:
    async def publish() -> None:
        config = KVEventsConfig(f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/kv-replay")
        publisher = KVPublisher(config)
        try:
            for number in range(40_000):
                publisher.know(f"tenant {number}")
            publisher.publish([stored(1), stored(2, "tenant 39999"), stored(3, "tenant 0")])
            found: list[KVEvent] = []
            async for events in KVEventStream(config).events():
                found += events
                break
            assert [event.tokens for event in found if isinstance(event, BlockStored)] == [(1,)]
            assert len(publisher._salts) == 10_000
        finally:
            publisher.close()

    asyncio.run(asyncio.wait_for(publish(), 100))


def test_what_is_late_when_a_server_restarts_is_never_sent(tmp_path: Path) -> None:
    async def follow() -> None:
        config = KVEventsConfig(f"ipc://{tmp_path}/kv")
        publisher = KVPublisher(config)
        found: list[KVEvent] = []

        async def listen() -> None:
            async for events in KVEventStream(config).events():
                found.extend(events)

        listening = asyncio.create_task(listen())
        try:
            while not found:
                publisher.publish([stored(1)])
                await asyncio.sleep(0.01)
            publisher.delay_s = 0.2
            publisher.publish([stored(2)])
            publisher.restart()
            publisher.delay_s = 0.3
            publisher.publish([stored(3)])
            while stored(3).tokens != getattr(found[-1], "tokens", ()):
                await asyncio.sleep(0.01)
            assert all(event.tokens != (2,) for event in found if isinstance(event, BlockStored))
        finally:
            listening.cancel()
            publisher.close()

    asyncio.run(asyncio.wait_for(follow(), 100))
