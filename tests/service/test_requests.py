"""Requests to a service as any client may write them, and what comes back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.model.tasks import Criteria
from stretto.service.config import Limits, ServiceConfig, TenantConfig

DESK = Desk()
TENANTS = (
    TenantConfig(name="one", keys=("key-1",)),
    TenantConfig(name="two", keys=("key-2",)),
    TenantConfig(
        name="small",
        keys=("key-small",),
        limits=Limits(sessions=2, variables=4, bytes=20, depth=2, width=3, tokens_per_minute=2000),
    ),
)
CONFIG = ServiceConfig(port=0, tenant=TENANTS, max_wait_s=0.2, max_body_bytes=100_000)
ECHO = "[{{input:x}}] {{output:y}}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served([desk_llm(DESK), transforms_engine()], CONFIG) as (_, url):
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"authorization": "Bearer key-1"}, timeout=20) as client:
        yield client


@pytest.fixture
def session(client: httpx.Client) -> str:
    return opened(client)


def opened(client: httpx.Client) -> str:
    answer = client.post("/v1/sessions", json={})
    assert answer.status_code == 201
    found: str = answer.json()["session_id"]
    return found


def submitted(session: str, *, x: str = "in", y: str = "out", **more: Any) -> dict[str, Any]:
    """The paper's body of submit."""
    places = [
        {"name": "x", "in_out": False, "semantic_var_id": x, "transforms": ""},
        {"name": "y", "in_out": True, "semantic_var_id": y, "transforms": ""},
    ]
    return {"prompt": ECHO, "placeholders": places, "session_id": session, **more}


