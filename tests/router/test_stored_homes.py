"""A request that names what one server keeps reaches that server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.plain_server import Answered, PlainServer, as_events, as_json, listing
from support.routing import Routing, routing, run

from stretto.cluster.placements.round_robin import RoundRobin
from stretto.router.config import RouterConfig
from stretto.router.messages import Refuse, RoutedRequest, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.stored_ids import StoredIds
from stretto.router.stored_names import MadeId, id_in_path, id_named
from stretto.router.worker_config import WorkerConfig


class KeepingServer(PlainServer):
    """A server that keeps responses, files and conversations, and knows no other's."""

    def __init__(self, name: str) -> None:
        super().__init__(self.answer)
        self.name = name
        self.kept: set[str] = set()

    def answer(self, what: str, body: Mapping[str, Any]) -> Answered:
        method, _, target = what.partition(" ")
        path = target.partition("?")[0]
        if path == "/v1/models":
            return listing("m")
        if path in ("/health", "/metrics"):
            return as_json({}, 200 if path == "/health" else 404)
        named = id_in_path(path) or body.get("previous_response_id", "")
        if named and named not in self.kept:
            return as_json({"error": {"message": f"no {named}", "code": 404}}, 404)
        if method == "POST" and path in ("/v1/responses", "/v1/files", "/v1/conversations"):
            made = f"{path[4:8]}_{self.name}_{len(self.kept)}"
            self.kept.add(made)
            if body.get("stream"):
                created = {"type": "response.created", "response": {"id": made, "status": "queued"}}
                return as_events(created, {"type": "response.output_text.delta", "delta": "x"})
            return as_json({"id": made, "server": self.name})
        return as_json({"id": named, "server": self.name})


@asynccontextmanager
async def keeping(num: int = 3, **settings: Any) -> AsyncIterator[tuple[Routing, list[KeepingServer]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(KeepingServer(f"s{i}")) for i in range(num)]
        urls = tuple(server.url for server in servers)
        at = await stack.enter_async_context(routing(urls=urls, placement="round_robin", **settings))
        yield at, servers


async def post(at: Routing, path: str, **body: Any) -> Any:
    return await at.client.post(path, content=json.dumps(body))


def test_what_is_named_is_found_at_its_worker() -> None:
    async def main() -> None:
        async with keeping() as (at, servers):
            for number in range(4):
                reply = (await post(at, "/v1/responses", model="m", input="Hello")).json()
                name = reply["id"]
                asked = [
                    await at.client.get(f"/v1/responses/{name}"),
                    await at.client.get(f"/v1/responses/{name}/input_items"),
                    await at.client.post(f"/v1/responses/{name}/cancel"),
                    await post(at, "/v1/responses", model="m", previous_response_id=name, input=str(number)),
                    await at.client.delete(f"/v1/responses/{name}"),
                ]
                assert [one.json()["server"] for one in asked] == [reply["server"]] * 5
            assert all(server.asked for server in servers)

    run(main())


def test_files_and_conversations_are_found_too() -> None:
    async def main() -> None:
        async with keeping() as (at, _):
            for path in ("/v1/files", "/v1/conversations", "/v1/files"):
                made = (await post(at, path, purpose="x")).json()
                for more in ("", "/content", "/items"):
                    reply = await at.client.get(f"{path}/{made['id']}{more}")
                    assert reply.json()["server"] == made["server"]

    run(main())


def test_the_id_of_a_stream_is_known_before_its_end() -> None:
    async def main() -> None:
        async with keeping() as (at, servers):
            for _ in range(3):
                await post(at, "/v1/responses", model="m", input="Hello", stream=True)
            for server in servers:
                (name,) = server.kept
                assert (await at.client.get(f"/v1/responses/{name}")).json()["server"] == server.name
                assert sum(f"/v1/responses/{name}" in what for what, _ in server.asked) == 1

    run(main())


def test_what_is_unknown_is_asked_of_each_worker_once_and_then_known() -> None:
    async def main() -> None:
        async with keeping() as (at, servers):
            servers[2].kept.add("resp_old")
            for _ in range(2):
                reply = await at.client.get("/v1/responses/resp_old")
                assert (reply.status_code, reply.json()["server"]) == (200, "s2")
            num_asked = [sum("resp_old" in what for what, _ in server.asked) for server in servers]
            assert num_asked[2] == 2
            assert max(num_asked[:2]) <= 1
            servers[1].kept.add("resp_older")
            body = {"model": "m", "input": "x", "previous_response_id": "resp_older"}
            assert (await post(at, "/v1/responses", **body)).json()["server"] == "s1"
            missing = await at.client.get("/v1/responses/resp_no")
            assert (missing.status_code, missing.json()["error"]["message"]) == (404, "no resp_no")
            assert all(sum("resp_no" in what for what, _ in server.asked) == 1 for server in servers)

    run(main())


def test_what_a_worker_kept_is_refused_with_the_reason_when_it_is_gone() -> None:
    async def main() -> None:
        async with keeping() as (at, _):
            made = (await post(at, "/v1/responses", model="m", input="x")).json()["id"]
            worker = (await at.client.get(f"/v1/responses/{made}")).headers["x-stretto-worker"]
            await at.client.delete(f"/router/workers/{worker}")
            reply = await at.client.get(f"/v1/responses/{made}")
            error = reply.json()["error"]
            assert (reply.status_code, error["type"]) == (404, "NotFoundError")
            assert error["message"] == f"'{made}' is kept by worker {worker} alone, which is gone"
            follows = await post(at, "/v1/responses", model="m", previous_response_id=made, input="y")
            assert follows.status_code == 404

    run(main())


def test_a_worker_that_is_back_at_its_url_keeps_what_it_kept() -> None:
    async def main() -> None:
        async with keeping(2) as (at, servers):
            made = (await post(at, "/v1/responses", model="m", input="x")).json()
            worker = (await at.client.get(f"/v1/responses/{made['id']}")).headers["x-stretto-worker"]
            url = next(server.url for server in servers if server.name == made["server"])
            await at.client.delete(f"/router/workers/{worker}")
            await post(at, "/router/workers", url=url)
            reply = await at.client.get(f"/v1/responses/{made['id']}")
            assert (reply.status_code, reply.json()["server"]) == (200, made["server"])

    run(main())


def state_of(num: int, **settings: Any) -> RouterState:
    state = RouterState(RouterConfig(**settings), RoundRobin())
    for index in range(num):
        worker = state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=1)).id
        state.membership.check_passed(worker, {"m": {}}, None, 0.0)
    return state


