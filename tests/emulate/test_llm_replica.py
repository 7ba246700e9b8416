"""An emulated LLM instance without HTTP: the order of requests, whole jumps, and what it forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop
from support.emulated import fleet_of

from stretto.emulate.answers import WrittenAnswer, ended_answer
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.fleet import PlannedFleet
from stretto.emulate.lag import LagMeter
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.emulate.tokens import FOUR_CHARACTERS
from stretto.model.tasks import Done, LLMEvent, Started

SPEED = 200.0


def answer(num_tokens: int) -> WrittenAnswer:
    return ended_answer([FOUR_CHARACTERS.words[0]] * num_tokens, max_tokens=num_tokens)


def run(main: Callable[[EmulatedLLM], Awaitable[None]], fleet: PlannedFleet | None = None) -> EmulatedLLM:
    """Run `main` with an emulated instance whose time goes fast; return the instance."""
    service = (fleet or fleet_of()).servers[0].service
    assert isinstance(service, PlannedLLM)
    simulated = service.simulated

    async def begin() -> EmulatedLLM:
        replica = EmulatedLLM(simulated, EmulatedClock(SPEED), LagMeter())
        await main(replica)
        return replica

    return uvloop.run(begin())


class Request:
    """One request, and the events that have been heard of it."""

    def __init__(self) -> None:
        self.events: list[LLMEvent] = []
        self.num_tokens = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def heard(self, event: LLMEvent) -> None:
        self.events.append(event)
        if isinstance(event, Done):
            self.ended.set()

    def on_token(self, number: int) -> None:
        self.num_tokens += 1
        self.begun.set()


def test_a_streamed_answer_is_told_token_by_token() -> None:
    told: list[LLMEvent] = []
    tokens: list[tuple[int, float]] = []

    async def main(replica: EmulatedLLM) -> None:
        request = Request()
        replica.submit(
            [1, 2, 3],
            answer(5),
            5,
            request.heard,
            on_token=lambda n: tokens.append((n, replica.clock.now_s)),
        )
        await request.ended.wait()
        told.extend(request.events)

    replica = run(main)
    assert [type(event) for event in told] == [Started, Done]
    assert [number for number, _ in tokens] == list(range(5))
    assert len({at_s for _, at_s in tokens}) == 5
    assert replica.counts.num_steps == replica.counts.num_output_tokens == 5


def test_streams_get_each_token_once_although_others_come_and_go_in_the_midst_of_a_jump() -> None:
    tokens: list[list[int]] = [[] for _ in range(20)]

    async def main(replica: EmulatedLLM) -> None:
        requests = [Request() for _ in tokens]
        for number, request in enumerate(requests):
            replica.submit(
                [number] * 40, answer(60 + number), 100, request.heard, on_token=tokens[number].append
            )
            await asyncio.sleep(0.0003)
            if number % 7 == 6:
                replica.slow_down(1.0 + number / 10)
        for request in requests:
            await request.ended.wait()

    assert not run(main, fleet_of(max_sequences=8)).scheduler.running
    assert tokens == [list(range(60 + number)) for number in range(20)]


def test_streams_get_their_tokens_when_each_step_by_itself_would_end() -> None:
    """A jump of many steps changes no time of a token."""

    def times_s(max_jump: int) -> list[float]:
        tokens: list[float] = []
        planned = fleet_of()
        service = planned.servers[0].service
        assert isinstance(service, PlannedLLM)
        service = replace(service, simulated=replace(service.simulated, max_jump=max_jump))

        async def main(replica: EmulatedLLM) -> None:
            request = Request()
            replica.submit(
                [1] * 100,
                answer(80),
                80,
                request.heard,
                on_token=lambda _: tokens.append(replica.clock.now_s),
            )
            await request.ended.wait()

        run(main, replace(planned, servers=(replace(planned.servers[0], service=service),)))
        return [at_s - tokens[0] for at_s in tokens]

    assert times_s(256) == pytest.approx(times_s(1))


def test_answers_that_are_not_streamed_take_few_turns() -> None:
    turns = [0]

    async def main(replica: EmulatedLLM) -> None:
        at = replica.clock.at

        def counted(at_s: float, happen: Callable[[], object], rank: int = 0) -> None:
            turns[0] += 1
            at(at_s, happen, rank)

        replica.clock.at = counted  # type: ignore[method-assign]
        request = Request()
        replica.submit([1, 2, 3], answer(200), 200, request.heard)
        await request.ended.wait()

    assert run(main).counts.num_steps == 200
    assert turns[0] < 20


def test_requests_are_served_by_their_priority() -> None:
    order: list[str] = []

    async def main(replica: EmulatedLLM) -> None:
        requests = {name: Request() for name in ("first", "unimportant", "important")}
        for (name, request), priority in zip(requests.items(), (0, 5, -5), strict=True):

            def heard(event: LLMEvent, name: str = name, request: Request = request) -> None:
                if isinstance(event, Done):
                    order.append(name)
                request.heard(event)

            replica.submit([ord(name[0])], answer(4), 4, heard, priority=priority)
        for request in requests.values():
            await request.ended.wait()

    run(main, fleet_of(max_sequences=1))
    assert order == ["important", "first", "unimportant"]


def test_a_cancelled_request_frees_its_place_and_says_no_more() -> None:
    async def main(replica: EmulatedLLM) -> None:
        gone, other = Request(), Request()
        number = replica.submit([1], answer(2000), 2000, gone.heard, on_token=gone.on_token)
        replica.submit([2], answer(800), 800, other.heard, on_token=other.on_token)
        await gone.begun.wait()
        replica.cancel(number)
        num_tokens = gone.num_tokens
        await other.ended.wait()
        assert gone.num_tokens == num_tokens
        assert other.num_tokens == 800
        assert len(replica.scheduler.running) == 0
        assert replica.kv_used == 0.0

    run(main)


def test_an_emptied_replica_tells_its_requests_and_serves_new_ones() -> None:
    async def main(replica: EmulatedLLM) -> None:
        lost = asyncio.Event()
        prompt = list(range(100))
        before = Request()
        replica.submit(prompt, answer(2000), 2000, before.heard, on_token=before.on_token, lost=lost.set)
        await before.begun.wait()
        replica.empty()
        assert lost.is_set()
        assert not replica.scheduler.running
        assert not replica.scheduler.waiting
        request = Request()
        replica.submit(prompt, answer(3), 3, request.heard)
        await request.ended.wait()
        assert request.events[-1].usage.num_cached_tokens == 0  # type: ignore[union-attr]

    run(main)
