"""Programs are recognised in what passes through the router."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.routing import Routing, routing, run, until

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig

TEXT = "01234"
"""What the stub servers stream."""


async def program(at: Routing, prompt: str, headers: dict[str, str] | None = None, **more: Any) -> list[str]:
    """Ask for a text; return the number of the program, how it was found and how sure that is."""
    body = json.dumps({"model": "m", "prompt": prompt, **more})
    reply = await at.client.post("/v1/completions", content=body, headers=headers)
    found: str = reply.headers["x-stretto-program"]
    at.router.door.programs.check_invariants()
    return found.split(";")


def test_a_prompt_goes_on_with_the_streamed_answer_before() -> None:
    async def main() -> None:
        async with routing("well") as at:
            one, *_ = await program(at, "Hello", stream=True)
            assert await program(at, "Hello", stream=True) == [str(int(one) + 1), "opening", "new"]
            await program(at, f"Hello{TEXT} and then", stream=True)
            found = await program(at, f"Hello{TEXT} and then{TEXT} more", stream=True)
            assert found[1:] == ["continues", "sure"]

    run(main())


def test_a_prompt_goes_on_with_the_whole_answer_before() -> None:
    async def main() -> None:
        async with routing("well") as at:
            one, *_ = await program(at, "Hello")
            text = 'café "usage": {"cached_tokens": 7}'
            assert await program(at, f"Hello{text} more") == [one, "continues", "sure"]

    run(main())


def test_ids_of_clients_name_programs_and_are_kept_apart_by_key() -> None:
    async def main() -> None:
        async with routing("well") as at:
            mine = {"authorization": "Bearer a", "x-session-id": "s"}
            one = await program(at, "Hello", mine)
            assert one[1:] == ["id", "certain"]
            assert await program(at, "Something else", mine) == one
            assert await program(at, "Something else", {**mine, "authorization": "Bearer b"}) != one
            assert at.servers[0].asked[-1].headers[b"x-session-id"] == b"s"

    run(main())


def test_what_is_refused_is_not_remembered() -> None:
    async def main() -> None:
        async with routing("400") as at:
            for number in range(20):
                await program(at, f"{number}", {"x-session-id": f"{number}"})
            assert len(at.router.door.programs) == 0

    run(main())


@pytest.mark.parametrize(("mode", "settings"), [("closes", {}), ("silent", {}), ("silent", {"num_slots": 1})])
def test_a_request_that_ends_without_an_answer_is_not_remembered(mode: str, settings: dict[str, Any]) -> None:
    """Requests that fail, and those whose clients leave, also while they wait for a worker."""

    async def main() -> None:
        async with routing("well", max_attempts=2, **settings) as at:
            await until(lambda: at.router_state.view.worker(0).state == "serving")
            at.servers[0].mode = mode
            asking = [asyncio.create_task(at.ask(prompt=f"Hello {number}")) for number in range(3)]
            if mode == "silent":
                await until(lambda: len(at.router.door.programs) == 3)
                for one in asking:
                    one.cancel()
            await asyncio.wait(asking)
            await until(lambda: len(at.router.door.programs) == 0)
            at.router.door.programs.check_invariants()

    run(main())


def test_a_request_that_is_refused_for_those_that_wait_is_not_remembered() -> None:
    async def main() -> None:
        async with routing("well", num_slots=1, max_waiting=1) as at:
            await until(lambda: at.router_state.view.worker(0).state == "serving")
            at.servers[0].mode = "silent"
            asking = [asyncio.create_task(at.ask(prompt=f"Hello {number}")) for number in range(2)]
            await until(lambda: len(at.router.door.programs) == 2)
            assert (await at.ask(prompt="One more")).status_code == 429
            await until(lambda: len(at.router.door.programs) == 2)
            for one in asking:
                one.cancel()
            await asyncio.wait(asking)
            await until(lambda: len(at.router.door.programs) == 0)

    run(main())


def test_a_stream_that_is_cut_is_remembered() -> None:
    async def main() -> None:
        async with routing("cut") as at:
            await program(at, "Hello", stream=True)
            assert len(at.router.door.programs) == 1

    run(main())


def test_requests_without_prompt_and_ids_have_no_program() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reply = await at.client.post("/v1/embeddings", content=json.dumps({"model": "m", "input": "a"}))
            assert "x-stretto-program" not in reply.headers
            large = await program(at, "a" * 300_000)
            assert large[1] == "opening"

    run(main())


def test_recognition_can_be_switched_off() -> None:
    async def main() -> None:
        async with routing("well", max_programs=0) as at:
            assert "x-stretto-program" not in (await at.ask()).headers

    run(main())
    with pytest.raises(ConfigError, match="max_programs is -1"):
        RouterConfig(max_programs=-1)
