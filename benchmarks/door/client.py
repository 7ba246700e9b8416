"""A client of OpenAI servers that runs agents and chats: the `openai` package, unmodified."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.common.openai_client import openai_client
from benchmarks.door.conversation import Conversation
from benchmarks.programs.room.load import Agents, Load, Measured
from benchmarks.programs.room.real_time import RealClock
from benchmarks.programs.room.sessions import Session
from stretto.model.tasks import Usage
from stretto.sched.actions import Reply
from stretto.sched.messages import EndProgram, Submit

HELD_HEADER = "x-stretto-held-ms"
_TIMEOUT_S = 900.0


async def run_clients(
    urls: Sequence[str],
    model: str,
    load: Load,
    sessions: Sequence[Session],
    seed: int,
    *,
    with_ids: bool,
) -> Measured:
    """Run a load against servers, or a router, until its end, and return what was measured.

    Args:
        urls: where a session sends its requests, one of them for each session.
        with_ids: whether requests name their session in the header `x-session-id`.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(openai_client(url, _TIMEOUT_S)) for url in urls]
        clock = _ClientClock(Agents(load, sessions, seed), clients, model, with_ids)
        await clock.run(load.end_s)
    return clock.agents.measured


class _ClientClock(RealClock[Agents]):
    def __init__(self, agents: Agents, clients: Sequence[Any], model: str, with_ids: bool) -> None:
        super().__init__(agents)
        self._clients = clients
        self._model = model
        self._with_ids = with_ids
        self._conversations: dict[str, Conversation] = {}

    async def ask(self, event: Submit, num_output: int) -> None:
        query, sent_s = event.query, self.now_s
        number, is_agent = self._number_of(query), "/" in query
        if is_agent:
            opened, turn = self.agents.opened(query)
            conversation = self._conversations.setdefault(event.program, Conversation(opened))
            messages = conversation.messages(turn)
        else:
            messages = [{"role": "user", "content": str(event.inputs["prompt"])}]
        headers = {"x-session-id": event.program} if self._with_ids and is_agent else {}
        client = self._clients[number % len(self._clients)]
        reply = await client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=messages,
            max_tokens=num_output,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
        )
        self.agents.started(query, float(reply.headers.get(HELD_HEADER, 0)) / 1000, self.now_s)
        text = await self._read(reply.parse(), query, sent_s)
        if is_agent:
            conversation.answered(text)
        self.agents.on_reply(Reply(query, {"text": text}))

    async def _read(self, stream: Any, query: str, sent_s: float) -> str:
        pieces: list[str] = []
        async for chunk in stream:
            if chunk.choices and (piece := chunk.choices[0].delta.content):
                if not pieces:
                    self.agents.shown(query, self.now_s)
                    if "/" in query:
                        self.agents.measured.call_first_s.append(self.now_s - sent_s)
                pieces.append(piece)
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                cached = (details.cached_tokens or 0) if details else 0
                usage = Usage(chunk.usage.prompt_tokens, cached, chunk.usage.completion_tokens)
                self.agents.used(query, usage, self.now_s)
        return "".join(pieces)

    def send(self, event: EndProgram, now_s: float) -> None:
        """Nothing: clients do not say that a session has ended."""
        self._conversations.pop(event.program, None)

    @staticmethod
    def _number_of(query: str) -> int:
        return int(query.partition("/")[0].removeprefix("chat"))
