"""What routers before the same workers bear of each other: floods, endless requests, and silence."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from support.routing import StubServer, run, until

from stretto.cluster.placements.stretto import Stretto
from stretto.router.announcing import announcer
from stretto.router.announcing.announcer import BEAT_S, Announcer
from stretto.router.announcing.wire import (
    MOST_LETTERS,
    MOST_OWNERS,
    TOPIC,
    PeerBatch,
    PeerRecord,
    PeerSnapshot,
    SentRecord,
    read_message,
    write_message,
)
from stretto.router.config import RouterConfig
from stretto.router.peer_link import PeerLink
from stretto.router.peers import peers as followed
from stretto.router.peers.peers import SILENT_S, Peers
from stretto.router.router_state import RouterState
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig


def sent(number: int, blocks: bytes = b"") -> SentRecord:
    return SentRecord(
        request=number,
        model="m",
        owner="t",
        program=f"p{number}",
        has_returned=False,
        is_final=False,
        num_tokens=64,
        num_output=9,
        blocks=blocks,
        room="inside",
        attempt=number,
        worker="http://w",
        held_tokens=0,
        objective="latency",
    )


def door() -> tuple[RouterState, Peers]:
    state = RouterState(RouterConfig(), Stretto())
    worker = state.membership.add(WorkerConfig(url="http://w")).id
    state.membership.check_passed(worker, {"m": {"id": "m"}}, None, 0.0)
    server = next(iter(state.view.workers())).server
    assert server == sent(0).worker
    return state, state.follow_peers("us")


def test_requests_of_a_peer_that_never_end_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "MOST_RUNNING", 10)
    state, peers = door()
    for number in range(1, 6):
        records: list[PeerRecord] = [sent(7 * number + one) for one in range(7)]
        peers.receive(write_message(PeerBatch("other", number, records)), 0.0)
    assert len(state._room._of_ticket) == 10
    peers.check_invariants()
    peers.forget_silent(SILENT_S)
    assert not peers.origins
    assert not state._room._of_ticket


def test_the_owners_of_a_peer_are_remembered_up_to_a_limit() -> None:
    _, peers = door()
    for number in range(1, 4):
        served = {f"{number} {one}": 1.0 for one in range(MOST_OWNERS)}
        peers.receive(write_message(PeerBatch("other", number, [sent(number)], served)), 0.0)
    assert len(peers._peers["other"].served) == 2 * MOST_OWNERS


def test_long_names_of_owners_do_not_make_a_message_unreadable() -> None:
    told = Announcer("us")
    told.charged("x" * 5 * MOST_LETTERS, 2.0)
    told.waiting.add(1, 0, "\ud800" * 5 * MOST_LETTERS)
    (batch,) = [read_message(write_message(one)) for one in told.messages(1.0)]
    assert isinstance(batch, PeerBatch)
    assert batch.served == {"x" * MOST_LETTERS: 2.0}
    assert batch.waits == {"": {"?" * MOST_LETTERS: 1}}


def test_who_waits_is_told_when_that_changes_and_now_and_then() -> None:
    """Not for each request: a message costs more than what it says."""
    told, news = Announcer("us"), []
    told.on_news = lambda: news.append(1)

    def waits(now_s: float) -> list[object]:
        return [one.waits for one in told.messages(now_s) if isinstance(one, PeerBatch)]

    told.waiting.add(1, 0, "a")
    assert waits(1.0) == [{"": {"a": 1}}]
    told.waiting.add(2, 0, "a")
    assert len(news) == 1
    assert waits(1.1) == []
    told.waiting.add(3, 0, "b")
    told.waiting.remove(3)
    assert waits(1.2) == []
    told.sent(sent(1))
    assert waits(1.3) == [None]
    told.sent(sent(2))
    assert waits(1.0 + BEAT_S) == [{"": {"a": 2}}]
    told.waiting.remove(1)
    told.waiting.remove(2)
    assert waits(1.1 + BEAT_S) == [{}]


def test_a_snapshot_of_long_prompts_is_no_longer_than_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "MOST_BYTES", 1000)
    told = Announcer("us")
    for number in range(20):
        told.sent(sent(number, b"8 bytes." * 50))
    told.asked("other", history=False)
    snapshot = next(one for one in told.messages(1.0) if isinstance(one, PeerSnapshot))
    assert [one.attempt for one in snapshot.running] == [*range(20)]
    assert sum(len(one.blocks) for one in snapshot.running) == 800


def test_a_peer_that_does_not_hear_us_is_noticed() -> None:
    _, peers = door()
    peers.receive(write_message(PeerBatch("deaf", 5, [sent(1)])), 0.0)
    for number in range(6, 10):
        peers.receive(write_message(PeerBatch("deaf", number, [sent(number)])), SILENT_S - 0.1)
    assert not peers.has_deaf(SILENT_S - 0.1)
    assert peers.has_deaf(SILENT_S)
    peers.receive(write_message(PeerSnapshot("deaf", 9, [], {}, {})), SILENT_S)
    assert not peers.has_deaf(2 * SILENT_S)


class Flood:
    """A socket with a message at any time, for so long."""

    def __init__(self, num: int) -> None:
        self.num_left = num

    def recv_multipart(self, _: int) -> list[bytes]:
        import zmq

        self.num_left -= 1
        if not self.num_left:
            raise zmq.Again
        return [TOPIC, write_message(PeerBatch("other", 0))]


def config_of(server: StubServer, folder: Path, *others: str) -> RouterConfig:
    return RouterConfig(
        worker=(WorkerConfig(url=server.url),),
        port=0,
        announce=f"ipc://{folder}/a",
        peer=tuple(f"ipc://{folder}/{other}" for other in others),
    )


def test_a_flood_of_messages_leaves_time_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        server = StubServer("well")
        await server.open()
        try:
            async with RunningRouter(config_of(server, tmp_path)) as router:
                assert router.peers is not None
                flood, socket = Flood(10_000), router.peers._in
                router.peers._in = flood  # type: ignore[assignment]
                router.peers._read()
                for _ in range(10):
                    await asyncio.sleep(0)
                assert 9_900 < flood.num_left < 10_000
                router.peers._in = socket
        finally:
            server.kill()

    run(main())


def test_routers_that_are_not_heard_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = StubServer("well")
        await server.open()
        try:
            async with RunningRouter(config_of(server, tmp_path, "a", "nobody")) as router:
                link = router.peers
                assert isinstance(link, PeerLink)
                await until(lambda: link._peers.hears_itself)
                start_s = link._all_heard_s
                for after_s in (0.0, SILENT_S, 2 * SILENT_S):
                    link._note_missing(start_s + after_s)
        finally:
            server.kill()

    with caplog.at_level(logging.WARNING):
        run(main())
    warnings = [one.message for one in caplog.records if "other routers are heard" in one.message]
    assert len(warnings) == 1
    assert warnings[0].startswith("1 of 2 ")
