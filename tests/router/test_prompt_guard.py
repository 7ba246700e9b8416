"""Faults of prompts at a router: found in what passes, told, and repaired where the settings say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.routing import Routing, routing, run

from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.repairs import RepairConfig, Repairs
from stretto.wire.errors import RequestRefused

CHAT = "/v1/chat/completions"
RULES = "\n".join(f"Rule {n}: an answer about matter number {n} is short and says why." for n in range(80))
BILLING = "x-billing-header: cch="


def body(number: int, head: str = BILLING) -> dict[str, Any]:
    """Return the body of a coding agent's request, with a line that changes at the head of it."""
    tool = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {}}}
    messages = [
        {"role": "system", "content": f"{head}{number * 7919 + 0xA1B2C:05x};\n{RULES}"},
        {"role": "user", "content": f"Mend the fault {number}."},
    ]
    return {"model": "m", "messages": messages, "tools": [tool], "temperature": 1.5}


async def ask(at: Routing, number: int) -> Any:
    """Send one request."""
    return await at.client.post(CHAT, content=json.dumps(body(number)))


def test_a_fault_is_told_to_the_admin_in_metrics_and_in_the_record(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"

    async def main() -> None:
        async with routing("well", record=record) as at:
            for number in range(6):
                reply = await ask(at, number)
                assert "x-stretto-repaired" not in reply.headers
            (fault,) = (await at.client.get("/admin/prompts")).json()
            assert (fault["changes"], fault["place"], fault["sample"]) == (
                "id",
                "messages[0]",
                f"{BILLING}⟨id⟩;",
            )
            assert fault["lost_tokens"] == await at.total("stretto_prompt_fault_tokens_total", changes="id")
            assert json.loads(at.servers[0].asked[-1].body) == body(5)

    run(main())
    lines = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    assert any("prompt_fault" in line for line in lines)
    assert "Rule 7" not in record.read_text("utf-8")


def test_a_repair_is_done_where_it_is_asked_for_and_said() -> None:
    async def main() -> None:
        rule = RepairConfig(drop_line="x-billing-header: *")
        async with routing("well", repair=(rule,)) as at:
            for number in range(6):
                reply = await ask(at, number)
                assert reply.headers["x-stretto-repaired"] == "dropped: x-billing-header: *"
                sent = json.loads(at.servers[0].asked[-1].body)
                assert sent["messages"][0] == {"role": "system", "content": RULES}
                assert {**sent, "messages": []} == {**body(number), "messages": []}
            assert (await at.client.get("/admin/prompts")).json() == []
            assert await at.total("stretto_repaired_requests_total") == 6

    run(main())


def test_nothing_is_watched_where_prompts_are_not_read() -> None:
    async def main() -> None:
        async with routing("well", placement="least_loaded", holds_programs=False) as at:
            for number in range(6):
                await ask(at, number)
            assert at.router.front.watch.prompts.num_kinds == 0

    run(main())


def repaired(fields: dict[str, Any], path: str = CHAT, **rule: Any) -> tuple[dict[str, Any], str]:
    """Return a body as it is sent on, and what the header says."""
    from stretto.router.body_edits import edited

    data = json.dumps(fields).encode()
    repairs = Repairs([RepairConfig(**rule)])
    routed = read_request(RequestHead(path, ""), ReadingRules(repairs=repairs), data)
    return json.loads(edited(data, routed.edits)), routed.repaired


def test_a_line_is_moved_to_the_end_of_the_last_message() -> None:
    fields = {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief.\nNow: 9:41\nThe end."}],
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Now: I said that"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]},
        ],
    }
    sent, told = repaired(fields, "/v1/messages", move_line="Now: *")
    assert told == "moved: Now: *"
    assert sent["system"] == [{"type": "text", "text": "Be brief.\nThe end."}]
    assert sent["messages"][:2] == fields["messages"][:2], "what the model has said stays"
    assert sent["messages"][2]["content"][1] == {"type": "text", "text": "Now: 9:41"}