def test_a_request_waits_for_its_worker_while_others_idle_and_lets_others_pass() -> None:
    state = state_of(2)
    first, _ = state.arrive(RoutedRequest(model="m", is_repeatable=False), 0.0)
    state.stored(first, "resp_1")
    named, actions = state.arrive(RoutedRequest(stored_id="resp_1"), 1.0)
    state.check_invariants()
    assert actions == []
    other, actions = state.arrive(RoutedRequest(model="m"), 2.0)
    assert [(one.ticket, one.worker) for one in actions if isinstance(one, Send)] == [(other, 1)]
    actions = state.answered(first, 200, WorkerUsage(), 3.0)
    assert [(one.ticket, one.worker) for one in actions if isinstance(one, Send)] == [(named, 0)]
    state.check_invariants()


def test_a_request_that_waits_for_its_worker_is_refused_when_that_leaves() -> None:
    state = state_of(2)
    first, _ = state.arrive(RoutedRequest(model="m"), 0.0)
    state.stored(first, "resp_1")
    named, _ = state.arrive(RoutedRequest(stored_id="resp_1"), 1.0)
    actions = state.membership.drain(0, 2.0)
    refused = [one for one in actions if isinstance(one, Refuse)]
    assert [(one.ticket, one.status) for one in refused] == [(named, 404)]
    assert "takes no more requests" in refused[0].message
    state.check_invariants()


def test_another_clients_id_leads_nowhere() -> None:
    state = state_of(2)
    first, _ = state.arrive(RoutedRequest(model="m", client_key="a"), 0.0)
    state.stored(first, "resp_1")
    _, actions = state.arrive(RoutedRequest(stored_id="resp_1", client_key="b"), 1.0)
    assert [one.worker for one in actions if isinstance(one, Send)] == [1]


