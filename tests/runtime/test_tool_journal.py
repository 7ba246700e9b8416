"""A named run of an agent that broke off goes on, and no effect happens twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto import Runtime, ToolJournal
from stretto.apps import agent
from stretto.components import AgentRun, tool
from stretto.engines.catalogue import tools_engine
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import deploy
from stretto.model.errors import ConfigError, JournalError, StrettoError
from stretto.model.tasks import Decode, LLMTask
from stretto.model.tools import Tool, ToolResult


class Crash(StrettoError):
    """Stands for the end of the process."""


def run(
    path: Path,
    tools: tuple[Tool, ...],
    write: Callable[[LLMTask, Decode], str],
    name: str = "order-1",
    question: str = "Send both.",
) -> AgentRun:
    llm = deploy("llm", lambda config: ScriptedLLM(write, 4), contract="llm", keeps_state=True)

    async def main() -> AgentRun:
        async with Runtime([llm, tools_engine(tools, records=ToolJournal(path))]) as runtime:
            asked = {"question": question, "run_name": name}
            outputs = await runtime.run(agent(tools, named_run=True), asked)
            found = outputs["run"]
            assert isinstance(found, AgentRun)
            return found

    return asyncio.run(main())


def call(called: str, /, **arguments: object) -> str:
    return json.dumps({"name": called, "arguments": arguments})


def plan(*turns: list[str], crash_at: int | None = None) -> Callable[[LLMTask, Decode], str]:
    def write(task: LLMTask, decode: Decode) -> str:
        num_done = sum(segment.tools is not None for segment in task.prompt)
        if num_done == crash_at:
            raise Crash("the process ends")
        if decode.items is None:
            return "done"
        return f"[{', '.join(turns[num_done])}]" if num_done < len(turns) else "[]"

    return write


def test_a_run_goes_on_with_the_calls_that_it_has_made(tmp_path: Path) -> None:
    sent: list[str] = []
    asked: list[str] = []

    @tool(effects=True)
    def send(to: str) -> str:
        sent.append(to)
        return f"letter {len(sent)}"

    @tool
    def look(name: str) -> str:
        asked.append(name)
        return f"{name} {len(asked)}"

    tools, path = (send, look), tmp_path / "runs"
    first = [call("send", to="Ann"), call("look", name="Bob")]
    with pytest.raises(Crash):
        run(path, tools, plan(first, [call("send", to="Bob")], crash_at=1))
    assert (sent, asked) == (["Ann"], ["Bob"])
    other = [call("send", to="Cid")]  # what the LLM writes on another day
    done = run(path, tools, plan(other, [call("send", to="Bob")]))
    assert (sent, asked) == (["Ann", "Bob"], ["Bob"])
    assert [(c.arguments, c.text) for c in done.calls] == [
        ('{"to": "Ann"}', "letter 1"),
        ('{"name": "Bob"}', "Bob 1"),
        ('{"to": "Bob"}', "letter 2"),
    ]
    run(path, tools, plan(first, [call("send", to="Bob")]))
    assert sent == ["Ann", "Bob"], "a run that has ended repeats nothing either"
    run(path, tools, plan(first), name="order-2")
    assert sent == ["Ann", "Bob", "Ann"], "another run has its own calls"


def test_an_effect_that_had_begun_is_in_doubt_and_not_repeated(tmp_path: Path) -> None:
    sent: list[str] = []

    @tool(effects=True)
    def send(to: str) -> None:
        sent.append(to)

    @tool(effects=True, idempotent=True)
    def put(to: str) -> None:
        sent.append(to)

    path, key = tmp_path / "runs", ("", "order-1", "1")
    calls = [call("send", to="Ann"), call("put", to="Bob")]
    journal = ToolJournal(path)
    journal.open()
    journal.turn(key, calls)
    assert journal.begin(key, 0)
    assert journal.begin(key, 1)
    journal.close()
    done = run(path, (send, put), plan(["never"]))
    assert sent == ["Bob"]
    assert [one.outcome for one in done.calls] == ["in_doubt", "done"]
    again = run(path, (send, put), plan(["never"]))
    assert again == done
    assert sent == ["Bob"]


def test_a_name_that_is_used_again_for_another_question_is_refused(tmp_path: Path) -> None:
    """It was answered with the turns of the first question."""
    sent: list[str] = []

    @tool(effects=True)
    def send(to: str) -> None:
        sent.append(to)

    path, tools = tmp_path / "runs", (send,)
    run(path, tools, plan([call("send", to="Ann")]))
    with pytest.raises(JournalError, match=r"'order-1' .* another question: 'Send both.', .*'Send none.'"):
        run(path, tools, plan([]), question="Send none.")
    run(path, tools, plan([]), name="order-2", question="Send none.")
    assert sent == ["Ann"]
    with pytest.raises(JournalError, match="another question: 'Send none"):
        run(path, tools, plan([]), name="order-2")


def test_a_run_that_was_recorded_without_its_question_goes_on(tmp_path: Path) -> None:
    sent: list[str] = []

    @tool(effects=True)
    def send(to: str) -> None:
        sent.append(to)

    path = tmp_path / "runs"
    journal = ToolJournal(path)
    journal.open()
    journal.turn(("", "order-1", "1"), [call("send", to="Ann")])
    journal.close()
    run(path, (send,), plan([call("send", to="Bob")]))
    assert sent == ["Ann"]
    with pytest.raises(JournalError, match="another question"):
        run(path, (send,), plan([]), question="Send none.")


def test_one_process_at_a_time_uses_a_journal(tmp_path: Path) -> None:
    one, two = ToolJournal(tmp_path / "runs"), ToolJournal(tmp_path / "runs")
    one.open()
    with pytest.raises(JournalError, match="in use by another run"):
        two.open()
    one.close()
    two.open()
    assert two.result(("", "a", "1"), 0) is None
    two.end(("", "a", "1"), 0, ToolResult("x", "", "y"))
    two.close()
    with pytest.raises(JournalError, match="not open"):
        two.begin(("", "a", "1"), 1)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_place_of_a_journal_is_refused(kind: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=r"records is a path; .* is ToolJournal\('orders.journal'\)"):
        tools_engine([], records=kind("orders.journal"))
