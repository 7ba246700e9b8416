"""Requests of a run, with their texts: the lines of plans, and OpenAI Batch files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, ModelNode
from stretto.planner.prompt_slots import fill
from stretto.planner.running.planned_calls import CallAnswer, CallEnded
from stretto.planner.running.request_store import RequestStore, stored
from stretto.planner.running.requests import read_run_requests
from stretto.planner.running.results import result_line
from stretto.planner.running.run_request import RunRequest

APP = Application(
    "app",
    [
        ModelNode("write", "m", 50, inputs=("sum",)),
        ModelNode("sum", "n", 40, chain=True),
        ModelNode("judge", "m", 30, prompt="Judge."),
    ],
)
CHAT = {"model": "judge", "messages": [{"role": "user", "content": "Hi"}]}


def stored_lines(tmp_path: Path, *lines: Any) -> RequestStore:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return read_run_requests(path, APP)


def read(tmp_path: Path, *lines: Any) -> list[RunRequest]:
    requests = stored_lines(tmp_path, *lines)
    return [requests.get(number) for number in range(len(requests))]


def batch(body: Any, **fields: Any) -> dict[str, Any]:
    return {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}


def test_texts_of_plan_lines_are_kept(tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"custom_id": "1", "prompt": "abcde", "chunks": ["fgh", "i"]})
    assert request.messages == (PromptMessage(None, "abcde"),)
    assert request.chunks == ("fgh", "i")
    assert (request.planned.prompt_tokens, request.planned.chunks) == (2, (1, 1))


def test_a_batch_line_is_for_one_node(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    settings = {"temperature": 0.5, "seed": 3, "stop": "x", "max_tokens": 99}
    chat, plain = read(
        tmp_path,
        batch({"model": "judge", "messages": messages, **settings}),
        batch({"model": "write", "prompt": "Once"}, custom_id="2", url="/v1/completions"),
    )
    assert chat.messages == (PromptMessage("system", "Be brief."), PromptMessage("user", "Hi"))
    assert chat.planned.nodes == ("judge",)
    assert chat.decode == {"max_tokens": 30, "temperature": 0.5, "seed": 3, "stop": ("x",)}
    assert (plain.messages, plain.planned.nodes) == ((PromptMessage(None, "Once"),), ("write",))
    assert plain.decode == {"max_tokens": 50}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (batch(CHAT, method="GET"), "method must be 'POST'"),
        (batch(CHAT, url="/v1/embeddings"), "url must be one of"),
        (batch([]), "body must be a mapping"),
        (batch({**CHAT, "model": "m"}), "model is 'm'; it must name a node"),
        (batch({**CHAT, "model": "sum"}), "'sum' is called by chunk"),
        (batch({**CHAT, "n": 2}), "'n' is not supported"),
        (batch({**CHAT, "stream": True}), "'stream' is not supported"),
        (batch({**CHAT, "temperature": "hot"}), "temperature"),
        (batch({**CHAT, "messages": [{"role": "tool", "content": "x"}]}), "role must be one of"),
        (batch({**CHAT, "messages": [{"role": "user"}]}), "must have a content"),
        (batch({**CHAT, "messages": [{"role": "user", "content": "\ud800"}]}), "surrogate"),
        (
            batch({**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
            "'tools' is not supported",
        ),
        (batch({**CHAT, "reasoning_effort": "low"}), "'reasoning_effort' is not supported"),
        (batch({**CHAT, "max_tokens": "many"}), "max_tokens"),
        (batch({**CHAT, "messages": [{"role": "user", "content": "x", "name": "bob"}]}), "role only"),
        (batch(CHAT, wish=1), "unknown field 'wish'"),
        (batch(CHAT, prompt="x"), "unknown field 'prompt'"),
        (batch(CHAT, custom_id="first"), "custom_id 'first' was used in line 1"),
    ],
)
def test_a_batch_line_that_cannot_be_run_is_refused_and_the_others_are_run(
    tmp_path: Path, line: Any, message: str
) -> None:
    lines = [batch(CHAT, custom_id="first"), line, batch(CHAT, custom_id="last")]
    store = stored_lines(tmp_path, *lines)
    assert [store.get(number).id for number in range(len(store))] == ["first", "last"]
    (refused,) = store.refused
    assert refused.id == line["custom_id"]
    assert re.search(message, refused.error.message)
    if line["custom_id"] != "first":
        with pytest.raises(ConfigError, match=f"no line can be run; .*{message}"):
            stored_lines(tmp_path, line)


@pytest.mark.parametrize("custom_id", [7, None, "", ["a"], "\ud800"])
def test_a_batch_line_without_a_name_is_refused_by_its_place(tmp_path: Path, custom_id: Any) -> None:
    store = stored_lines(tmp_path, batch(CHAT, custom_id="first"), batch(CHAT, custom_id=custom_id))
    (refused,) = store.refused
    assert refused.id == "line 2"
    assert re.search("custom_id must be a text|surrogate", refused.error.message)


def test_why_each_line_is_refused_stands_in_the_error_of_a_file_without_others(tmp_path: Path) -> None:
    lines = [batch({**CHAT, "n": number}, custom_id=f"{number}") for number in range(2, 9)]
    with pytest.raises(ConfigError, match=r"no line can be run; '2': .*; '6': .*; and 2 more$"):
        stored_lines(tmp_path, *lines)


@pytest.mark.parametrize("line", ["{", "7", '["body"]', '{"body": 1'])
def test_what_is_no_line_at_all_refuses_the_file(tmp_path: Path, line: str) -> None:
    """A file that is cut or is of another kind is not run in part."""
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(batch(CHAT))}\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_run_requests(tmp_path / "in.jsonl", APP)


@pytest.mark.parametrize(
    "labels",
    [
        {"user": "me", "metadata": {"k": "v"}},
        {"service_tier": "flex", "store": True},
        {"prompt_cache_key": "k"},
    ],
)
def test_labels_of_a_batch_line_change_nothing(tmp_path: Path, labels: dict[str, Any]) -> None:
    plain, labelled = read(tmp_path, batch(CHAT), batch({**CHAT, **labels}, custom_id="2"))
    assert (plain.messages, plain.decode) == (labelled.messages, labelled.decode)


def test_a_developer_is_the_system(tmp_path: Path) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (request,) = read(tmp_path, batch({**CHAT, "messages": messages}))
    assert [message.role for message in request.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"custom_id": "1", "prompt_tokens": 7, "nodes": ["judge"]}, "needs the text"),
        ({"custom_id": "1", "prompt": "x", "chunks": [7]}, "chunks must be texts"),
        ({"custom_id": "1", "prompt": "x"}, "no chunks, which node 'sum' needs"),
        ({"custom_id": "1", "chunks": ["x"], "nodes": ["write"]}, "no prompt, which node 'write' needs"),
        ({"custom_id": "1", "prompt": "x", "nodes": ["z"]}, "no node 'z'"),
    ],
)
def test_a_line_that_cannot_be_run_is_named(tmp_path: Path, line: Any, message: str) -> None:
    first = {"custom_id": "0", "prompt": "x", "nodes": ["judge"]}
    with pytest.raises(ConfigError, match=f"line 2: .*{message}"):
        read(tmp_path, first, line)


def test_a_node_with_inputs_needs_no_prompt_of_the_request(tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"custom_id": "1", "chunks": ["x"], "nodes": ["sum", "write"]})
    assert request.messages == ()


def test_results_of_a_batch_line_have_the_form_of_its_api(tmp_path: Path) -> None:
    (request,) = read(tmp_path, batch(CHAT))
    found = result_line(
        CallEnded(request.id, stored([request]).kind(0), {"judge": [CallAnswer("Yes", 4, 30)]}),
        APP,
        1790000000,
    )
    assert (found["custom_id"], found["error"], found["response"]["status_code"]) == ("1", None, 200)
    body = found["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "judge")
    assert body["created"] == 1790000000
    assert body["choices"][0]["message"]["content"] == "Yes"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 30, "total_tokens": 34}


def test_results_of_other_lines_have_answers_by_node(tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"custom_id": "1", "prompt": "x", "chunks": ["y"]})
    answers = {"sum": [CallAnswer("a")], "write": [CallAnswer("b")]}
    found = result_line(CallEnded(request.id, stored([request]).kind(0), answers), APP, 0)
    assert found["response"]["body"] == {"answers": {"sum": ["a"], "write": "b"}}
    failed = result_line(CallEnded(request.id, stored([request]).kind(0), {}, ConfigError("no room")), APP, 0)
    assert (failed["response"], failed["error"]) == (None, {"code": "ConfigError", "message": "no room"})


@pytest.mark.parametrize(
    ("prompt", "filled"),
    [
        ("", "a\n\nb"),
        ("Judge.", "Judge.\n\na\n\nb"),
        ("<{write}> {prompt}{sum}", "<b> a"),
    ],
)
def test_slots_are_filled(prompt: str, filled: str) -> None:
    """A text that looks like a slot is not filled again."""
    assert fill(prompt, {"prompt": "a", "write": "b"}) == filled
    assert fill("{prompt}", {"prompt": "{write}", "write": "b"}) == "{write}"
