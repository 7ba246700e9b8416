"""The ways of messages between the event loop and an instance: all arrive, in order, and none makes the loop
wait.
"""

from __future__ import annotations

import asyncio
import datetime
import pickle
import random
import select
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
from support.virtual_loop import in_real_time

from stretto.cluster.kv_events import BlockRemoved, BlockStored
from stretto.cluster.messages import KVReport
from stretto.model.tasks import Task
from stretto.runtime.instances.frames import READ_BYTES, Frames, framed
from stretto.runtime.instances.outbox import Outbox
from stretto.runtime.instances.process_worker import Mail
from stretto.runtime.instances.reading import MessageReading
from stretto.runtime.instances.thread import Mailbox
from stretto.runtime.worker import CloseEngine, Command, ForgetQuery, RunBatch, SuspendTasks
from stretto.sched.engine_events import AllSuspended, BatchDone, InstanceReady, Suspended
from stretto.sched.messages import Event


def is_woken(mailbox: Mailbox[int]) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def test_a_mailbox_wakes_its_receiver_once_until_it_is_emptied() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.empty()
    assert not is_woken(mailbox)
    mailbox.put(1)
    assert is_woken(mailbox)
    mailbox.put(2)
    assert mailbox.take_woken() == [1, 2]
    assert not is_woken(mailbox)
    mailbox.put(3)
    assert is_woken(mailbox)
    assert mailbox.get() == 3
    assert mailbox.empty()


@in_real_time
async def test_mailboxes_lose_nothing_between_a_thread_and_the_loop() -> None:
    """The thread sends back what it gets, and both now and then wait for the other one."""
    there: Mailbox[int] = Mailbox()
    back: Mailbox[int] = Mailbox()
    count = 5000

    def echo() -> None:
        for _ in range(count):
            back.put(there.get())

    thread = threading.Thread(target=echo)
    thread.start()
    received: list[int] = []
    everything = asyncio.Event()

    def receive() -> None:
        received.extend(back.take_woken())
        if len(received) == count:
            everything.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(back, receive)
    order = random.Random(1)
    for number in range(count):
        there.put(number)
        if order.random() < 0.1:
            await asyncio.sleep(0)
    await everything.wait()
    loop.remove_reader(back)
    thread.join()
    assert received == list(range(count))


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 100, 1_000_000])
def test_messages_are_whole_wherever_the_stream_is_cut(cut: int) -> None:
    messages = [b"", b"a", bytes(300), b"last"]
    stream = b"".join(map(framed, messages))
    frames = Frames()
    got = [one for at in range(0, len(stream), cut) for one in frames.feed(stream[at : at + cut])]
    assert got == messages


class Slow:
    """An object that unpickles when it is let go."""

    let_go = threading.Event()

    def __setstate__(self, state: object) -> None:
        assert self.let_go.wait(60)

    def __getstate__(self) -> object:
        return ()


def batch_done(number: int, value: object) -> bytes:
    return pickle.dumps(BatchDone("engine", 0, number, [value]))


@in_real_time
async def test_a_foreign_object_that_unpickles_slowly_holds_up_its_instance_and_not_the_loop() -> None:
    received: list[int] = []
    ends: list[BaseException | None] = []
    ended = asyncio.Event()

    def receive(event: Event) -> None:
        assert isinstance(event, BatchDone)
        received.append(event.batch)

    def end(error: BaseException | None) -> None:
        ends.append(error)
        ended.set()

    reading = MessageReading(receive, end, "reading")
    reading.read(batch_done(0, "own"))
    assert received == [0], "there is nothing to wait for"
    Slow.let_go.clear()
    for number, value in enumerate((Slow(), "behind", datetime.date(2024, 1, 1)), 1):
        reading.read(batch_done(number, value))
    reading.read(None)
    await asyncio.sleep(0.01)
    assert received == [0], "order stays"
    Slow.let_go.set()
    await ended.wait()
    assert received == [0, 1, 2, 3]
    assert ends == [None]
    reading.close()


