"""Bodies of any kind keep the event loop from others for some ms at most."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from checks.attacks.loop_slices import loop_slices
from stretto.apps import naive_rag
from stretto.engines.catalogue import transforms_engine
from stretto.http.refusals import Refused
from stretto.model.deployment import deploy
from stretto.programs.ledger import Ledger
from stretto.programs.prompt_text import parse
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.bodies import MAX_MARKS, check_num_marks
from stretto.service.config import Limits, ServiceConfig
from stretto.service.service import Service
from stretto.service.sizes import is_large

LONGEST_S = 0.02
APP = "/v1/apps/naive/queries"


@pytest.fixture
def service() -> Iterator[tuple[Service, httpx.Client]]:
    engines = [deploy(name, FakeBatch, FakeBatchConfig()) for name in ("chunking", "embedding", "vectors")]
    config = ServiceConfig(port=0, max_body_bytes=100_000_000, limits=Limits(sessions=100))
    apps = {"naive": deploy_app("naive", naive_rag())}
    with (
        served([*engines, desk_llm(Desk()), transforms_engine()], config, apps) as (service, url),
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        yield service, http


def call(prompt: str, **places: Any) -> dict[str, Any]:
    inputs = [{"name": name, "in_out": False, **place} for name, place in places.items()]
    return {"prompt": prompt, "placeholders": [*inputs, {"name": "y", "in_out": True}]}


def with_transforms(*transforms: str) -> dict[str, Any]:
    return {
        "prompt": "{{output:y}}",
        "placeholders": [{"name": "y", "in_out": True, "transforms": transforms}],
    }


def dependent(number: int) -> list[dict[str, Any]]:
    """A chain of calls, and others that wait for variables which calls at the end of the chain make."""

    def step(reads: str, makes: str) -> dict[str, Any]:
        places = [("x", False, reads), ("y", True, makes)]
        return {
            "prompt": "{{x}}{{output:y}}",
            "placeholders": [{"name": n, "in_out": o, "semantic_var_id": v} for n, o, v in places],
        }

    return [
        *(step(f"c{i}", f"c{i + 1}") for i in range(number)),
        *(step(f"w{i}", f"u{i}") for i in range(number)),
        *(step(f"c{number}", f"w{i}") for i in range(number)),
    ]


SUBMITS: dict[str, Callable[[], dict[str, Any]]] = {
    "places": lambda: call("{{a}}" * 200_000 + "{{output:y}}", a={"value": "x"}),
    "allowed places": lambda: call("{{a}} b" * 990 + "{{output:y}}", a={"value": "x"}),
    "escapes": lambda: call("{{{{" * 200_000 + "{{output:y}}"),
    "long text": lambda: call("word " * 1_000_000 + "{{output:y}}"),
    "inputs": lambda: call("{{output:y}}", **{f"a{i}": {"value": "x"} for i in range(60_000)}),
    "different calls": lambda: {"calls": [call(f"p{i} {{{{output:y}}}}") for i in range(1000)]},
    "equal calls": lambda: {"calls": [call("p {{output:y}}")] * 5000},
    "dependent calls": lambda: {"calls": dependent(300)},
    "outputs": lambda: {
        "prompt": "".join(f"c {{{{output:y{i}}}}}" for i in range(256)),
        "placeholders": [{"name": f"y{i}", "in_out": True} for i in range(256)],
    },
    "values": lambda: {"values": {f"v{i}": i for i in range(19_000)}},
    "wanted": lambda: {"wanted": {f"v{i}": None for i in range(20_000)}},
    "dropped": lambda: {"values": {"a": 1}, "dropped": ["a"] * 1_000_000},
    "transforms": lambda: with_transforms(*["strip"] * 100_000),
    "choices": lambda: with_transforms("enum " + json.dumps([f"a{i}" for i in range(5000)])),
    "regexes": lambda: {"calls": [with_transforms(f'regex "(a{{1,{100 + i}}}){{1,9}}"') for i in range(20)]},
    "settings": lambda: {
        "prompt": "{{output:y}}",
        "placeholders": [{"name": "y", "in_out": True, "settings": {"stop": ["a"] * 500_000}}],
    },
}
SETS: dict[str, bytes] = {
    "numbers": b"[" + b"0," * 5_000_000 + b"0]",
    "allowed numbers": b"[" + b"0," * 19_000 + b"0]",
    "objects": b"[" + b'{"a":1},' * 1_000_000 + b"0]",
    "depth": b"[" * 100_000 + b"]" * 100_000,
    "long integer": b"1" * 10_000_000,
    "long fraction": b"0." + b"1" * 10_000_000,
    "text": b'"' + b"abc, " * 3_000_000 + b'"',
    "escaped text": b'"' + b"\\u00fc" * 1_000_000 + b'"',
    "quotes": b'"' * 3_000_000,
    "garbage": b"x" * 40_000_000,
}
QUERIES: dict[str, bytes] = {
    "documents": b'{"inputs":{"question":"a","files":[%s]}}'
    % b",".join([b'{"name":"a.txt","text":"x"}'] * 50_000),
    "one document": b'{"inputs":{"question":"a","files":[{"name":"a.txt","text":"%s"}]}}'
    % (b"x y " * 1_000_000),
    "settings": b'{"inputs":{"question":"a","files":[]},"settings":{"synthesis":{"prompt":"%s"}}}'
    % (b"{context}{question}" * 100_000),
    "spaces": b'{"inputs":{"question":"a","files":[]},"settings":{"synthesis":{"prompt":"%s{x}"}}}'
    % (b" " * 90_000),
}


@pytest.mark.parametrize("kind", SUBMITS)
def test_a_submit_takes_turns(service: tuple[Service, httpx.Client], kind: str) -> None:
    check(service, "/v1/submit", json.dumps(SUBMITS[kind]()).encode())


@pytest.mark.parametrize(("kind", "has_key"), [*((kind, False) for kind in SETS), ("text", True)])
def test_a_value_takes_turns(service: tuple[Service, httpx.Client], kind: str, has_key: bool) -> None:
    session = service[1].post("/v1/sessions", json={}).json()["session_id"]
    body = b'{"session_id":"%s","semantic_var_id":"v","value":%s}' % (session.encode(), SETS[kind])
    check(service, "/v1/set", body, {"idempotency-key": kind} if has_key else {})
    assert service[1].delete(f"/v1/sessions/{session}").status_code == 200


@pytest.mark.parametrize("kind", QUERIES)
def test_a_query_takes_turns(service: tuple[Service, httpx.Client], kind: str) -> None:
    check(service, APP, QUERIES[kind])


def test_a_long_answer_takes_turns(service: tuple[Service, httpx.Client]) -> None:
    http = service[1]
    session = http.post("/v1/sessions", json={}).json()["session_id"]
    http.post(
        "/v1/set", json={"session_id": session, "semantic_var_id": "v", "value": "abc\u00fc" * 2_000_000}
    )
    with loop_slices(loop_of(service[0])) as slices:
        answer = http.post("/v1/get", json={"session_id": session, "semantic_var_id": "v"})
    assert answer.json()["value"] == "abc\u00fc" * 2_000_000
    assert slices.longest_s < LONGEST_S, slices.longest


def check(
    service: tuple[Service, httpx.Client], path: str, body: bytes, headers: dict[str, str] | None = None
) -> None:
    with loop_slices(loop_of(service[0])) as slices:
        answer = service[1].post(path, content=body, headers=headers)
    assert answer.status_code in (200, 400, 413, 422), answer.text[:500]
    assert slices.count
    assert slices.longest_s < LONGEST_S, slices.longest


def loop_of(service: Service) -> Any:
    return service.runtime._loop


def test_values_are_counted_before_a_body_is_decoded() -> None:
    """What stands in strings does not count."""
    check_num_marks(b'"' + b"," * (2 * MAX_MARKS) + b'"', "x")
    check_num_marks(b'"' + b'\\"[{' * MAX_MARKS + b'"', "x")
    for many in (b"0,", b"[", b'""', b'{"a":1},'):
        with pytest.raises(Refused, match="more than 500000 values"):
            check_num_marks(many * (MAX_MARKS + 1), "x")


def cpu_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


@pytest.mark.parametrize("unit", ["{{a}}", "{{{{", "a\n{{ input : b }}", "{{{a}}}", "{ }} "])
def test_the_time_to_read_a_prompt_is_linear_in_its_length(unit: str) -> None:
    short, long = (min(cpu_s(partial(parse, unit * n, "f")) for _ in range(3)) for n in (4000, 32_000))
    assert long < 24 * short + 0.01  # the square would be 64 times


def test_circles_are_looked_for_once_in_calls_that_come_together() -> None:
    """Each variable that calls are made of is looked at once, not once for each call."""
    num_looks = 0

    class Counted(dict[str, tuple[str, ...]]):
        def get(self, *args: Any) -> Any:
            nonlocal num_looks
            num_looks += 1
            return super().get(*args)

    ledger = Ledger()
    ledger._made = Counted()
    ledger.note_calls([made_call(one) for one in dependent(300)])
    assert num_looks < 4 * 900


def made_call(body: dict[str, Any]) -> Any:
    from stretto.programs.fragment import WaitingCall
    from stretto.programs.function import Function
    from stretto.programs.outputs import Output

    reads, makes = (place["semantic_var_id"] for place in body["placeholders"])
    work = Function.of_prompt("call", body["prompt"], {"x": None}, {"y": Output()})
    return WaitingCall(work, {"x": reads}, {"y": makes}, {})


def test_sizes_are_judged_without_a_look_at_everything() -> None:
    assert not is_large(["a", 1, ["b"]])
    assert is_large("a" * 60_000)
    assert is_large([[["a"] * 10_000]])
    assert is_large({"a": list(range(10_000))})
