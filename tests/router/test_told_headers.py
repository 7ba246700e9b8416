"""What answers tell of the way of their requests."""

from __future__ import annotations

import asyncio

from support.routing import routing, run, until


def test_answers_and_streams_tell_where_and_why() -> None:
    async def main() -> None:
        async with routing("well", "well", placement="round_robin") as at:
            for is_streamed in (False, True):
                headers = (await at.ask(stream=is_streamed)).headers
                assert headers["x-stretto-reason"] == "it is its turn"
                assert headers["x-stretto-held-ms"] == "0"
                assert "x-stretto-held-for" not in headers
                assert headers["x-stretto-program"].endswith(";opening;new")
            reply = await at.client.get("/v1/responses/resp_1")
            assert reply.headers["x-stretto-reason"] == "it may keep what the request names"

    run(main())


def test_a_stream_that_has_waited_tells_for_what() -> None:
    async def main() -> None:
        async with routing("waits", num_slots=1) as at:
            first = asyncio.create_task(at.ask())
            await until(lambda: len(at.servers[0].asked) == 1)
            second = asyncio.create_task(at.ask(stream=True))
            await until(lambda: at.router_state.view.num_waiting == 1)
            at.servers[0].go_on.set()
            assert (await first).headers["x-stretto-held-ms"] == "0"
            headers = (await second).headers
            assert int(headers["x-stretto-held-ms"]) >= 0
            assert headers["x-stretto-held-for"] == "its turn"
            assert headers["x-stretto-worker"] == "0"

    run(main())


def test_a_repeated_attempt_says_so() -> None:
    async def main() -> None:
        async with routing("closes", "well", placement="round_robin") as at:
            headers = (await at.ask()).headers
            assert headers["x-stretto-reason"] == "it is its turn; attempt 2"

    run(main())


def test_refusals_tell_how_long_the_request_waited_and_its_program() -> None:
    async def main() -> None:
        async with routing("waits", num_slots=1, max_wait_s=0.05) as at:
            first = asyncio.create_task(at.ask())
            await until(lambda: len(at.servers[0].asked) == 1)
            refused = await at.ask()
            assert refused.status_code == 503
            assert int(refused.headers["x-stretto-held-ms"]) >= 50
            assert int(refused.headers["retry-after"]) >= 1
            assert "x-stretto-worker" not in refused.headers
            assert refused.headers["x-stretto-program"].endswith(";opening;new")
            at.servers[0].go_on.set()
            await first

    run(main())
