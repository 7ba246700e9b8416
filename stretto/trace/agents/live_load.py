"""The replay of a trace in real time: requests are sent when their plan says, however many run at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stretto.model.errors import StrettoError
from stretto.trace.agents.load_report import RequestTimes
from stretto.trace.agents.plan import AgentPlan
from stretto.trace.agents.prompts import Conversations
from stretto.trace.agents.requests import AgentRequest, AgentTrace, Message


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """The answer to one request of a load: its text, and its numbers of tokens."""

    text: str
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0


Ask: TypeAlias = Callable[[AgentRequest, Sequence[Message], Callable[[], None]], Awaitable[LoadAnswer]]
"""A function that sends a request with all its messages, calls the third argument when the first piece of the
answer arrives, and returns the answer. A StrettoError fails the request."""


async def run_live(trace: AgentTrace, ask: Ask, times: list[RequestTimes]) -> None:
    """Replay a trace, and add the times of each request to `times` when it ends.

    Cancelling cancels all requests that run; `times` then has those that have ended.
    """
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    plan, conversations = AgentPlan(trace), Conversations(trace)
    changed = asyncio.Event()

    async def run(request: AgentRequest) -> None:
        start_s = loop.time() - begun_s
        firsts_s: list[float] = []

        def note_first() -> None:
            firsts_s.append(loop.time() - begun_s)

        answer, problem = LoadAnswer(""), None
        try:
            answer = await ask(request, conversations.messages(request), note_first)
        except StrettoError as error:
            problem = f"{type(error).__name__}: {error.message}"
        end_s = loop.time() - begun_s
        if problem is None:
            conversations.add(request, answer.text)
            plan.end(request.id, end_s)
        else:
            plan.fail(request.id)
        times.append(
            RequestTimes(
                request=request.id,
                due_s=plan.due_s(request.id),
                start_s=start_s,
                first_s=firsts_s[0] if firsts_s else None,
                end_s=end_s,
                num_prompt=answer.num_prompt,
                num_cached=answer.num_cached,
                num_output=answer.num_output,
                error=problem,
            )
        )
        changed.set()

    async with asyncio.TaskGroup() as running:
        while not plan.is_over:
            for request in plan.start_due(loop.time() - begun_s):
                running.create_task(run(request))
            changed.clear()
            next_s = plan.next_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if next_s is None else begun_s + next_s):
                    await changed.wait()
