"""Agents in real time: their messages, and a load on a runtime."""

from __future__ import annotations

import asyncio

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.door.arms import DIRECT, ENDLESS, OURS, arms
from benchmarks.door.conversation import Conversation
from benchmarks.programs.room.load import Load
from benchmarks.programs.room.real_time import run_on_runtime
from benchmarks.programs.room.sessions import Opened, Session, Turn
from stretto.model.deployment import deploy

GROWING = Session(tuple(Turn(((1, 100 + 20 * turn),), 10, 0.0) for turn in range(3)))
REWRITTEN = Session((Turn(((1, 100),), 10, 0.0), Turn(((1, 50), (500, 30)), 10, 0.0)))


def text_of(messages: list[dict[str, str]]) -> str:
    return "".join(message["content"] for message in messages)


def test_a_prompt_that_goes_on_keeps_its_messages_and_holds_the_answer() -> None:
    opened = Opened(1, GROWING)
    conversation = Conversation(opened)
    first = conversation.messages(0)
    conversation.answered("an answer")
    second = conversation.messages(1)
    assert text_of(first) == opened.prompt(0)
    assert second[:2] == first
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[2]["content"] == "an answer"
    assert len(text_of(second)) == len(opened.prompt(1))


def test_a_rewritten_history_begins_anew_behind_the_system_prompt() -> None:
    conversation = Conversation(Opened(1, REWRITTEN))
    first = conversation.messages(0)
    conversation.answered("an answer")
    second = conversation.messages(1)
    assert [message["role"] for message in second] == ["system", "user"]
    assert second[0] == first[0]
    assert text_of(second) == Opened(1, REWRITTEN).prompt(1)


def test_a_load_runs_on_a_runtime_in_real_time() -> None:
    engine = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", runs_in="thread")
    load = Load(num_clients=20, warm_s=0.0, end_s=1.5)
    measured = asyncio.run(run_on_runtime([engine], load, [GROWING], seed=1))
    assert measured.num_calls > 0
    assert measured.num_output > measured.num_calls


def test_there_are_arms_of_ours_of_none_and_of_a_cap() -> None:
    names = [arm.name for arm in arms((20,))]
    assert {DIRECT, f"{DIRECT}, at most 20 sessions", OURS, f"{OURS}, with ids", ENDLESS} <= set(names)
