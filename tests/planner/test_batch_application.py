"""OpenAI Batch files: an application by itself, and lines that differ in some options only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.cores import model_check
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError
from stretto.planner.running.batch_lines import read_batch_application
from stretto.planner.running.unplanned_run import check_known


def line(custom_id: str, model: str = "m", text: Any = "Hi", **options: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **options}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), "utf-8")
    return path


def test_each_model_is_a_node_with_its_longest_answer(tmp_path: Path) -> None:
    plain = {**line("4"), "url": "/v1/completions", "body": {"model": "p", "prompt": "Once"}}
    path = write(tmp_path, line("1", max_tokens=7), line("2", "a/b"), line("3", max_tokens=9), plain)
    app, store = read_batch_application(path)
    requests = [store.get(number) for number in range(len(store))]
    assert [(node.name, node.model, node.max_tokens) for node in app.nodes] == [
        ("m", "m", 9),
        ("a/b", "a/b", 1024),
        ("p", "p", 16),
    ]
    assert [one.planned.nodes for one in requests] == [("m",), ("a/b",), ("m",), ("p",)]
    assert [one.decode for one in requests] == [{"max_tokens": tokens} for tokens in (7, 1024, 9, 16)]


def test_lines_alike_keep_their_own_texts_and_options(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    path = write(
        tmp_path,
        line("1", text="one", seed=1),
        line("2", text="two", seed=2),
        line("3", text="three", seed=1),
        line("4", text=parts, seed=1),
    )
    _, store = read_batch_application(path)
    requests = [store.get(number) for number in range(len(store))]
    assert [one.messages for one in requests] == [
        (PromptMessage("user", text),) for text in ("one", "two", "three", "ab")
    ]
    assert [(one.decode or {})["seed"] for one in requests] == [1, 2, 1, 1]
    assert requests[0].decode is requests[2].decode


def test_a_line_may_say_what_form_its_answer_has(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    path = write(
        tmp_path,
        line("1", response_format=asked),
        line("2", response_format={"type": "json_object"}),
        line("3", structured_outputs={"choice": ["a.", "b"]}),
        line("4", response_format={"type": "text"}),
    )
    _, store = read_batch_application(path)
    decodes = [store.get(number).decode or {} for number in range(len(store))]
    assert json.loads(decodes[0]["json_schema"]) == schema
    assert json.loads(decodes[1]["json_schema"]) == {"type": "object"}
    assert decodes[2]["choices"] == ("a.", "b")
    assert not {"json_schema", "regex", "choices"} & decodes[3].keys()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (line("2", n=2), "'n' is not supported"),
        (line("2", ""), "it has no model"),
        (line("2", "\x07"), "model must have printable characters"),
        (line("2", max_tokens=2**31), "max_tokens must be at most 2147483647"),
        (line("2", response_format={"type": "json_schema"}), "needs the field 'json_schema'"),
        (line("2", structured_outputs={"grammar": "a"}), "cannot be held to a grammar"),
        (line("2", tools=[{"type": "function", "function": {"name": "f"}}]), "'tools' is not supported"),
        (line("2", logprobs=True), "'logprobs' is not supported"),
        (line("2", text=7), "content"),
        (line("2", text="\ud800"), "surrogate"),
        ({**line("2"), "body": {"model": "m", "messages": []}}, "at least one message"),
        ({**line("2"), "body": {**line("2")["body"], "prompt": "x"}}, "'prompt' is not supported"),
        ({"custom_id": "2", "prompt": "x"}, "it has no url and body"),
        ({"custom_id": "2", "body": {}}, "method must be 'POST'"),
        ('{"custom_id": "2", "url": 1, "url": 2}', "the field 'url' is there twice"),
    ],
)
def test_a_line_behind_one_alike_that_cannot_be_run_is_refused_alone(
    tmp_path: Path, second: Any, message: str
) -> None:
    _, store = read_batch_application(write(tmp_path, line("1"), second, line("3")))
    assert [store.get(number).id for number in range(len(store))] == ["1", "3"]
    (refused,) = store.refused
    assert (refused.id, message in refused.error.message) == ("2", True)


def test_a_line_that_is_no_mapping_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*is a mapping"):
        read_batch_application(write(tmp_path, line("1"), []))


def test_a_custom_id_that_was_used_refuses_the_second_line(tmp_path: Path) -> None:
    _, store = read_batch_application(write(tmp_path, line("1"), line("1", text="Ho"), line("2")))
    assert [store.get(number).id for number in range(len(store))] == ["1", "2"]
    (refused,) = store.refused
    assert (refused.id, refused.error.message) == ("1", "custom_id '1' was used in line 1")


def test_a_model_that_refused_lines_alone_name_is_no_node(tmp_path: Path) -> None:
    app, _ = read_batch_application(write(tmp_path, line("1"), line("2", "other", n=2)))
    assert [node.name for node in app.nodes] == ["m"]


def test_lines_whose_model_nothing_answers_for_are_refused_alone(tmp_path: Path) -> None:
    checked = []

    def check(model: str) -> None:
        checked.append(model)
        check_known(model, ["llama", "smol"])

    lines = [line("1", "llama"), line("2", "lama"), line("3", "llama"), line("4", "lama")]
    app, store = read_batch_application(write(tmp_path, *lines), check_known=check)
    assert [node.name for node in app.nodes] == ["llama"]
    assert [one.id for one in store.refused] == ["2", "4"]
    message = store.refused[1].error.message
    assert message.endswith("'lama'; it must be one of the LLM engines: llama, smol; did you mean llama?")
    assert checked == ["llama", "lama"], "each once"
    with pytest.raises(ConfigError, match="'1': body: there are no costs of the model 'lama'"):
        read_batch_application(write(tmp_path, line("1", "lama")), check_known=model_check("4xA100-80G"))
