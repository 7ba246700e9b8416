"""The live page and the explanations: for the admin alone, the same at a router and at a service."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from support.routing import Routing, routing, run, until

from stretto.cli.program_time import print_program_time
from stretto.http.admin import AdminKey
from stretto.model.errors import ConfigError, UserError

PATHS = (
    *("/", "/admin/live", "/admin/programs", "/admin/program?program=1"),
    *("/admin/prompts", "/admin/traffic"),
)
LOCAL = [(b"host", b"127.0.0.1:8700")]


async def first_event(at: Routing) -> dict[str, Any]:
    """Return what the live page gets first."""
    async with at.client.stream("GET", "/admin/live") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                return dict(json.loads(line.removeprefix("data: ")))
    raise AssertionError("no event")


def test_the_page_asks_for_nothing_elsewhere() -> None:
    page = files("stretto.operate").joinpath("live_page.html").read_text("utf-8")
    assert not re.search(r"(?:https?:)?//[\w.]+\.\w+", page)
    assert not re.search(r"\b(?:src|href)=\"(?!data:,)", page)
    assert "innerHTML" not in page, "what clients name is shown as text alone"


def test_the_page_shows_workers_programs_and_tenants() -> None:
    async def main() -> None:
        async with routing("well", "well") as at:
            reply = await at.ask(prompt="A first turn. " * 30)
            program = reply.headers["x-stretto-program"].partition(";")[0]
            shown = await first_event(at)
            states = [(one["name"], one["state"]) for one in shown["workers"]]
            assert states == [(server.url, "serving") for server in at.servers]
            (row,) = shown["programs"]
            assert (row["program"], row["state"], row["requests"]) == (program, "silent", 1)
            assert row["wall_s"] == pytest.approx(sum(row["path"].values()), abs=1e-4)
            assert [one["program"] for one in shown["slowest"]] == [program]
            (tenant,) = shown["tenants"]
            assert (tenant["requests"], tenant["prompt"], tenant["cached"]) == (1, 90, 32)
            page = await at.client.get("/")
            assert page.text.startswith("<!doctype html>")
            assert "default-src 'none'" in page.headers["content-security-policy"]
            (explained,) = (await at.client.get(f"/admin/program?program={program}")).json()
            (request,) = explained["last_requests"]
            assert (request["critical"], request["status"]) == (True, 200)
            assert (await at.client.get("/admin/program?program=none")).status_code == 404
            assert await at.total("stretto_programs", state="silent") == 1

    run(main())


def test_the_head_of_the_events_is_asked_for_alone() -> None:
    async def main() -> None:
        async with routing("well") as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.router.port)
            writer.write(b"HEAD /admin/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert (head[:12], b"text/event-stream" in head, body) == (b"HTTP/1.1 200", True, b"")
            writer.close()

    run(main())


def test_a_program_that_runs_is_shown_with_its_worker() -> None:
    async def main() -> None:
        asked = {"prompt": "x", "stream": True}
        async with routing("waits") as at, at.client.stream("POST", "/v1/completions", json=asked):
            shown = await first_event(at)
            (row,) = shown["programs"]
            assert (row["state"], row["worker"]) == ("running", at.servers[0].url)
            at.servers[0].go_on.set()

    run(main())


def test_only_the_admin_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", "k")

    async def main() -> None:
        async with routing("well", admin_key_env="TEST_ADMIN_KEY") as at:
            for path in PATHS:
                for headers in (
                    {"authorization": "Bearer no"},
                    {"host": "evil.example"},
                    {"origin": "http://e"},
                ):
                    refused = await at.client.get(path, headers=headers)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"].startswith("Basic")
            for headers in ({"authorization": "Bearer k"}, {"authorization": "Basic YTpr"}):
                assert (await at.client.get("/admin/programs", headers=headers)).json() == []

    run(main())


def test_who_is_an_admin() -> None:
    anybody = AdminKey(None)
    assert anybody.admits(LOCAL, is_local=True)
    assert anybody.admits([(b"host", b"localhost")], is_local=True)
    assert anybody.admits([(b"host", b"[::1]:80")], is_local=True)
    assert not anybody.admits(LOCAL, is_local=False)
    assert not anybody.admits([(b"host", b"rebound.example:8700")], is_local=True)
    for name in (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip"):
        assert not anybody.admits([*LOCAL, (name, b"1.2.3.4")], is_local=True)
    assert not anybody.admits([], is_local=True)
    assert not anybody.admits([(b"authorization", b"Bearer ")], is_local=False)
    for name in (b"x-forwarded-for", b"forwarded", b"x-real-ip", b"via", b"origin"):
        assert not anybody.admits([*LOCAL, (name, b"8.8.8.8")], is_local=True)


def test_a_server_with_a_key_wants_it_from_this_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy beside it that rewrites the name makes everybody look like a client on this machine."""
    monkeypatch.setenv("TEST_ADMIN_KEY", "k")
    keyed = AdminKey("TEST_ADMIN_KEY")
    assert not keyed.admits(LOCAL, is_local=True)
    assert keyed.admits([(b"authorization", b"Bearer k")], is_local=False)


def test_the_workers_are_for_the_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", "k")
    paths = ("/router/workers", "/router/waiting")

    async def main() -> None:
        async with routing("well") as at:
            for path in paths:
                assert (await at.client.get(path)).status_code == 200
                for headers in ({"host": "rebound.example"}, {"x-forwarded-for": "8.8.8.8"}):
                    assert (await at.client.get(path, headers=headers)).status_code == 403
            added = await at.client.post(paths[0], json={"url": "http://e"}, headers={"via": "1.1 proxy"})
            assert (added.status_code, len(at.router_state.view.workers())) == (403, 1)
        async with routing("well", admin_key_env="TEST_ADMIN_KEY") as at:
            for path in paths:
                assert (await at.client.get(path)).status_code == 403
                keyed = await at.client.get(path, headers={"authorization": "Bearer k"})
                assert keyed.status_code == 200

    run(main())


def test_an_admin_key_that_is_not_there_is_no_empty_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", " ")
    with pytest.raises(ConfigError, match="TEST_ADMIN_KEY"):
        AdminKey("TEST_ADMIN_KEY")


def test_a_stream_of_events_ends_with_its_client_and_with_the_server() -> None:
    async def main() -> None:
        async with routing("well") as at:
            await first_event(at)
            await until(lambda: not any(one._served for one in at.router.door.server.connections))
            async with at.client.stream("GET", "/admin/live") as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                at.router.door.server.stop_listening()
                assert [line async for line in lines if line.startswith("event:")] == []

    run(main())


def test_the_command_says_where_the_time_went(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with routing("well") as at:
            program = (await at.ask(prompt="x " * 200)).headers["x-stretto-program"].partition(";")[0]
            url = at.router.url
            await asyncio.to_thread(print_program_time, program, url, None, as_json=False)
            assert f"program {program}: " in capsys.readouterr().out
            await asyncio.to_thread(print_program_time, None, url, None, as_json=True)
            assert json.loads(capsys.readouterr().out)[0]["program"] == program
            with pytest.raises(UserError, match="there is no program 'zzz'"):
                await asyncio.to_thread(print_program_time, "zzz", url, None, as_json=False)

    run(main())
    with pytest.raises(UserError, match="--url"):
        print_program_time("1", None, None, as_json=False)
