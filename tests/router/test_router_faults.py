"""Faults of workers and clients: nothing is lost before the first byte, nothing ends silently after it."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from support.routing import (
    DONE,
    EVENTS,
    FLOOD_PART,
    FLOOD_PARTS,
    PATIENCE_S,
    STREAM,
    WHOLE,
    Routing,
    StubServer,
    routing,
    run,
    until,
)

from stretto.http.client_request import ClientRequest
from stretto.http.server import HttpServer
from stretto.router.config import RouterConfig
from stretto.router.front import Front
from stretto.router.messages import RouterAction


def is_clean(at: Routing) -> bool:
    """Return whether the router has nothing in hand, and all loads are back at zero."""
    at.router_state.check_invariants()
    return at.router_state.view.num_clients == 0 and all(
        at.router_state.view.num_running(w.id) == 0 for w in at.router_state.view.workers()
    )


@pytest.mark.parametrize("mode", ["closes", "503", "half", "half chunks"])
def test_an_attempt_that_fails_before_the_first_byte_is_repeated_elsewhere(mode: str) -> None:
    async def main() -> None:
        async with routing(mode, "well", placement="round_robin") as at:
            for _ in range(6):
                assert (await at.ask()).content == WHOLE
            if not mode.startswith("half"):
                assert (await at.ask(stream=True)).content == STREAM
            assert len(at.servers[0].asked) >= 1
            assert is_clean(at)

    run(main())


def test_a_killed_worker_loses_no_request_before_the_first_byte() -> None:
    async def main() -> None:
        async with routing("waits", "well", "well", "well", placement="round_robin") as at:
            asked = [asyncio.create_task(at.ask()) for _ in range(12)]
            await until(lambda: len(at.servers[0].asked) >= 3)
            at.servers[0].kill()
            asked += [asyncio.create_task(at.ask(stream=True)) for _ in range(8)]
            replies = await asyncio.gather(*asked)
            assert [reply.status_code for reply in replies] == [200] * 20
            assert {reply.content for reply in replies} == {WHOLE, STREAM}
            assert at.router_state.view.worker(0).state == "suspect"
            assert is_clean(at)

    run(main())


def test_a_worker_that_comes_back_is_used_again() -> None:
    async def main() -> None:
        async with routing("well", "well", placement="round_robin") as at:
            at.servers[0].kill()
            for _ in range(4):
                assert (await at.ask()).headers["x-stretto-worker"] == "1"
            await at.servers[0].open()
            await until(lambda: at.router_state.view.worker(0).state == "serving")
            workers = {(await at.ask()).headers["x-stretto-worker"] for _ in range(4)}
            assert workers == {"0", "1"}

    run(main())


def test_a_stream_that_is_cut_ends_in_an_error_event() -> None:
    async def main() -> None:
        async with routing("cut", "well", placement="round_robin") as at:
            content = (await at.ask(stream=True)).content
            assert content.startswith(EVENTS[0])
            event = json.loads(content.removeprefix(EVENTS[0]).removeprefix(b"data: "))
            assert "the answer was cut: it closed the connection" in event["error"]["message"]
            assert DONE not in content
            assert is_clean(at)
            assert await at.total("stretto_requests_total", status="0") == 1

    run(main())


def test_the_next_request_after_a_cut_stream_may_come_on_the_same_connection() -> None:
    """A connection that is closed behind a whole answer resets what the client has sent on it meanwhile."""

    async def main() -> None:
        async with routing("cut", "well", placement="round_robin") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            body = b'{"model":"m","prompt":"a","stream":true}'
            asked = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
            ends = []
            for _ in range(2):
                writer.write(asked)
                ends.append(await reader.readuntil(b"0\r\n\r\n"))
            assert [b"the answer was cut" in one for one in ends] == [True, False]
            writer.close()

    run(main())


def test_a_hung_worker_is_left_when_its_health_checks_fail() -> None:
    async def main() -> None:
        async with routing(
            "well", "well", health_interval_s=0.05, health_timeout_s=0.1, placement="round_robin"
        ) as at:
            hung = at.servers[0]
            hung.mode = "waits"
            asks = asyncio.gather(*(at.ask() for _ in range(6)))
            await until(lambda: bool(hung.asked))
            hung.mode = "silent"
            replies = await asks
            assert {reply.content for reply in replies} == {WHOLE}
            assert "did not answer /health" in at.router_state.view.worker(0).reason
            assert await at.total("stretto_failed_attempts_total", worker=at.servers[0].url) >= 1
            assert at.servers[0].num_left >= 1
            assert is_clean(at)

    run(main())


def test_a_worker_that_answers_too_late_is_replaced() -> None:
    async def main() -> None:
        async with routing("waits", "well", first_byte_timeout_s=0.2, placement="round_robin") as at:
            reply = await at.ask()
            assert (reply.content, reply.headers["x-stretto-worker"]) == (WHOLE, "1")

    run(main())


def test_a_stream_that_stops_is_cut() -> None:
    async def main() -> None:
        async with routing("waits", idle_timeout_s=0.2) as at:
            content = (await at.ask(stream=True)).content
            assert b"it sent nothing for 0.2 s" in content
            assert is_clean(at)

    run(main())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_is_aborted_at_the_worker(is_streamed: bool) -> None:
    async def main() -> None:
        async with routing("waits") as at:
            body = json.dumps({"prompt": "a", "stream": is_streamed}).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: len(at.servers[0].asked) == 1)
            writer.transport.abort()
            await until(lambda: at.servers[0].num_left == 1)
            assert is_clean(at)
            assert at.router_state.view.worker(0).state == "serving"
            assert await at.total("stretto_requests_total", status="499") == 1

    run(main())


def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async def main() -> None:
        async with routing() as at:
            with pytest.raises(httpx.ReadTimeout):
                await at.client.post("/v1/completions", json={"prompt": "a"}, timeout=0.2)
            await until(lambda: is_clean(at))
            assert at.router_state.view.num_waiting == 0

    run(main())


def test_requests_beyond_the_queue_are_refused_with_429() -> None:
    async def main() -> None:
        async with routing("waits", max_waiting=2, num_slots=1) as at:
            asked = [asyncio.create_task(at.ask()) for _ in range(3)]
            await until(lambda: at.router_state.view.num_clients == 3)
            assert at.router_state.view.num_waiting == 2
            refused = await at.ask()
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert "2 requests wait already" in refused.json()["error"]["message"]
            at.servers[0].go_on.set()
            assert {(await one).content for one in asked} == {WHOLE}
            assert is_clean(at)

    run(main())


def test_an_error_of_the_request_is_the_workers_and_no_failure() -> None:
    async def main() -> None:
        async with routing("400", "well", max_failures=1, placement="round_robin") as at:
            replies = [await at.ask() for _ in range(6)]
            assert [reply.status_code for reply in replies] == [400, 200] * 3
            assert b"stub says 400" in replies[0].content
            assert at.router_state.view.worker(0).state == "serving"

    run(main())


def test_the_last_failure_is_passed_on_when_all_fail() -> None:
    async def main() -> None:
        async with routing("503", "503", max_failures=100, placement="round_robin") as at:
            reply = await at.ask()
            assert (reply.status_code, reply.content) == (503, b'{"error": {"message": "stub says 503"}}')
            assert [len(server.asked) for server in at.servers] == [1, 1]

    run(main())


def test_a_failing_worker_gets_one_request_at_a_time_until_it_answers() -> None:
    async def main() -> None:
        async with routing("503", "well", max_failures=2, placement="round_robin") as at:
            await asyncio.gather(*(at.ask() for _ in range(20)))
            at.servers[0].mode = "waits"
            await until(lambda: at.router_state.view.worker(0).on_trial)
            before = len(at.servers[0].asked)
            asked = [asyncio.create_task(at.ask()) for _ in range(10)]
            await until(lambda: sum(task.done() for task in asked) == 9)
            assert len(at.servers[0].asked) == before + 1
            at.servers[0].go_on.set()
            await asyncio.gather(*asked)
            assert not at.router_state.view.worker(0).on_trial

    run(main())


def test_a_worker_is_drained_under_load_without_a_loss() -> None:
    async def main() -> None:
        async with routing("waits", "well", placement="round_robin") as at:
            asked = [asyncio.create_task(at.ask(stream=True)) for _ in range(8)]
            await until(lambda: len(at.servers[0].asked) == 4)
            answer = await at.client.post("/router/workers/0/drain")
            assert answer.json() == {"worker": 0, "left": [0, 1]}
            asked += [asyncio.create_task(at.ask(stream=True)) for _ in range(8)]
            await until(lambda: sum(task.done() for task in asked) == 12)
            at.servers[0].go_on.set()
            assert {(await one).content for one in asked} == {STREAM}
            assert len(at.servers[0].asked) == 4
            assert [worker.id for worker in at.router_state.view.workers()] == [1]
            assert (await at.client.post("/router/workers/0/drain")).status_code == 400

    run(main())


def test_a_worker_that_is_removed_loses_only_answers_that_have_begun() -> None:
    async def main() -> None:
        async with routing("waits", "well", placement="round_robin") as at:
            begun = asyncio.create_task(at.ask(stream=True))
            await until(lambda: len(at.servers[0].asked) == 1)
            await at.ask()
            whole = asyncio.create_task(at.ask())
            await until(lambda: len(at.servers[0].asked) == 2)
            assert (await at.client.delete("/router/workers/0")).status_code == 200
            assert (await whole).content == WHOLE
            assert b"the worker was removed" in (await begun).content
            await until(lambda: at.servers[0].num_left == 2)
            assert is_clean(at)

    run(main())


def test_a_router_starts_before_its_workers() -> None:
    async def main() -> None:
        server = StubServer()
        await server.open()
        server.kill()
        async with routing(urls=(server.url,)) as at:
            asked = asyncio.create_task(at.ask())
            await until(lambda: at.router_state.view.num_waiting == 1)
            assert (await at.client.get("/health")).status_code == 503
            await server.open()
            assert (await asked).content == WHOLE
            server.kill()

    run(main())


def test_a_request_that_waits_too_long_is_refused_with_503() -> None:
    async def main() -> None:
        async with routing(max_wait_s=0.1) as at:
            reply = await at.ask()
            assert reply.status_code == 503
            assert "no worker could take the request in 0.1 s" in reply.json()["error"]["message"]

    run(main())


def test_a_request_that_has_waited_before_is_refused_in_its_own_time() -> None:
    class Due:
        next_due_s: float | None = None
        num_expired = 0

        def expire(self, now_s: float) -> list[RouterAction]:
            self.next_due_s = None
            self.num_expired += 1
            return []

    async def main() -> None:
        front = Front(RouterConfig())
        front.unsettled_state.timers = due = Due()  # type: ignore[assignment]
        for due_s in (1000.0, 0.01, 2000.0):
            due.next_due_s = monotonic() + due_s
            front.act([])
        await until(lambda: due.num_expired == 1)

    run(main())


async def flooded(at: Routing) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream that is not read, and wait until the worker is stopped."""
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # else the kernel may take the flood
    sock.connect(("127.0.0.1", at.router.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1000)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await until(lambda: any(one.attempts.is_paused for one in at.router.front.exchanges.values()))
    return reader, writer


def test_a_client_that_leaves_an_answer_unread_is_what_took_the_time() -> None:
    async def main() -> None:
        async with routing("floods") as at:
            _, writer = await flooded(at)
            (exchange,) = at.router.front.exchanges.values()
            writer.transport.abort()
            await until(lambda: is_clean(at))
            trace = exchange.trace
            assert trace.ended_s is not None
            assert 0 < trace.paused_s <= trace.ended_s - trace.arrived_s
            (program,) = at.router.front.watch.programs
            assert program.path.network == pytest.approx(trace.paused_s)

    run(main())


def test_a_client_that_does_not_read_stops_the_worker() -> None:
    async def main() -> None:
        async with routing("floods") as at:
            reader, writer = await flooded(at)
            before = 0
            while at.servers[0].num_flooded != before:  # what is between worker and client fills up
                before = at.servers[0].num_flooded
                await asyncio.sleep(0.1)
            assert 0 < before < FLOOD_PARTS
            answered, told = at.router_state.answered, []

            def note(*args: Any, was_paused: bool, **more: Any) -> Any:
                told.append(was_paused)
                return answered(*args, was_paused=was_paused, **more)

            at.router_state.answered = note
            received = 0
            while received < FLOOD_PARTS * len(FLOOD_PART):
                received += len(await reader.read(1_000_000))
            await until(lambda: is_clean(at))
            assert told == [True], "the time of the answer tells nothing of the worker"
            writer.close()

    run(main())


def test_a_connection_that_a_worker_has_closed_meanwhile_is_no_failure() -> None:
    async def main() -> None:
        async with routing("once") as at:
            for _ in range(5):
                assert (await at.ask()).content == WHOLE
            assert len(at.servers[0].asked) == 9
            assert at.router_state.view.worker(0).state == "serving"
            assert not at.router_state.view.worker(0).on_trial
            assert await at.total("stretto_failed_attempts_total", worker=at.servers[0].url) == 0

    run(main())


def test_a_router_that_finishes_takes_no_connections_and_cuts_nothing() -> None:
    async def main() -> None:
        async with routing("waits", num_slots=1) as at:
            idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            asked = [asyncio.create_task(at.ask(stream=True)) for _ in range(3)]
            await until(lambda: at.router_state.view.num_clients == 3)
            finishing = asyncio.create_task(at.router.finish(PATIENCE_S))
            assert await idle_reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", at.router.port)
            at.servers[0].go_on.set()
            assert [(await one).content for one in asked] == [STREAM] * 3
            await finishing
            assert is_clean(at)
            idle_writer.close()

    run(main())


def test_a_router_that_finishes_answers_a_client_that_has_just_connected() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            await until(lambda: len(at.router.door.server.connections) == 1)
            finishing = asyncio.create_task(at.router.finish(PATIENCE_S))
            await asyncio.sleep(0)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            await finishing
            writer.close()

    run(main())


@pytest.mark.parametrize(
    "sent", [b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n1", b"GET /he", b"\r\n"]
)
def test_a_router_that_finishes_does_not_wait_for_a_request_that_never_comes_whole(sent: bytes) -> None:
    async def main() -> None:
        async with routing("well") as at, asyncio.timeout(PATIENCE_S / 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(sent)
            door = at.router.door
            is_begun = sent != b"\r\n"  # then its bytes are counted
            await until(lambda: bool(door.budget.num_held if is_begun else door.server.connections))
            finishing = asyncio.create_task(at.router.finish(PATIENCE_S))
            reading = asyncio.create_task(reader.read())
            while not reading.done():
                writer.write(b"\r\n" if sent == b"\r\n" else b"")
                await asyncio.sleep(0.01)
            if sent == b"\r\n":
                assert not reading.exception() or isinstance(reading.exception(), ConnectionError)
            else:
                assert (await reading).startswith(b"HTTP/1.1 503 ")
                assert b"ServiceUnavailableError" in await reading
            writer.close()
            await finishing

    run(main())


def test_a_router_finishes_for_a_limited_time() -> None:
    async def main() -> None:
        async with routing("waits") as at:
            asked = asyncio.create_task(at.ask())
            await until(lambda: at.router_state.view.num_clients == 1)
            await at.router.finish(0.05)
            assert (await asked).status_code == 503

    run(main())


def test_a_request_that_kills_workers_kills_no_more_than_it_has_attempts() -> None:
    async def main() -> None:
        async with routing(*["well"] * 3, max_attempts=2, placement="round_robin") as at:
            for server in at.servers:
                await at.ask()
                server.mode = "dies"
            assert (await at.ask()).status_code == 502
            assert sum(len(server.asked) for server in at.servers) == 3 + 2
            assert is_clean(at)

    run(main())


def test_a_client_that_reads_nothing_for_long_is_cut_and_the_worker_is_not_blamed() -> None:
    async def main() -> None:
        async with routing("floods", idle_timeout_s=0.2) as at:
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", at.router.port, limit=1000)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: at.router_state.view.num_clients == 1)
            await until(lambda: at.router_state.view.num_clients == 0)
            assert at.router_state.view.worker(0).state == "serving"
            assert await at.total("stretto_requests_total", status="499") == 1
            writer.close()

    run(main())


def test_a_client_that_does_not_read_its_last_answer_is_cut_in_the_end() -> None:
    class Stuck(asyncio.Transport):
        is_aborted = is_closed = False

        def is_closing(self) -> bool:
            return self.is_closed

        def close(self) -> None:
            self.is_closed = True

        def abort(self) -> None:
            self.is_aborted = True

    async def main() -> None:
        async with routing() as at:
            server = HttpServer(at.router.door, "127.0.0.1", 0, idle_s=10.0, unread_s=20.0)
            client = server.protocol()
            client.connection_made(stuck := Stuck())
            now_s = client.last_s
            for idle_s, expected in ((5.0, (False, False)), (15.0, (True, False)), (25.0, (True, True))):
                client.last_s = now_s - idle_s
                server.sweep()
                assert (stuck.is_closed, stuck.is_aborted) == expected
            client.connection_lost(None)
            server.close()

    run(main())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_ends_the_record_and_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with routing("well", record=Path("/dev/full")) as at:
            assert (await at.ask()).content == WHOLE
            at.router.front.sweep()
            at.router.front.sweep()
            assert (await at.ask()).content == WHOLE
            assert is_clean(at)

    run(main())
    (warning,) = [record for record in caplog.records if record.name.startswith("stretto")]
    assert "/dev/full: cannot be written" in warning.message


def test_a_request_that_the_router_fails_to_read_gets_500(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: ClientRequest, is_local: bool) -> None:
        if request.target == b"/bad":
            raise ValueError("a bug")

    async def main() -> None:
        async with routing("well") as at:
            at.router.door.own_route = fail
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
            for _ in range(3):
                assert await reader.readline() == b"HTTP/1.1 500 Internal Server Error\r\n"
                await reader.readuntil(b'"code":500}}')
            assert (await at.ask()).content == WHOLE
            writer.close()

    run(main())
    assert "a request to '/bad' could not be read" in caplog.text


@pytest.mark.parametrize("num_slots", [256, 1])
def test_what_is_not_answered_when_the_router_ends_gets_an_error(num_slots: int) -> None:
    """Requests that run, wait or are streamed; nothing is sent to the worker meanwhile."""

    async def main() -> None:
        async with routing("waits", num_slots=num_slots) as at:
            stream = asyncio.create_task(at.ask(stream=True))
            await until(lambda: len(at.servers[0].asked) == 1)
            at.servers[0].mode = "silent"
            others = [asyncio.create_task(at.ask()) for _ in range(3)]
            await until(lambda: at.router_state.view.num_clients == 4)
            await until(lambda: len(at.servers[0].asked) == min(num_slots, 4))
            await at.router.finish(0.05)
            for other in others:
                answer = await other
                assert answer.status_code == 503
                assert answer.json()["error"]["message"] == "the router is being ended"
            assert b"the router is being ended" in (await stream).content
            assert at.router_state.view.num_clients == 0
            assert len(at.servers[0].asked) == min(num_slots, 4)

    run(main())
