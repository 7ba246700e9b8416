"""What clients say of their program, in headers and in bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.cluster.recognition.ids import HEADERS, ProgramIds, read_ids

CONTEXT = {"task_id": "task-42", "agent_id": "worker", "parent_program_id": "task-42:lead"}


def named(headers: dict[str, str], **fields: Any) -> ProgramIds:
    return read_ids([(name.encode(), value.encode()) for name, value in headers.items()], fields)


@pytest.mark.parametrize("scheme", [one for one in HEADERS if not one.is_hint])
def test_every_scheme_of_headers_names_a_program(scheme: Any) -> None:
    sent = {scheme.name.decode(): "one"}
    for more, value in ((scheme.parent, "above"), (scheme.final, "true")):
        if more:
            sent[more.decode()] = value
    found = named(sent)
    assert found.name == f"{scheme.scheme}:one"
    assert found.parent == (f"{scheme.scheme}:above" if scheme.parent else "")
    assert found.is_final == bool(scheme.final)


@pytest.mark.parametrize(
    ("fields", "name", "parent"),
    [
        ({"session_id": "s"}, "session:s", ""),
        ({"program_id": "p"}, "program:p", ""),
        ({"session_params": {"session_id": "s"}}, "session:s", ""),
        ({"conversation": "conv_1"}, "conversation:conv_1", ""),
        ({"conversation": {"id": "conv_1"}}, "conversation:conv_1", ""),
        ({"metadata": {"session_id": "s"}}, "metadata:s", ""),
        ({"metadata": {"user_id": "user_a_account_b_session_c-d"}}, "claude-code:c-d", ""),
        ({"metadata": {"user_id": '{"session_id": "c"}'}}, "claude-code:c", ""),
        ({"vllm_xargs": {"agentic_context": CONTEXT}}, "agentic-context:task-42", ""),
        ({"vllm_xargs": {"agentic_context": json.dumps(CONTEXT)}}, "agentic-context:task-42", ""),
        (
            {"agent_hint": {"program_id": "b", "parent_program_id": "a"}},
            "agentic-context:b",
            "agentic-context:a",
        ),
        ({"nvext": {"agent_context": {"session_id": "s", "parent_session_id": "r"}}}, "dynamo:s", "dynamo:r"),
    ],
)
def test_fields_of_bodies_name_programs(fields: dict[str, Any], name: str, parent: str) -> None:
    found = named({}, **fields)
    assert (found.name, found.parent) == (name, parent)


def test_the_first_scheme_counts_and_headers_come_before_fields() -> None:
    sent = {"x-session-id": "b", "x-stretto-program": "a"}
    assert named(sent, session_id="c").name == "stretto:a"
    assert named({"x-session-id": "b"}, session_id="c").name == "session:b"


def test_keys_for_caches_are_hints_alone() -> None:
    assert named({}, prompt_cache_key="k") == ProgramIds(hint="cache-key:k")
    assert named({"x-smg-routing-key": "r"}, session_id="s") == ProgramIds("session:s", hint="smg:r")


def test_a_stored_answer_is_gone_on_with() -> None:
    assert named({}, previous_response_id="resp_1") == ProgramIds(continues="resp_1")


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": 7},
        {"metadata": [1]},
        {"metadata": {"user_id": "{" * 20_000}},
        {"vllm_xargs": {"agentic_context": "[" * 10_000}},
        {"vllm_xargs": "x", "nvext": None, "conversation": [], "agent_hint": {"session_id": 1}},
        {"previous_response_id": {"a": 1}, "prompt_cache_key": " "},
    ],
)
def test_what_is_no_id_names_nothing(fields: dict[str, Any]) -> None:
    assert named({}, **fields) == ProgramIds()


def test_long_ids_are_cut() -> None:
    assert len(named({"x-session-id": "x" * 60_000}).name) < 600