def test_a_part_that_is_one_line_goes_with_it_and_other_bodies_stay_as_they_are() -> None:
    parts = [{"type": "text", "text": "x-a: 1;"}, {"type": "text", "text": "Be brief."}]
    sent, _ = repaired(
        {"system": parts, "messages": [{"role": "user", "content": "Hi"}]},
        "/v1/messages",
        drop_line="x-a: *;",
    )
    assert sent["system"] == parts[1:]
    other = {"messages": [{"role": "user", "content": "about x-a: 1; and more"}], "model": "m"}
    assert repaired(other, drop_line="x-a: *;") == (other, "")


def test_tools_are_put_into_one_order() -> None:
    def tool(name: str, *keys: str) -> dict[str, Any]:
        given = {"description": "d", "name": name, "parameters": {"required": [*keys], "type": "object"}}
        return {"function": {key: given[key] for key in sorted(given, reverse=len(keys) > 1)}}

    one, told = repaired(
        {"model": "m", "messages": [], "tools": [tool("b"), tool("a", "y", "x")]}, canonical_tools=True
    )
    other, _ = repaired(
        {"model": "m", "messages": [], "tools": [tool("a", "x", "y"), tool("b")]}, canonical_tools=True
    )
    assert told == "tools in canonical order"
    assert json.dumps(one["tools"]) == json.dumps(other["tools"])


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"drop_line": "a", "move_line": "b"},
        {"drop_line": "a", "canonical_tools": True},
        {"drop_line": "***"},
        {"drop_line": "a\nb"},
        {"move_line": "x" * 201},
    ],
)
def test_a_rule_that_is_none_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="repair"):
        RouterConfig(repair=(RepairConfig(**rule),))


def test_a_hostile_text_does_not_take_long_to_be_searched() -> None:
    hostile = {"model": "m", "messages": [{"role": "system", "content": "a" * 60_000 + "\n" + "ab" * 30_000}]}
    assert repaired(hostile, drop_line="a*b*a*b*c")[1] == ""


def test_what_cannot_be_repaired_is_sent_as_it_came() -> None:
    """Tools that are nested too deeply to be sorted, and a message of which nothing would be left."""
    deep = '{"properties":' * 600 + "1" + "}" * 600
    text = f'{{"messages":[],"tools":[{{"name":"b","parameters":{deep}}},{{"name":"a"}}]}}'.encode()
    assert not Repairs([RepairConfig(canonical_tools=True)]).repaired(CHAT, json.loads(text), text).edits
    drop = Repairs([RepairConfig(drop_line="Now: *")])
    for content in ("Now: 1", [{"type": "text", "text": "Now: 1"}]):
        fields = {"messages": [{"role": "user", "content": content}]}
        made = drop.repaired(CHAT, fields, json.dumps(fields).encode())
        assert (made.fields, made.told) == (fields, "")
    fields = {"messages": [{"role": "system", "content": "Now: 1"}, {"role": "user", "content": "Hi"}]}
    made = drop.repaired(CHAT, fields, json.dumps(fields).encode())
    assert made.fields["messages"][0]["content"] == ""


def test_a_repair_of_lines_in_any_script_is_said() -> None:
    async def main() -> None:
        async with routing("well", repair=(RepairConfig(drop_line="Сейчас: *"),)) as at:
            reply = await at.client.post(CHAT, content=json.dumps(body(1, "Сейчас: ")))
            assert (reply.status_code, "x-stretto-repaired" in reply.headers) == (200, True)

    run(main())


@pytest.mark.parametrize("rule", [{"canonical_tools": True}, {"drop_line": "Now: *"}])
def test_tools_that_are_nested_too_deeply_are_refused_with_repairs_too(rule: dict[str, Any]) -> None:
    deep = b'{"model": "m", "messages": [], "tools": [' + b'{"a":' * 980 + b"1" + b"}" * 980 + b"]}"
    with pytest.raises(RequestRefused, match=r"nested too deeply|recursion"):
        read_request(RequestHead(CHAT, ""), ReadingRules(repairs=Repairs([RepairConfig(**rule)])), deep)


def test_what_an_embedding_is_asked_of_stays_as_it_is() -> None:
    fields = {"model": "m", "input": "Now: 9:41\nThe text."}
    assert repaired(fields, "/v1/embeddings", drop_line="Now: *") == (fields, "")
    assert repaired(fields, "/v1/responses", drop_line="Now: *")[0]["input"] == "The text."