@in_real_time
async def test_reports_of_caches_and_suspended_tasks_of_a_process_are_read_at_once() -> None:
    received: list[Event] = []
    reading = MessageReading(received.append, lambda error: None, "reading")
    events: list[Event] = [
        KVReport("llm", 0, (BlockStored(b"block", b"parent", (1, 2)), BlockRemoved(b"other"))),
        Suspended("llm", 0, 7, (3, 4)),
        AllSuspended("llm", 0),
    ]
    for event in events:
        reading.read(pickle.dumps(event))
    assert received == events
    assert pickle.loads(pickle.dumps(SuspendTasks())) == SuspendTasks()
    reading.close()


def run_batch(number: int, value: object) -> RunBatch:
    return RunBatch(number, (Task(0, "query", "step", "call", {"value": value}, {}),))


def received_from(pipe: socket.socket) -> Iterable[Command]:
    frames = Frames()
    while data := pipe.recv(READ_BYTES):
        yield from map(pickle.loads, frames.feed(data))


@in_real_time
async def test_large_commands_are_pickled_elsewhere_and_keep_their_places() -> None:
    """Nobody reads at first, and the pipe is full long before the last command."""
    ours, theirs = socket.socketpair()
    refused: list[tuple[Command, threading.Thread]] = []
    has_refused = asyncio.Event()
    pickled_by: list[threading.Thread] = []

    class Noting:
        def __reduce__(self) -> tuple[type[str], tuple[str]]:
            pickled_by.append(threading.current_thread())
            return str, ("noted",)

    def refuse(command: Command, error: Exception) -> None:
        refused.append((command, threading.current_thread()))
        has_refused.set()

    outbox = Outbox(ours, "outbox", refuse)
    outbox.send(run_batch(0, "x" * 100_000))
    outbox.send(run_batch(1, ["y" * 1_000_000, Noting()]))
    large_and_bad = run_batch(2, ["z" * 1_000_000, lambda: None])
    outbox.send(large_and_bad)
    small = [ForgetQuery(f"query {number}") for number in range(10_000)]
    for command in small:
        outbox.send(command)
    outbox.end()
    arriving = asyncio.to_thread(lambda: list(received_from(theirs)))
    reading = asyncio.create_task(arriving)
    await asyncio.to_thread(outbox.join, 60)
    ours.close()
    arrived = await reading
    theirs.close()
    await has_refused.wait()
    assert arrived == [run_batch(0, "x" * 100_000), run_batch(1, ["y" * 1_000_000, "noted"]), *small]
    assert refused == [(large_and_bad, threading.current_thread())]
    assert pickled_by
    assert threading.current_thread() not in pickled_by


def test_a_process_whose_runtime_has_ended_in_the_middle_closes_its_engine() -> None:
    """Events that the runtime did not read turn the end of its pipe into a reset."""
    ours, theirs = socket.socketpair()
    with theirs:
        mail = Mail(theirs)
        mail.post(InstanceReady("engine", 0))
        assert mail.empty()
        ours.close()
        mail.post(InstanceReady("engine", 0))
        assert not mail.empty()
        assert mail.get() == CloseEngine()


@pytest.fixture
def hasty_sockets() -> Iterator[None]:
    """A program that sets a timeout for all sockets that it will open."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    yield
    socket.setdefaulttimeout(before)


@pytest.mark.usefixtures("hasty_sockets")
def test_a_process_waits_for_commands_whatever_the_default_timeout_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        mail = Mail(theirs)
        command = ForgetQuery("query")
        sending = threading.Timer(0.05, lambda: ours.sendall(framed(pickle.dumps(command))))
        sending.start()
        assert mail.get() == command
        sending.join()


@pytest.mark.usefixtures("hasty_sockets")
@in_real_time
async def test_commands_wait_for_a_busy_process_whatever_the_default_timeout_is() -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(None)
    outbox = Outbox(ours, "outbox", lambda command, error: None)
    commands: list[Command] = [run_batch(0, "x" * 1_000_000), ForgetQuery("query")]
    for command in commands:
        outbox.send(command)
    outbox.end()
    await asyncio.sleep(0.05)
    reading = asyncio.create_task(asyncio.to_thread(lambda: list(received_from(theirs))))
    await asyncio.to_thread(outbox.join, 60)
    ours.close()
    assert await reading == commands
    theirs.close()
