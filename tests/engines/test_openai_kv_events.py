"""vLLM's KV events: from its messages to ours, over real sockets, with whatever gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from support.kv_publisher import CLEARED, Publisher, publishing, removed, stored
from support.openai_stub import OpenAIStub, Reply

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.held_blocks import HeldBlocks, LoadingShares
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.engines.openai_server.kv_event_stream import KVEventStream
from stretto.engines.prompt_tokens import PromptTokenizer
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Segment
from stretto.wire.kv_events import KVEventReader, Sequencer

pytest_plugins = ("support.llm_fixtures",)

HASHER = Hasher(2)
ROOT = HASHER.root("")
H12 = HASHER.chain(ROOT, (1, 2))
H34 = HASHER.chain(H12, (3, 4))
FIRST, SECOND = BlockStored(H12, ROOT, (1, 2)), BlockStored(H34, H12, (3, 4))


# --- the reader


@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize("names", [(b"a" * 32, b"b" * 32), (2**63, -5)])
def test_every_version_of_vllm_is_understood(as_lists: bool, names: tuple[Any, Any]) -> None:
    """Events were lists once and batches may be records; hashes are bytes, or integers."""
    a, b = names
    events = [stored([a, b], None, [1, 2, 3, 4], group_idx=0), removed(b, group_idx=0), CLEARED]
    if as_lists:
        batch: Any = [0.5, [list(event.values()) for event in events]]
        batch[1][0].insert(8, None)  # extra_keys
    else:
        batch = {"ts": 0.5, "events": events}
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
    assert KVEventReader().read(decoded) == [FIRST, SECOND, BlockRemoved(H34), AllBlocksCleared()]


def test_blocks_go_on_where_their_parent_is_known() -> None:
    reader = KVEventReader()
    assert reader.read([0, [stored([7], None, [1, 2])]]) == [FIRST]
    assert reader.read([0, [stored([8], 7, [3, 4])]]) == [SECOND]
    assert reader.read([0, [stored([9], 99, [5, 6]), removed(99, 8)]]) == [BlockRemoved(H34)]
    assert reader.clear() == [AllBlocksCleared()]
    assert reader.read([0, [stored([8], 7, [3, 4]), removed(7)]]) == []


def test_a_block_stored_twice_is_removed_twice() -> None:
    """Two requests that compute a block side by side store it twice; each copy is evicted by itself."""
    reader, held = KVEventReader(), HeldBlocks()
    for event, num_held in (
        (stored([7], None, [1, 2]), 1),
        (stored([7], None, [1, 2]), 1),
        (removed(7), 1),
        (removed(7), 0),
        (removed(7), 0),
    ):
        held.apply(0, reader.read([0, [event]]))
        assert held.num_held(0, [H12]) == num_held


def test_a_block_in_host_memory_is_known_by_the_one_that_was_computed() -> None:
    reader, held = KVEventReader(), HeldBlocks()
    half = LoadingShares(host=0.5)
    copied = stored([7], None, [], medium="CPU", block_size=0)
    for event, num_held in (
        (stored([7], None, [1, 2]), 1.0),
        (copied, 1.0),
        (removed(7), 0.5),
        (stored([8], 7, [3, 4]), 1.5),
        ({"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"}, 0.0),
        (stored([7], None, [1, 2], medium="DISK"), 1.0),
    ):
        held.apply(0, reader.read([0, [event]]))
        held.check_invariants()
        assert held.num_held(0, [H12, H34], half) == num_held


@pytest.mark.parametrize(
    "event",
    [
        stored([7, 8], None, [1, 2, 3, 4], extra_keys=[["salt"], None]),
        stored([7], None, [1, 2], lora_name="poet", lora_id=1),
        stored([7], None, [1, 2], medium="elsewhere"),
        stored([7], None, [], medium="CPU", block_size=0),
        stored([7], None, [1, 2], group_idx=1),
        stored([7], None, [1, 2, 3]),
        {"type": "Newer", "unknown": 1},
        ["Newer", 1],
    ],
)
def test_what_not_every_request_can_use_is_passed_over(event: Any) -> None:
    assert KVEventReader().read([0, [event]]) == []


@pytest.mark.parametrize(
    "batch",
    [
        *(None, [], 5, "text", {"ts": 1}, [0, 5], [0, [5]], [0, "x"], [0, [{}]], [0, [[]]]),
        [0, [{"type": "BlockStored"}]],
        [0, [stored([7], None, ["a", "b"])]],  # type: ignore[list-item]
        [0, [stored([[7]], None, [1, 2])]],  # type: ignore[list-item]
    ],
)
def test_what_is_no_batch_is_a_bad_reply(batch: Any) -> None:
    with pytest.raises(BadReply):
        KVEventReader().read(batch)


def test_numbers_tell_gaps_repetitions_and_restarts() -> None:
    sequencer = Sequencer()
    assert sequencer.arrive(0) == "take"
    sequencer.next = 1
    assert sequencer.arrive(3) == "gap"
    sequencer.next = 6  # by replay
    assert sequencer.arrive(4) == "known"
    assert sequencer.arrive(6) == "take"
    sequencer.next = 7
    assert sequencer.arrive(0) == "restart"
    assert sequencer.next == 0


# --- the stream


def received(
    send: Callable[[Publisher], Any], num_batches: int, *, has_replay: bool = True
) -> tuple[list[KVEvent], list[int]]:
    """Return the events of the first batches of a stream, and the numbers from which replays were asked
    for.
    """

    async def main() -> tuple[list[KVEvent], list[int]]:
        async with asyncio.timeout(100), publishing() as publisher:
            replay = publisher.replay_endpoint if has_replay else None
            stream = KVEventStream(KVEventsConfig(publisher.endpoint, replay))
            events: list[KVEvent] = []

            async def listen() -> None:
                async with aclosing(stream.events()) as batches:
                    for _ in range(num_batches):
                        events.extend(await anext(batches))

            listening = asyncio.create_task(listen())
            await publisher.subscribed()
            await send(publisher)
            await listening
            return events, publisher.asked

    return asyncio.run(main())


def test_batches_arrive_in_order() -> None:
    async def send(publisher: Publisher) -> None:
        await publisher.publish(0, stored([7], None, [1, 2]))
        await publisher.publish(1, stored([8], 7, [3, 4]), removed(8))

    events, asked = received(send, 2)
    assert events == [FIRST, SECOND, BlockRemoved(H34)]
    assert asked == [0]


def test_what_was_lost_is_replayed() -> None:
    async def send(publisher: Publisher) -> None:
        await publisher.publish(0, stored([7], None, [1, 2]))
        await publisher.publish(1, stored([8], 7, [3, 4]), is_lost=True)
        await publisher.publish(2, removed(8))
        await publisher.publish(3, removed(7))

    events, asked = received(send, 4)
    assert events == [FIRST, SECOND, BlockRemoved(H34), BlockRemoved(H12)]
    assert asked[0] == 0
    assert 1 in asked or len(asked) == 1  # lost behind the first replay, or before it


def test_a_gap_that_nobody_fills_forgets_everything() -> None:
    async def send(publisher: Publisher) -> None:
        await publisher.publish(0, stored([7], None, [1, 2]))
        await publisher.publish(2, stored([8], 7, [3, 4]), stored([7], None, [1, 2]))

    events, _ = received(send, 3, has_replay=False)
    assert events == [FIRST, AllBlocksCleared(), FIRST]


def test_a_batch_that_comes_twice_counts_once_and_is_no_restart() -> None:
    async def send(publisher: Publisher) -> None:
        for _ in range(3):
            await publisher.publish(0, stored([7], None, [1, 2]))
        await publisher.publish(1, stored([8], 7, [3, 4]))

    events, _ = received(send, 2, has_replay=False)
    assert events == [FIRST, SECOND]


def test_a_late_subscriber_forgets_nothing_that_it_can_still_have() -> None:
    async def send(publisher: Publisher) -> None:
        for number in range(5):
            await publisher.publish(number, stored([number], None, [1, 2]), is_lost=True)
        del publisher.kept[0], publisher.kept[1]
        await publisher.publish(5, stored([7], None, [1, 2]))

    events, _ = received(send, 5)
    assert events == [AllBlocksCleared(), FIRST, FIRST, FIRST, FIRST]


def test_a_publisher_that_begins_anew_has_an_empty_cache() -> None:
    async def send(publisher: Publisher) -> None:
        await publisher.publish(0, stored([7], None, [1, 2]))
        await publisher.publish(1)
        await publisher.publish(0, stored([8], 7, [3, 4]), stored([9], None, [1, 2]))

    events, _ = received(send, 4, has_replay=False)
    assert events == [FIRST, AllBlocksCleared(), FIRST]


@pytest.mark.parametrize("payload", [b"\xc1", b"\x05", msgspec.msgpack.encode([0, [{"type": 5}], None])[:-3]])
def test_what_are_no_events_is_a_bad_reply(payload: bytes) -> None:
    async def send(publisher: Publisher) -> None:
        await publisher.publish(0, payload=payload)

    with pytest.raises(BadReply):
        received(send, 1, has_replay=False)


@pytest.mark.parametrize("endpoint", ["here", "tcp://x", "tcp://*:5557"])
def test_an_endpoint_has_to_be_one(endpoint: str) -> None:
    async def main() -> None:
        async with aclosing(KVEventStream(KVEventsConfig(endpoint)).events()) as batches:
            await anext(batches)

    with pytest.raises(ConfigError, match="cannot connect"):
        asyncio.run(main())


def test_a_replay_endpoint_that_is_silent_holds_nothing_up() -> None:
    async def main() -> list[KVEvent]:
        async with asyncio.timeout(100), publishing() as publisher:
            with zmq.Context() as context, closing(context.socket(zmq.ROUTER)) as silent:
                port = silent.bind_to_random_port("tcp://127.0.0.1")
                config = KVEventsConfig(publisher.endpoint, f"tcp://127.0.0.1:{port}", timeout_s=0.05)
                async with aclosing(KVEventStream(config).events()) as batches:
                    first = asyncio.ensure_future(anext(batches))
                    await publisher.subscribed()
                    await publisher.publish(0, stored([7], None, [1, 2]))
                    return await first

    assert asyncio.run(main()) == [FIRST]


# --- the engine


def test_a_server_that_tells_what_it_holds_is_not_sent_that(tiny_checkpoint: Path) -> None:
    """Nor is guessed what it has evicted."""
    head = (Segment("The rules of the house are as follows, and they are many. " * 8),)
    tokens = PromptTokenizer(tiny_checkpoint).encode(head)
    num_blocks = len(tokens) // 16
    hashes = list(range(num_blocks))
    event = stored(hashes, None, tokens[: 16 * num_blocks], block_size=16)

    async def main() -> list[int]:
        counts = []
        async with (
            asyncio.timeout(100),
            publishing() as publisher,
            OpenAIStub(lambda _: Reply(("so",))) as stub,
        ):
            config = OpenAIServerConfig(
                stub.url,
                tokenizer=str(tiny_checkpoint),
                kv_events=KVEventsConfig(publisher.endpoint, publisher.replay_endpoint),
            )
            server = OpenAIServer(config)
            events: list[LLMEvent] = []

            async def prefill() -> None:
                await server.generate(LLMTask(1, "q", "answer", head, None), events.append)
                counts.append(len(stub.requests))

            await prefill()
            await publisher.subscribed()
            await prefill()  # the server has not said that it holds it
            await publisher.publish(0, event)
            while server._known.held.num_held(tokens) == 0:
                await asyncio.sleep(0.001)
            await prefill()
            await publisher.publish(1, removed(*hashes))
            while server._known.held.num_held(tokens) > 0:
                await asyncio.sleep(0.001)
            await prefill()
            await server.aclose()
        return counts

    assert asyncio.run(main()) == [1, 2, 2, 3]


def test_nonsense_in_the_events_ends_the_listening_alone(tiny_checkpoint: Path) -> None:
    async def main() -> LLMEvent:
        async with (
            asyncio.timeout(100),
            publishing() as publisher,
            OpenAIStub(lambda _: Reply(("so",))) as stub,
        ):
            config = OpenAIServerConfig(
                stub.url, tokenizer=str(tiny_checkpoint), kv_events=KVEventsConfig(publisher.endpoint)
            )
            server = OpenAIServer(config)
            events: list[LLMEvent] = []
            task = LLMTask(1, "q", "answer", (Segment("x"),), Decode())
            await server.generate(task, events.append)
            await publisher.subscribed()
            await publisher.publish(0, payload=b"\xc1")
            while server._known.is_followed:
                await asyncio.sleep(0.001)
            await server.generate(task, events.append)
            await server.aclose()
            return events[-1]

    assert isinstance(asyncio.run(main()), Done)


def test_events_of_tokens_need_the_tokenizer() -> None:
    async def main() -> LLMEvent:
        async with OpenAIStub(lambda _: Reply(("so",))) as stub:
            config = OpenAIServerConfig(stub.url, kv_events=KVEventsConfig("tcp://127.0.0.1:1"))
            server = OpenAIServer(config)
            events: list[LLMEvent] = []
            await server.generate(LLMTask(1, "q", "answer", (Segment("x"),), Decode()), events.append)
            await server.aclose()
            return events[-1]

    ending = asyncio.run(main())
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError)
