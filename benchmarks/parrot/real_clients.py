"""The same workflows as two programs: ours on semantic variables, and one by hand with the `openai` client.

Both begin each workflow at its time, send what they can send the moment that they can, and keep connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.common.openai_client import openai_client
from benchmarks.parrot.workflows import Arrival, Call, Output, Workflow
from stretto.programs import Client, Function, SemanticVariable
from stretto.programs import Output as OutputOf

Texts: TypeAlias = Mapping[str, str]
"""The results of a workflow, by the names of their calls."""

_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Ended:
    """One workflow that has ended.

    Attributes:
        latency_s: seconds from its start to the moment when its client had the last result.
    """

    latency_s: float
    texts: Texts


async def start_all(arrivals: Sequence[Arrival], run: Callable[[Workflow], Awaitable[Ended]]) -> list[Ended]:
    """Run each workflow from its time on; return what came of them, in their order.

    Raises:
        ExceptionGroup: a workflow has failed. The others are cancelled.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()

    async def one(arrival: Arrival) -> Ended:
        await asyncio.sleep(begin_s + arrival.at_s - loop.time())
        return await run(arrival.workflow)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(arrival)) for arrival in arrivals]
    return [task.result() for task in tasks]


async def run_as_program(url: str, workflow: Workflow) -> Ended:
    """Run a workflow as a program on semantic variables, in a session of its own at a service.

    All calls go to the service in one request, which opens the session. Its time ends before the session is
    closed.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    async with Client(url, objective=workflow.criteria) as client:
        made: dict[str, SemanticVariable] = {}
        with client.together():
            for call in workflow.calls:
                made[call.name] = function_of(call)(*arguments_of(call, made))
        waiting = [made[name].aget(workflow.criteria, timeout_s=_PATIENCE_S) for name in workflow.results]
        texts = await asyncio.gather(*waiting)
        found = dict(zip(workflow.results, texts, strict=True))
        return Ended(loop.time() - begin_s, found)


def prompt_of(call: Call, answers: Texts) -> str:
    """Return the prompt of a call, its parts on lines of their own."""
    return "".join(f"{answers[part.call] if isinstance(part, Output) else part}\n" for part in call.parts)


Complete: TypeAlias = Callable[[str, int], Awaitable[str]]
"""A function that sends a prompt and the length of its answer in tokens to an LLM, and returns the answer."""


@asynccontextmanager
async def openai_completions(url: str, model: str) -> AsyncIterator[Complete]:
    """Context with a function that completes prompts by the `openai` client, which keeps its connections.

    Raises:
        ConfigError: the package `openai` is not installed.
    """
    client = openai_client(url, _PATIENCE_S)

    async def complete(prompt: str, max_tokens: int) -> str:
        completion = await client.completions.create(
            model=model, prompt=prompt, max_tokens=max_tokens, temperature=0
        )
        text: str = completion.choices[0].text
        return text

    async with client:
        yield complete


async def run_by_hand(complete: Complete, workflow: Workflow) -> Ended:
    """Run a workflow as a program by hand, with asyncio: a call is sent when the answers that it reads are
    there.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    tasks: dict[str, asyncio.Task[str]] = {}

    async def answer(call: Call) -> str:
        answers = {source: await tasks[source] for source in call.sources}
        return (await complete(prompt_of(call, answers), call.num_output)).strip()

    async with asyncio.TaskGroup() as group:
        for call in workflow.calls:
            tasks[call.name] = group.create_task(answer(call))
    return Ended(loop.time() - begin_s, {name: tasks[name].result() for name in workflow.results})


def function_of(call: Call) -> Function:
    """Return the semantic function of a call: what a developer could declare is its text, all else inputs."""
    names = [f"part{number}" for number in range(call.num_static, len(call.parts))]
    places = "".join(f"{{{{input:{name}}}}}\n" for name in names)
    static = prompt_of(Call(call.name, call.parts[: call.num_static], 1), {})
    outputs = {"answer": OutputOf(max_tokens=call.num_output)}
    return Function.of_prompt(
        call.name, f"{static}{places}{{{{output:answer}}}}", dict.fromkeys(names), outputs
    )


def arguments_of(call: Call, made: Mapping[str, SemanticVariable] | Texts) -> list[object]:
    """Return the inputs of the semantic function of a call, with the answers that it reads in `made`."""
    parts = call.parts[call.num_static :]
    return [made[part.call] if isinstance(part, Output) else part for part in parts]
