"""Clients of a service: what they give is what clients of a runtime give, errors included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import MortalLLM, served

from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.model.deployment import deploy
from stretto.model.errors import (
    BadReply,
    ConfigError,
    DeadlineExceeded,
    EngineFailure,
    EngineUnavailable,
    QueryEnded,
    UserError,
)
from stretto.model.values import Chunk, Document, Failure, Hit, Mark, Section
from stretto.programs import http_calls
from stretto.programs.wire.values import value_from_wire, value_to_wire
from stretto.service.config import ServiceConfig, TenantConfig
from stretto.service.service import Service

CONFIG = ServiceConfig(port=0, max_wait_s=0.3, tenant=(TenantConfig(name="t", keys=("k",)),))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served([desk_llm(Desk()), transforms_engine()], CONFIG) as (service, _):
        yield service


@P.SemanticFunction
def echo(x: P.SemanticVariable) -> None:
    """[{{x}}] {{output:y}}"""


def connected(service: Service) -> P.Client:
    return P.Client(service.url, api_key="k")


def test_a_variable_may_be_set_late_and_given_up(service: Service) -> None:
    with connected(service) as client:
        late = P.SemanticVariable(name="late")
        said = echo(late)
        with pytest.raises(DeadlineExceeded, match=r"'y' has not come within 0\.05 s"):
            said.get(timeout_s=0.05)
        late.set("now")
        assert said.get("latency", timeout_s=float("inf")) == "<[now] >"
        assert said.get("latency") == "<[now] >"
        late.drop()
        assert echo("something else").get() == "<[something else] >"
        again = P.SemanticVariable("again", name="late")
        assert echo(again).get() == "<[again] >"
        with client.together():
            first = echo("1")
            second = echo(first)
        assert second.get(P.LATENCY, timeout_s=30) == "<[<[1] >] >"


def test_a_reader_without_a_timeout_outwaits_the_service(service: Service) -> None:
    async def program() -> None:
        async with connected(service):
            late = P.SemanticVariable()
            reading = asyncio.ensure_future(echo(late).aget())
            await asyncio.sleep(3 * CONFIG.max_wait_s)
            assert not reading.done()
            late.set("x")
            assert await reading == "<[x] >"

    asyncio.run(program())


def test_text_streams(service: Service) -> None:
    async def program() -> None:
        async with connected(service):
            said = echo("one two")
            assert "".join([piece async for piece in said]) == "<[one two] >"
            assert "".join([piece async for piece in said.stream("latency")]) == "<[one two] >"
            with pytest.raises(BadReply, match="step 'transform'"):
                _ = [piece async for piece in P.transform("no JSON", "json")]

    asyncio.run(program())


def test_errors_are_those_of_the_step(service: Service) -> None:
    with connected(service):
        parsed = P.transform("no JSON", "json")
        with pytest.raises(BadReply, match="step 'transform'"):
            echo(parsed).get()
        elsewhere = P.SemanticFunction(engine="elsewhere")(echo_docstring)
        failed = elsewhere("x")
        after = echo(failed)
        for variable in (failed, after):
            with pytest.raises(ConfigError, match="there is no engine 'elsewhere'"):
                variable.get()
        assert echo("others go on").get() == "<[others go on] >"


def echo_docstring(x: P.SemanticVariable) -> None:
    """{{x}} {{output:z}}"""


def test_native_functions_run_in_the_client(service: Service) -> None:
    @P.NativeFunction
    def shouted(text: str) -> str:
        return text.upper()

    @P.NativeFunction
    def broken(text: str) -> str:
        raise ValueError(text)

    with connected(service):
        assert echo(shouted(echo("a"))).get() == "<[<[A] >] >"
        with pytest.raises(EngineFailure, match="the function raised ValueError: x"):
            echo(broken("x")).get()


def test_operators_and_values_of_all_kinds(service: Service) -> None:
    with connected(service):
        many = echo.map(P.transform("a,b", 'split ","'))
        assert many.get() == ["<[a] >", "<[b] >"]
        branches = P.condition("yes", equals="yes")
        assert (
            P.first_present(echo("no", when=branches.no), echo("yes", when=branches.yes)).get() == "<[yes] >"
        )
        assert P.transform('{"a": [1, null], "$type": "x"}', "json").get() == {"a": [1, None], "$type": "x"}
        chunk = Chunk("s", 1, "text", page=3)
        assert P.gather(chunk, 1.5, True).get() == [chunk, 1.5, True]


def test_values_stand_for_themselves() -> None:
    chunk = Chunk("s", 1, "text", "title", None, "00", 2)
    marked = Chunk("s", 1, "text", "title", None, "00", 2, (Mark(1, "next"), Mark(3, None, 4)))
    document = Document("s", (Section("a"), Section("b", "t", 2)), "00", (3, 5))
    for value in (
        "x",
        1,
        1.5,
        False,
        None,
        ["a", [1]],
        chunk,
        marked,
        Hit(chunk, 0.5),
        document,
    ):
        assert value_from_wire(json.loads(json.dumps(value_to_wire(value)))) == value
    earlier = {"$type": "document", "source": "s", "sections": [["a"], ["b", "t", 2]], "sha256": "00"}
    assert value_from_wire(earlier) == replace(document, unread_pages=())
    assert value_from_wire({"$type": "chunk", "source": "s", "text": "t"}) == Chunk("s", 0, "t")
    for wrong in ([["1"]], [[1, 2]], [[1, None, "3"]], [3], 7):
        with pytest.raises(UserError, match="of another type"):
            value_from_wire({"$type": "chunk", "source": "s", "text": "t", "marks": wrong})
    error = BadReply("no", step="s")
    found = value_from_wire(value_to_wire(Failure(error)))
    assert type(found.error) is BadReply
    assert (found.error.message, found.error.step) == ("no", "s")
    with pytest.raises(UserError, match="a set has no form in JSON"):
        value_to_wire({1})


def test_a_wrong_key_or_url_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with P.Client(service.url, api_key="wrong"), pytest.raises(UserError, match="Authorization"):
        echo("x").get()
    with pytest.raises(UserError, match="a URL like http"):
        P.Client("ftp://x")
    unwritable = P.Client(service.url, api_key="k", deadline_s=float("inf"))
    with unwritable, pytest.raises(UserError, match="cannot be written as JSON"):
        echo("x").get()
    with pytest.raises(UserError, match="no option 'tenant'"):
        P.Client(service.url, tenant="x")
    monkeypatch.setattr(http_calls, "_FIRST_PAUSE_S", 0.001)
    with P.Client("http://127.0.0.1:1"), pytest.raises(EngineUnavailable, match="cannot be reached"):
        echo("x").get()


def test_the_first_calls_open_the_session(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = requests_of_clients(monkeypatch)
    before = len(service.sessions)
    with P.Client(service.url, api_key="k", objective="latency"):
        assert len(service.sessions) == before
        assert echo("x").get() == "<[x] >"
        assert len(service.sessions) == before + 1
    assert [path for path in sent if not path.startswith("/v1/sessions/")] == ["/v1/submit", "/v1/get"]
    assert len(service.sessions) == before
    sent.clear()
    with connected(service):
        pass
    assert sent == [], "a client that does nothing asks for nothing"


def test_a_session_that_is_left_while_it_is_opened_does_not_stay(service: Service) -> None:
    before = len(service.sessions)
    with connected(service):
        echo("x")
    assert len(service.sessions) == before


def test_first_calls_that_are_refused_end_no_session(service: Service) -> None:
    elsewhere = P.SemanticFunction(engine="elsewhere")(echo_docstring)
    with connected(service) as client:
        with client.together():
            failed, fine = elsewhere("x"), echo("y")
        with pytest.raises(ConfigError, match="there is no engine 'elsewhere'"):
            failed.get()
        assert fine.get() == "<[y] >"


def test_a_session_that_is_refused_fails_all_its_variables(service: Service) -> None:
    before = len(service.sessions)
    with P.Client(service.url, api_key="k", passes=("no_such_pass",)):
        for said in (echo("x"), echo("y")):
            with pytest.raises(UserError, match="no_such_pass"):
                said.get()
    assert len(service.sessions) == before


def requests_of_clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the paths of all requests of clients are added from now on."""
    request = httpx.AsyncClient.request
    sent: list[str] = []

    async def noting(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
        sent.append(path)
        return await request(client, method, path, **more)

    monkeypatch.setattr(httpx.AsyncClient, "request", noting)
    return sent


def test_what_is_sent_again_is_done_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.AsyncClient.request
    lost: list[str] = []

    async def losing(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
        """Lose the first answer to each kind of request."""
        answer = await request(client, method, path, **more)
        if path not in lost:
            lost.append(path)
            raise httpx.ReadError("lost")
        return answer

    monkeypatch.setattr(httpx.AsyncClient, "request", losing)
    monkeypatch.setattr(http_calls, "_FIRST_PAUSE_S", 0.001)
    before = len(service.sessions)
    with connected(service):
        assert echo("x").get() == "<[x] >"
        assert len(service.sessions) == before + 1
    assert lost[:2] == ["/v1/submit", "/v1/get"]


def test_the_end_of_a_session_ends_its_readers(service: Service) -> None:
    async def program() -> None:
        async with connected(service) as client:
            reading = asyncio.ensure_future(echo(P.SemanticVariable()).aget())
            session: Any = client._session
            async with asyncio.timeout(60):
                while not session.id:
                    await asyncio.sleep(0.005)
            (opened,) = (one for one in service.sessions._open.values() if one.id == session.id)
            await asyncio.to_thread(service.runtime.run_on_loop, lambda: service.sessions.close(opened))
            with pytest.raises((QueryEnded, UserError)):
                await reading

    asyncio.run(program())


def test_an_engine_that_is_killed_in_mid_generation_costs_a_retry(tmp_path: Path) -> None:
    mortal = deploy("llm", MortalLLM, tmp_path, contract="llm", runs_in="process")
    with served([mortal, transforms_engine()]) as (_, url), P.Client(url):
        assert echo("x").get(timeout_s=100) == "it lives"
    assert (tmp_path / "was killed").exists()


def test_clients_read_the_trusted_certificates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    create = httpx.create_ssl_context

    def counted(*args: Any, **options: Any) -> object:
        context = create(*args, **options)
        made.append(context)
        return context

    monkeypatch.setattr("httpx.create_ssl_context", counted)
    monkeypatch.setattr("httpx._transports.default.create_ssl_context", counted)
    http_calls._certificates.cache_clear()

    async def run() -> None:
        for _ in range(3):
            await http_calls.HttpCalls("http://127.0.0.1:1", "").close()

    asyncio.run(run())
    assert len(set(map(id, made))) == 1