def refusal(answer: httpx.Response, status: int, code: str) -> str:
    """Return the message of a refusal, whose form is always the same."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert set(error) == {"code", "message", "type", "param", "step", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    message: str = error["message"]
    return message


def test_the_bodies_of_the_paper(client: httpx.Client, session: str) -> None:
    answer = client.post("/v1/submit", json=submitted(session))
    assert answer.json()["calls"] == [{"y": "out"}]
    assert client.post(
        "/v1/set", json={"semantic_var_id": "in", "value": "a snake game", "session_id": session}
    ).is_success
    answer = client.post(
        "/v1/get", json={"semantic_var_id": "out", "criteria": "latency", "session_id": session}
    )
    assert answer.json() == {"semantic_var_id": "out", "value": "<[a snake game] >"}


@pytest.mark.parametrize("criteria", get_args(Criteria))
def test_every_criteria_gets_the_value(client: httpx.Client, session: str, criteria: str) -> None:
    body = {**submitted(session), "wanted": {"out": criteria}, "values": {"in": "x"}}
    assert client.post("/v1/submit", json=body).is_success
    wish = {"semantic_var_id": "out", "session_id": session, "criteria": criteria}
    assert client.post("/v1/get", json=wish).json()["value"] == "<[x] >"
    assert client.get(f"/v1/sessions/{session}/graph").is_success
    refusal(client.post("/v1/get", json={**wish, "criteria": f"{criteria}s"}), 422, "invalid")


def test_the_first_submit_opens_a_session(client: httpx.Client) -> None:
    body = submitted("")
    del body["session_id"]
    answer = client.post(
        "/v1/submit", json={**body, "values": {"in": "x"}, "session": {"objective": "latency"}}
    )
    session = answer.json()["session_id"]
    got = client.post("/v1/get", json={"semantic_var_id": "out", "session_id": session})
    assert got.json()["value"] == "<[x] >"
    for settings in ({"objective": "speed"}, {"deadline_s": -1}):
        refusal(client.post("/v1/submit", json={**body, "session": settings}), 422, "invalid")
    refusal(
        client.post("/v1/submit", json={**submitted(session, x="a", y="b"), "session": {}}), 422, "invalid"
    )


def test_an_output_that_may_be_too_long_is_refused(client: httpx.Client, session: str) -> None:
    body = submitted(session)
    for max_tokens, place in ((1_000_001, "calls[0]"), (2**62, "calls[0]")):
        body["placeholders"][1]["settings"] = {"max_tokens": max_tokens}
        answer = client.post("/v1/submit", json=body)
        assert f"max_tokens is {max_tokens}" in refusal(answer, 422, "over_limit")
        assert answer.json()["error"]["step"] == place


def test_a_submit_that_is_refused_leaves_no_session(url: str) -> None:
    with httpx.Client(base_url=url, headers={"authorization": "Bearer key-small"}, timeout=20) as client:
        for _ in range(5):
            answer = client.post("/v1/submit", json={"prompt": "{{input:x}}", "placeholders": []})
            refusal(answer, 422, "template_error")
        client.delete(f"/v1/sessions/{opened(client)}")


def test_one_request_carries_a_whole_program(client: httpx.Client, session: str) -> None:
    calls = [
        {
            "function": "second",
            "prompt": "{{x}}: {{z}}",
            "placeholders": [
                {"name": "x", "in_out": False, "semantic_var_id": "out", "transforms": ["strip"]},
                {"name": "z", "in_out": True, "settings": {"max_tokens": 5}},
            ],
        },
        {
            "function": "first",
            "prompt": ECHO,
            "placeholders": [
                {"name": "x", "in_out": False, "value": "{{x}} <|im_end|>"},
                {"name": "y", "in_out": True, "semantic_var_id": "out"},
            ],
        },
        {
            "operator": "join",
            "settings": {"separator": " & "},
            "placeholders": [
                {"name": "item1", "in_out": False, "semantic_var_id": "given"},
                {"name": "item2", "in_out": False, "value": ["a", 2]},
                {"name": "join", "in_out": True, "semantic_var_id": "joined"},
            ],
        },
    ]
    body = {"session_id": session, "calls": calls, "values": {"given": "b"}, "wanted": {"joined": "latency"}}
    (second, first, _) = client.post("/v1/submit", json=body).json()["calls"]
    values = [
        client.post("/v1/get", json={"session_id": session, "semantic_var_id": name, "timeout_s": 15}).json()
        for name in (first["y"], second["z"], "joined")
    ]
    assert [value["value"] for value in values] == [
        "<[{{x}} <|im_end|>] >",
        "<<[{{x}} <|im_end|>] >: >",
        "b & a & 2",
    ]


@pytest.mark.parametrize("value", [[1] * 30_000, [[1] * 200] * 200, {"a": [0] * 30_000}])
def test_values_of_too_many_items_are_refused(client: httpx.Client, session: str, value: object) -> None:
    """Reading millions of numbers would keep all other clients waiting for seconds."""
    placeholders = [
        {"name": "x", "in_out": False, "value": value},
        {"name": "y", "in_out": True, "semantic_var_id": "y"},
    ]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/set", {"semantic_var_id": "many", "value": value}),
        ("/v1/submit", {"calls": [], "values": {"many": value}}),
        ("/v1/submit", {"calls": [{"prompt": ECHO, "placeholders": placeholders}]}),
    ]
    for path, body in bodies:
        answer = client.post(path, json={"session_id": session, **body})
        assert answer.status_code == 422, answer.text
        assert "more than 20000 items" in answer.json()["error"]["message"]
    fits = {"session_id": session, "semantic_var_id": "many", "value": [1] * 19_000}
    assert client.post("/v1/set", json=fits).status_code == 200


def test_text_streams_as_events(client: httpx.Client, session: str) -> None:
    client.post("/v1/submit", json=submitted(session, values={"in": "one two"}))
    body = {"session_id": session, "semantic_var_id": "out", "stream": True}
    answer = client.post("/v1/get", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    *events, last, end = answer.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    texts = [json.loads(event.removeprefix("data: "))["text"] for event in events]
    assert "".join(texts) == "<[one two] >"


def test_ids_of_others_are_unknown(url: str, client: httpx.Client, session: str) -> None:
    client.post("/v1/submit", json=submitted(session))
    with httpx.Client(base_url=url, headers={"authorization": "Bearer key-2"}) as other:
        body = {"semantic_var_id": "out", "session_id": session}
        theirs = refusal(other.post("/v1/get", json=body), 404, "unknown_id")
        unknown = refusal(other.post("/v1/get", json={**body, "session_id": "x"}), 404, "unknown_id")
        assert theirs == unknown
        assert refusal(other.delete(f"/v1/sessions/{session}"), 404, "unknown_id") == theirs
    assert client.delete(f"/v1/sessions/{session}").is_success
    assert refusal(client.post("/v1/get", json=body), 404, "unknown_id") == theirs


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer x", "Basic key-1", "Bearer key-1x"])
def test_a_key_is_needed(url: str, key: str) -> None:
    answer = httpx.post(f"{url}/v1/sessions", json={}, headers={"authorization": key} if key else {})
    refusal(answer, 401, "unauthorized")


def test_what_contradicts_a_session_is_a_conflict(client: httpx.Client, session: str) -> None:
    body = submitted(session)
    assert client.post("/v1/submit", json=body).is_success
    assert "'out' has a value" in refusal(client.post("/v1/submit", json=body), 409, "conflict")
    for name in ("out", "twice"):
        client.post("/v1/set", json={"session_id": session, "semantic_var_id": "twice", "value": 1})
        answer = client.post("/v1/set", json={"session_id": session, "semantic_var_id": name, "value": 2})
        assert f"'{name}' has a value" in refusal(answer, 409, "conflict")


def test_a_refused_request_does_nothing(client: httpx.Client, session: str) -> None:
    body = submitted(session, y="a")
    body["calls"] = [{"prompt": ECHO, "placeholders": body["placeholders"]}]  # makes `a` again
    refusal(client.post("/v1/submit", json=body), 409, "conflict")
    get = {"session_id": session, "semantic_var_id": "a"}
    refusal(client.post("/v1/get", json=get), 404, "unknown_id")
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 0
    assert client.post("/v1/submit", json=submitted(session, y="a")).is_success


def test_a_variable_that_does_not_come(client: httpx.Client, session: str) -> None:
    client.post("/v1/submit", json=submitted(session))
    for more in ({}, {"timeout_s": 0.01}, {"timeout_s": 1000}, {"stream": True}):
        body = {"session_id": session, "semantic_var_id": "out", **more}
        assert "'out' has no value yet" in refusal(client.post("/v1/get", json=body), 408, "not_yet")


def test_a_failed_step_is_named_at_once(client: httpx.Client, session: str) -> None:
    calls = [
        {
            "operator": "transform",
            "settings": {"steps": ["json"]},
            "placeholders": [
                {"name": "value", "in_out": False, "value": "no JSON"},
                {"name": "transform", "in_out": True, "semantic_var_id": "parsed"},
            ],
        },
        {
            "function": "after",
            "prompt": ECHO,
            "placeholders": [
                {"name": "x", "in_out": False, "semantic_var_id": "parsed"},
                {"name": "y", "in_out": True, "semantic_var_id": "out"},
            ],
        },
    ]
    assert client.post("/v1/submit", json={"session_id": session, "calls": calls}).is_success
    answer = client.post("/v1/get", json={"session_id": session, "semantic_var_id": "out", "timeout_s": 15})
    refusal(answer, 502, "bad_reply")
    assert answer.json()["error"]["step"] == "transform"


def test_a_name_may_be_used_again_when_it_was_given_up(client: httpx.Client, session: str) -> None:
    body = submitted(session, values={"in": "1"})
    assert client.post("/v1/submit", json=body).is_success
    assert client.delete(f"/v1/sessions/{session}/variables/out").is_success
    answer = client.delete(f"/v1/sessions/{session}/variables/out")
    assert refusal(answer, 404, "unknown_id") == "there is no variable 'out' in this session"
    assert client.post("/v1/submit", json={**submitted(session), "dropped": ["in"]}).is_success


def test_the_same_idempotency_key_does_it_once(client: httpx.Client, session: str) -> None:
    headers = {"idempotency-key": "k"}
    first = client.post("/v1/submit", json=submitted(session), headers=headers)
    again = client.post("/v1/submit", json=submitted(session), headers=headers)
    assert first.json() == again.json()
    other = client.post("/v1/submit", json=submitted(session, y="other"), headers=headers)
    refusal(other, 422, "key_used")
    ids = {client.post("/v1/sessions", json={}, headers={"idempotency-key": "s"}).text for _ in range(3)}
    assert len(ids) == 1


def test_what_is_given_up_with_the_request_that_names_it(client: httpx.Client, session: str) -> None:
    """Naming a variable twice, or one that the same request makes, leaves nothing half done."""
    body = submitted(session, values={"in": "1", "other": "2"}, dropped=["out", "other", "out"])
    assert client.post("/v1/submit", json=body).is_success
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 1
    body = {"session_id": session, "values": {"new": "3"}, "dropped": ["in", "unknown"]}
    assert "'unknown'" in refusal(client.post("/v1/submit", json=body), 404, "unknown_id")
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 1


def test_a_cycle_is_refused_after_a_refused_request(client: httpx.Client, session: str) -> None:
    """A refused request must not make the session forget which variables are awaited."""
    assert client.post("/v1/submit", json=submitted(session, x="b", y="a")).is_success
    calls = [submitted(session, x="c", y=name) for name in ("b", "a")]
    for call in calls:
        del call["session_id"]
    body = {"session_id": session, "calls": [{**call, "function": "f"} for call in calls]}
    refusal(client.post("/v1/submit", json=body), 409, "conflict")
    answer = client.post("/v1/submit", json=submitted(session, x="a", y="b"))
    assert "a cycle through the variables" in refusal(answer, 422, "user_error")


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "document", "source": "s", "sections": [["x" * 21]], "sha256": ""},
        {"$type": "chunk", "source": "s", "text": "x" * 21},
        {"$type": "hit", "chunk": {"source": "s", "text": "x" * 21}, "score": 1},
        {"$type": "failure", "error": {"code": "user_error", "message": "x" * 21, "step": None}},
        ["x" * 21],
    ],
)
def test_the_texts_in_a_value_count_as_its_bytes(url: str, value: object) -> None:
    with small(url) as client:
        session = opened(client)
        body = {"session_id": session, "semantic_var_id": "v", "value": value}
        assert "at most 20 bytes" in refusal(client.post("/v1/set", json=body), 429, "over_limit")
        client.delete(f"/v1/sessions/{session}")


def test_ids_cannot_be_guessed(client: httpx.Client) -> None:
    ids = [opened(client) for _ in range(5)]
    assert len(set(ids)) == 5
    assert all(re.fullmatch(r"[\w-]{24}", one) for one in ids)


def small(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": "Bearer key-small"})


def test_limits_say_when_to_come_back(url: str) -> None:
    with small(url) as client:
        session, other = opened(client), opened(client)
        answer = client.post("/v1/sessions", json={})
        assert "2 sessions are open" in refusal(answer, 429, "over_limit")
        assert int(answer.headers["retry-after"]) > 0
        assert client.delete(f"/v1/sessions/{other}").is_success
        answer = client.post("/v1/submit", json={"session_id": session, "values": {"a": "x" * 21}})
        assert "at most 20 bytes" in refusal(answer, 429, "over_limit")
        answer = client.post("/v1/submit", json={"session_id": session, "values": dict.fromkeys("abcde", 1)})
        assert "at most 4 variables" in refusal(answer, 429, "over_limit")
        chain = [
            {
                "prompt": ECHO,
                "placeholders": [
                    {"name": "x", "in_out": False, "semantic_var_id": f"v{n}"},
                    {"name": "y", "in_out": True, "semantic_var_id": f"v{n + 1}"},
                ],
            }
            for n in range(4)
        ]
        answer = client.post("/v1/submit", json={"session_id": session, "calls": chain})
        assert "at most 3 go together" in refusal(answer, 422, "over_limit")
        answer = client.post("/v1/submit", json={"session_id": session, "calls": chain[:3]})
        assert "at most 2 calls may depend" in refusal(answer, 422, "over_limit")
        long = submitted(session)
        long["placeholders"][1]["settings"] = {"max_tokens": 1900}
        assert client.post("/v1/submit", json=long).is_success
        answer = client.post("/v1/submit", json=submitted(session, y="more"))
        assert "2000 are allowed in a minute" in refusal(answer, 429, "over_limit")
        assert 0 < int(answer.headers["retry-after"]) <= 60
        client.delete(f"/v1/sessions/{session}")


BAD_BODIES: dict[str, tuple[bytes, int]] = {
    "no JSON": (b"{", 400),
    "NaN": (b'{"session_id": "x", "semantic_var_id": "y", "value": NaN}', 400),
    "infinite": (b'{"session_id": "x", "semantic_var_id": "y", "value": Infinity}', 400),
    "bad UTF-8": (b'{"session_id": "\xff"}', 400),
    "deep": (
        b'{"session_id": "x", "semantic_var_id": "y", "value": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        400,
    ),
    "a list": (b"[]", 422),
    "a number as id": (b'{"session_id": 3}', 422),
    "unknown field": (b'{"session_id": "x", "semantic_var_id": "y", "value": 1, "more": 1}', 422),
    "long": (b" " * 100_001, 413),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused(client: httpx.Client, case: str) -> None:
    body, status = BAD_BODIES[case]
    answer = client.post("/v1/set", content=body)
    assert answer.status_code == status
    refusal(answer, status, answer.json()["error"]["code"])


def test_a_long_body_without_a_length_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/set", content=(b" " * 10_000 for _ in range(20)))
    refusal(answer, 413, "too_large")


def with_place(**changes: Any) -> dict[str, Any]:
    call = {
        "prompt": ECHO,
        "placeholders": [{"name": "x", "in_out": False, "value": "1"}, {"name": "y", "in_out": True}],
    }
    return {**call, **changes}


OUT: dict[str, Any] = {"name": "y", "in_out": True}
IN: dict[str, Any] = {"name": "x", "in_out": False, "value": "1"}
BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "placeholder": (with_place(prompt="{{input: }} {{output:y}}"), "line 1, column 1"),
    "no output": (with_place(prompt="{{x}}", placeholders=[IN]), "has no output"),
    "unknown placeholder": (with_place(prompt="{{z}} {{x}} {{y}}"), "'z'"),
    "unused placeholder": (with_place(placeholders=[IN, OUT, {**IN, "name": "w"}]), "'w'"),
    "twice": (with_place(placeholders=[IN, OUT, OUT]), "two placeholders 'y'"),
    "kinds differ": (with_place(placeholders=[{**IN, "name": "y"}, {**OUT, "name": "x"}]), "no input 'x'"),
    "no engine": (with_place(engine="banana"), "no engine 'banana'"),
    "engine of a kind": (with_place(engine="transforms"), "is no llm engine"),
    "transform": (with_place(placeholders=[IN, {**OUT, "transforms": "explode"}]), "'explode'"),
    "argument": (with_place(placeholders=[IN, {**OUT, "transforms": "enum 3"}]), "enum"),
    "setting": (with_place(placeholders=[IN, {**OUT, "settings": {"colour": 1}}]), "'colour'"),
    "value of a setting": (
        with_place(placeholders=[IN, {**OUT, "settings": {"max_tokens": "x"}}]),
        "max_tokens",
    ),
    "negative length": (with_place(placeholders=[IN, {**OUT, "settings": {"max_tokens": -1}}]), "max_tokens"),
    "settings are a list": (with_place(placeholders=[IN, {**OUT, "settings": []}]), "must be an object"),
    "null as value": (with_place(placeholders=[{**IN, "value": None}, OUT]), "must be a text"),
    "surrogate": (with_place(placeholders=[{**IN, "value": "\ud800"}, OUT]), "surrogate"),
    "type of value": (with_place(placeholders=[{**IN, "value": {"$type": "x"}}, OUT]), "'x'"),
    "neither": (
        with_place(placeholders=[{"name": "x", "in_out": False}, OUT]),
        "neither a variable nor a value",
    ),
    "output with a value": (with_place(placeholders=[IN, {**OUT, "value": 1}]), "takes no value"),
    "id": (with_place(placeholders=[{**IN, "semantic_var_id": "a b"}, OUT]), "semantic_var_id"),
    "each": (with_place(each="y"), "no input 'y' to take items from"),
    "both": (with_place(operator="join"), "either a prompt"),
    "nothing": ({}, "either a prompt"),
    "operator": ({"operator": "explode"}, "no operator 'explode'"),
    "operator's setting": ({"operator": "join", "settings": {"x": 1}}, "join"),
    "operator's output": ({"operator": "join", "placeholders": [IN, OUT]}, "the outputs are join"),
    "operator without inputs": (
        {"operator": "join", "placeholders": [{**OUT, "name": "join"}]},
        "at least one",
    ),
    "app": ({"app": "none"}, "no app 'none'"),
    "many outputs": (
        {
            "prompt": "".join(f"{{{{output:y{n}}}}}" for n in range(300)),
            "placeholders": [{**OUT, "name": f"y{n}"} for n in range(300)],
        },
        "at most 256",
    ),
    "conversation": (with_place(conversation={"user": "U"}), "marks for both"),
    "keyword": (with_place(prompt="{{class}} {{y}}", placeholders=[{**IN, "name": "a b"}, OUT]), "a b"),
    "reserved": (with_place(prompt="{{when}} {{y}}", placeholders=[{**IN, "name": "when"}, OUT]), "reserved"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_with_its_place(client: httpx.Client, session: str, case: str) -> None:
    call, said = BAD_CALLS[case]
    content = json.dumps({"session_id": session, "calls": [with_place(), call]})
    answer = client.post("/v1/submit", content=content)
    error = answer.json()["error"]
    assert answer.status_code in (400, 422), error
    assert said in error["message"]
    assert error["step"] == "calls[1]" or "calls[1]" in error["message"] or answer.status_code == 400
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 0


def test_of_many_calls_all_are_added_or_none(client: httpx.Client, session: str) -> None:
    calls = [
        {"prompt": ECHO, "placeholders": [IN, {**OUT, "semantic_var_id": f"y{number}"}]}
        for number in range(300)
    ]
    bad = {**calls[0], "engine": "none"}
    refused = client.post("/v1/submit", json={"session_id": session, "calls": [*calls, bad]})
    assert refused.status_code in (400, 422)
    assert refused.json()["error"]["step"].startswith("calls[300]")
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 0
    added = client.post("/v1/submit", json={"session_id": session, "calls": calls})
    assert [call["y"] for call in added.json()["calls"]] == [f"y{number}" for number in range(300)]
    assert client.get(f"/v1/sessions/{session}").json()["num_variables"] == 300
    for name in ("y0", "y299"):
        for _ in range(50):  # each waits for 0.2 s at most
            answer = client.post("/v1/get", json={"session_id": session, "semantic_var_id": name})
            if answer.status_code != 408:
                break
        assert answer.json()["value"] == "<[1] >"


BAD_SETTINGS: dict[str, tuple[bytes, int]] = {
    "bad UTF-8": (b'{"stop": "\xff"}', 400),
    "bad UTF-8 in a key": (b'{"\xff": 1}', 400),
    "infinite": (b'{"temperature": 1e999}', 422),
    "long integer": (b'{"max_tokens": 1' + b"0" * 400 + b"}", 422),
    "longer integer": (b'{"max_tokens": 1' + b"0" * 5000 + b"}", 422),
    "long integer in a list": (b'{"stop_tokens": [1' + b"0" * 400 + b"]}", 422),
    "deep": (b'{"stop": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_refused(client: httpx.Client, session: str, case: str) -> None:
    """Settings are read later than the body around them."""
    settings, status = BAD_SETTINGS[case]
    body = json.dumps({"session_id": session, "calls": [with_place()]}).encode()
    with_settings = body.replace(b'"in_out": true', b'"in_out": true, "settings": ' + settings)
    assert client.post("/v1/submit", content=with_settings).status_code == status


def test_a_cycle_is_refused(client: httpx.Client, session: str) -> None:
    places = [{"name": "x", "in_out": False, "semantic_var_id": "b"}, {**OUT, "semantic_var_id": "a"}]
    back = [{"name": "x", "in_out": False, "semantic_var_id": "a"}, {**OUT, "semantic_var_id": "b"}]
    calls = [{"prompt": ECHO, "placeholders": one} for one in (places, back)]
    answer = client.post("/v1/submit", json={"session_id": session, "calls": calls})
    assert "a cycle through the variables" in refusal(answer, 422, "user_error")


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    refusal(client.get("/v1/banana"), 404, "unknown_path")
    refused = client.get("/v1/submit")
    refusal(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"
    refusal(client.put("/v1/sessions/x"), 405, "method_not_allowed")
    assert client.get("/health").json() == {"status": "ok"}


def test_the_graph_of_a_session_tells_what_each_call_was_sent_for(client: httpx.Client, session: str) -> None:
    def call(function: str, x: str, y: str) -> dict[str, Any]:
        places = submitted(session, x=x, y=y)["placeholders"]
        return {"function": function, "prompt": ECHO, "placeholders": places}

    calls = [call("write", "task", "a"), call("write", "task", "b"), call("test", "joined", "end")]
    calls.append(
        {
            "operator": "join",
            "placeholders": [
                {"name": "item1", "in_out": False, "semantic_var_id": "a"},
                {"name": "item2", "in_out": False, "semantic_var_id": "b"},
                {"name": "join", "in_out": True, "semantic_var_id": "joined"},
            ],
        }
    )
    body = {"session_id": session, "calls": calls, "wanted": {"end": "latency"}}
    assert client.post("/v1/submit", json=body).is_success
    path = f"/v1/sessions/{session}/graph"
    assert client.get(path).text.splitlines() == [
        "write.y(task) -> a | is to come",
        "write.y(task) -> b | is to come",
        "test.y(joined) -> end | is to come",
    ]
    client.post("/v1/set", json={"session_id": session, "semantic_var_id": "task", "value": "<b>"})
    client.post("/v1/get", json={"session_id": session, "semantic_var_id": "end", "timeout_s": 15})
    lines = client.get(path).text.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "write.y(task) -> a | has come | throughput | llm 0",
        "write.y(task) -> b | has come | throughput | llm 0",
        "test.y(joined) -> end | has come | latency | llm 0",
    ]
    page = client.get(path, headers={"accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "<td>test.y(joined) -&gt; end</td>" in page.text


def test_the_graph_follows_an_output_through_its_transforms(client: httpx.Client, session: str) -> None:
    body = submitted(session)
    body["placeholders"][1]["transforms"] = "strip"
    assert client.post("/v1/submit", json=body).is_success
    path = f"/v1/sessions/{session}/graph"
    assert client.get(path).text.endswith("| is to come\n")
    client.post("/v1/set", json={"session_id": session, "semantic_var_id": "in", "value": "a"})
    client.post("/v1/get", json={"session_id": session, "semantic_var_id": "out", "timeout_s": 15})
    assert "| has come | throughput | llm 0" in client.get(path).text
