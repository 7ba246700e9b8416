"""An error of the router while it takes an answer ends that request alone, and its client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.routing import STREAM, WHOLE, routing, run, until

from stretto.router import taken_answer
from stretto.router.attempts import Attempts
from stretto.router.exchange import RoutedExchange
from stretto.router.router_state import RouterState


def raise_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the first call of a method raise an error that nobody expects."""
    method = getattr(owner, name)
    errors = [ZeroDivisionError("one of ours")]

    def raising(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, raising)


def test_a_whole_answer_that_cannot_be_taken_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with routing("well") as at:
            raise_once(monkeypatch, RouterState, "head_came")
            broken = await at.ask()
            assert broken.status_code == 500
            assert "could not take the answer" in broken.json()["error"]["message"]
            assert (await at.ask()).content == WHOLE
            at.router_state.check_invariants()
            assert at.router_state.view.num_clients == 0

    run(main())


def test_a_stream_that_cannot_be_taken_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with routing("well") as at:
            raise_once(monkeypatch, RouterState, "began")
            broken = await at.ask(stream=True)
            assert "could not take the answer" in broken.text
            assert (await at.ask(stream=True)).content == STREAM
            assert at.router_state.view.num_clients == 0

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_end_cannot_be_noted_is_passed_on(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted after the last byte is no concern of the client; the worker's load goes down all the
    same.
    """

    async def main() -> None:
        async with routing("well") as at:
            raise_once(monkeypatch, RouterState, "answered")
            for _ in range(2):
                assert (await at.ask(stream=stream)).content == (STREAM if stream else WHOLE)
            at.router_state.check_invariants()
            assert at.router_state.view.num_clients == 0

    run(main())


def test_a_client_whose_request_was_forgotten_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with routing("well") as at:
            raise_once(monkeypatch, taken_answer, "answer_headers")  # after the request has ended
            with pytest.raises(httpx.RemoteProtocolError):
                await at.ask()
            assert (await at.ask()).content == WHOLE

    run(main())


def test_a_request_that_cannot_be_sent_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one answer gives the next request its turn, which cannot be sent; that after it is."""

    async def main() -> None:
        async with routing("waits", num_slots=1) as at:
            first = asyncio.ensure_future(at.ask())
            await until(lambda: bool(at.servers[0].asked))
            others = [asyncio.ensure_future(at.ask()) for _ in range(3)]
            await until(lambda: at.router_state.view.num_clients == 4)
            raise_once(monkeypatch, Attempts, "send")
            at.servers[0].go_on.set()
            replies = await asyncio.gather(first, *others)
            assert sorted(reply.status_code for reply in replies) == [200, 200, 200, 500]
            at.router_state.check_invariants()
            assert at.router_state.view.num_clients == 0

    run(main())


@pytest.mark.parametrize("leave", [RoutedExchange.client_left, lambda one: one.fail("it is ended")])
def test_a_request_that_gets_its_turn_as_it_ends_is_not_sent(
    leave: Callable[[RoutedExchange], None],
) -> None:
    """The end of the request before it is not yet brought to the state machine."""

    async def main() -> None:
        async with routing("waits", num_slots=1) as at:
            asked = [asyncio.ensure_future(at.ask())]
            await until(lambda: bool(at.servers[0].asked))
            asked.append(asyncio.ensure_future(at.ask()))
            await until(lambda: at.router_state.view.num_clients == 2)
            first, second = at.router.front.exchanges.values()
            at.router.front.later(first.client_left)
            leave(second)
            assert second.attempts.running is None
            assert at.router_state.view.num_clients == 0
            for one in asked:
                one.cancel()
            at.router_state.check_invariants()

    run(main())