def test_a_client_that_stores_very_much_loses_its_own() -> None:
    ids = StoredIds(100)
    for number in range(20):
        ids.learn("small", f"s{number}", 1)
    for number in range(1000):
        ids.learn("large", f"l{number}", 2)
        ids.check_invariants()
    assert len(ids) == 100
    assert all(ids.find("small", f"s{number}") == 1 for number in range(20))
    assert ids.find("large", "l999") == 2
    assert ids.find("large", "l0") is None
    assert ids.find("small", "l999") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/responses", ""),
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/input_items", "resp_1"),
        ("/v1/responses/input_tokens", ""),
        ("/v1/files/file-a/content", "file-a"),
        ("/v1/chat/completions", ""),
        ("/v1/chat/completions/chatcmpl-1", "chatcmpl-1"),
        ("/v1/models/files/x", ""),
    ],
)
def test_paths_name_what_is_kept(path: str, expected: str) -> None:
    assert id_in_path(path) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "resp_1"),
        ({"conversation": {"id": "conv_1"}}, "conv_1"),
        ({"input_file_id": "file-1"}, "file-1"),
        ({"previous_response_id": None, "conversation": 3}, ""),
        ({"input": [{"content": [{"type": "input_file", "file_id": "file-2"}]}]}, "file-2"),
        ({"input": 'the text "file_id": "file-3" names nothing'}, ""),
    ],
)
def test_fields_name_what_is_kept(fields: dict[str, Any], expected: str) -> None:
    assert id_named("/v1/responses", fields, json.dumps(fields).encode()) == expected


def test_ids_of_answers_are_read_wherever_they_stand() -> None:
    assert MadeId().whole(b' { "id" : "resp_1", "x": "' + b"y" * 100_000 + b'"}') == "resp_1"
    assert MadeId().whole(b'{"object": "file", "id": "file-1"}') == "file-1"
    assert MadeId().whole(b"[1]") == MadeId().whole(b"no JSON") == ""
    made = MadeId()
    assert made.feed(b": a comment\n\n") == ""
    assert made.feed(b'data: {"type":"response.created","response":{"id":"resp_2"}}\n\n') == "resp_2"
    assert not made.is_wanted


def made_by(state: RouterState, tenant: str, name: str) -> None:
    ticket, _ = state.arrive(RoutedRequest(model="m", tenant=tenant, is_repeatable=False), 0.0)
    state.stored(ticket, name)
    state.answered(ticket, 200, WorkerUsage(), 1.0)


def two_tenants_state() -> RouterState:
    state = RouterState(RouterConfig(), RoundRobin())
    for index in range(2):
        state.membership.check_passed(
            state.membership.add(WorkerConfig(url=f"http://w{index}")).id, {"m": {}}, None, 0.0
        )
    made_by(state, "one", "resp_1")
    return state


def test_what_another_tenant_has_made_is_asked_of_no_worker() -> None:
    """All tenants of a service have one key at the workers, which would answer any of them."""
    state = two_tenants_state()
    for tenant, expected in (("two", Refuse), ("one", Send)):
        _, (action,) = state.arrive(RoutedRequest(tenant=tenant, stored_id="resp_1"), 2.0)
        assert isinstance(action, expected)
        if isinstance(action, Refuse):
            assert (action.status, action.message) == (404, "no worker keeps 'resp_1'")
    state.check_invariants()


def test_a_tenant_that_names_an_unknown_id_first_does_not_own_it() -> None:
    state = two_tenants_state()
    for tenant in ("two", "one"):
        ticket, (action,) = state.arrive(RoutedRequest(tenant=tenant, stored_id="resp_of_before"), 2.0)
        assert isinstance(action, Send)
        state.answered(ticket, 200, WorkerUsage(), 3.0)
    state.check_invariants()


def test_clients_with_keys_of_their_own_are_told_apart_by_the_worker() -> None:
    state = two_tenants_state()
    _, (action,) = state.arrive(RoutedRequest(client_key="k", stored_id="resp_1"), 2.0)
    assert isinstance(action, Send)


def test_makers_are_forgotten_with_their_ids() -> None:
    ids = StoredIds(2)
    for number in range(5):
        ids.learn("one", f"id{number}", 0, is_made=True)
        ids.check_invariants()
    assert [ids.is_of_another("two", f"id{number}") for number in range(5)] == [False] * 3 + [True] * 2
    ids.learn("two", "id4", 0)
    assert ids.is_of_another("two", "id4")
