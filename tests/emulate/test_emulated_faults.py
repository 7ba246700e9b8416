"""Faults of emulated servers, requested over HTTP: what clients see, and that it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.connectionless import ask_directly
from support.emulated import emulating, fleet_of, running_servers
from support.virtual_loop import in_virtual_time

from stretto.emulate.app import EmulatedApp
from stretto.emulate.fault_runner import FaultRunner
from stretto.emulate.faults import FaultKind, ServerFault, parse_fault
from stretto.emulate.gate import Gate
from stretto.model.errors import ConfigError

ASK = {"prompt": "Every house has a kitchen.", "max_tokens": 2, "ignore_eos": True}
FAULTS = "/emulator/faults"


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def ask(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/v1/completions", json={**ASK, **more})


def answers(client: httpx.Client) -> bool:
    try:
        return ask(client).status_code == 200
    except httpx.TransportError:
        return False


def seconds_of(client: httpx.Client) -> float:
    """Emulated seconds of all requests so far."""
    (line,) = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("vllm:e2e_request_latency_seconds_sum")
    ]
    return float(line.split()[-1])


def test_a_slow_server_takes_longer_until_the_fault_is_dropped() -> None:
    with emulating() as (url,), httpx.Client(base_url=url) as client:
        ask(client, prompt="first")
        usual_s = seconds_of(client)
        assert client.post(FAULTS, json={"kind": "slow", "factor": 8}).json() == {
            "kind": "slow",
            "factor": 8.0,
        }
        wait_for(lambda: client.get(FAULTS).json()["faults"] != [])
        ask(client, prompt="secnd")
        slow_s = seconds_of(client) - usual_s
        assert slow_s == pytest.approx(8 * usual_s)
        client.delete(FAULTS)
        ask(client, prompt="third")
        assert seconds_of(client) - slow_s - usual_s == pytest.approx(usual_s)


def test_a_server_that_hangs_answers_when_the_fault_ends() -> None:
    with emulating() as (url,), httpx.Client(base_url=url) as client:
        client.post(FAULTS, json={"kind": "hang"})
        wait_for(lambda: client.get(FAULTS).json()["faults"] != [])
        for path in ("/health", "/v1/models"):
            with pytest.raises(httpx.ReadTimeout):
                client.get(path, timeout=0.3)
        client.delete(FAULTS)
        assert client.get("/health").status_code == 200


def test_a_server_that_refuses_says_when_to_come_back() -> None:
    with emulating() as (url,), httpx.Client(base_url=url) as client:
        client.post(FAULTS, json={"kind": "refuse"})
        wait_for(lambda: not answers(client))
        refused = ask(client)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        client.delete(FAULTS)
        assert answers(client)
        client.post(FAULTS, json={"kind": "refuse", "for_s": 0.05})
        wait_for(lambda: answers(client) and client.get(FAULTS).json()["faults"] == [])


def test_a_server_that_dies_breaks_its_streams_and_refuses_connections() -> None:
    with emulating(fleet_of(2)) as (url, other), httpx.Client(base_url=url) as client:
        with client.stream(
            "POST", "/v1/completions", json={**ASK, "max_tokens": 2000, "stream": True}
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            httpx.post(f"{url}{FAULTS}", json={"kind": "die"})
            with pytest.raises(httpx.TransportError):
                list(lines)
        with pytest.raises(httpx.ConnectError):
            ask(client)
        assert httpx.get(f"{other}/health").status_code == 200


def test_a_restarted_server_has_an_empty_cache() -> None:
    prompt = "Every kitchen has a table. " * 20
    with emulating() as (url,), httpx.Client(base_url=url) as client:

        def num_cached() -> int:
            usage = ask(client, prompt=prompt).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        def is_empty() -> bool:
            try:
                return num_cached() == 0
            except httpx.TransportError:
                return False

        num_cached()
        assert not is_empty()
        client.post(FAULTS, json={"kind": "restart", "for_s": 0.1})
        wait_for(is_empty)


@pytest.mark.parametrize(
    "body",
    [{}, {"kind": "explode"}, {"kind": "slow", "factor": 0}, {"kind": "slow", "speed": 1}, {"kind": 5}],
)
def test_a_fault_that_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    with emulating() as (url,):
        assert httpx.post(f"{url}{FAULTS}", json=body).status_code == 400


def test_a_fault_may_be_given_as_an_option() -> None:
    assert parse_fault("replica=2,kind=slow,factor=5,after_s=10") == (
        2,
        ServerFault("slow", 10.0, factor=5.0),
    )
    with emulating(fleet_of(faults=((0, ServerFault("refuse")),))) as (url,):
        wait_for(lambda: httpx.get(f"{url}/health").status_code == 503)


@pytest.mark.parametrize(
    "option",
    [
        "slow",
        "kind=slow,factor=x",
        "kind=slow,factor=1e300",
        "replica=-1,kind=slow",
        "replica=inf,kind=slow",
        "kind=none",
        "kind=slow,x=1",
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="--fault"):
        parse_fault(option)


class _Failing:
    """What faults happen to; it remembers its speed."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.events = (0.0, 0.0)
        self.num_deaths = 0

    def slow_down(self, factor: float) -> None:
        self.factor = factor

    def die(self, *, for_good: bool) -> None:
        self.num_deaths += 1

    async def load(self) -> None:
        await asyncio.sleep(5.0)

    def disturb_events(self, delay_s: float, lost_share: float) -> None:
        self.events = delay_s, lost_share


@in_virtual_time
async def test_the_end_of_a_fault_leaves_another_of_its_kind() -> None:
    server, gate = _Failing(), Gate()
    faults = FaultRunner(server, gate)
    kinds: tuple[FaultKind, ...] = ("hang", "refuse")
    for kind in kinds:
        faults.request(ServerFault(kind, for_s=10.0))
        faults.request(ServerFault(kind, after_s=1.0, for_s=2.0))
    faults.request(ServerFault("slow", for_s=10.0, factor=5.0))
    faults.request(ServerFault("slow", after_s=1.0, for_s=2.0, factor=3.0))
    seen = []
    for _ in range(4):
        await asyncio.sleep(2.9)
        seen.append((gate.is_open, gate.refuses, server.factor))
    assert seen == [(False, True, 3.0), (False, True, 5.0), (False, True, 5.0), (True, False, 1.0)]


@in_virtual_time
async def test_events_may_be_late_and_lost_at_the_same_time() -> None:
    server = _Failing()
    faults = FaultRunner(server, Gate())
    faults.request(ServerFault("late_events", for_s=4.0, delay_s=0.5))
    faults.request(ServerFault("lost_events", after_s=2.0, for_s=4.0, share=0.25))
    seen = []
    for _ in range(4):
        await asyncio.sleep(1.9)
        seen.append(server.events)
    assert seen == [(0.5, 0.0), (0.5, 0.25), (0.0, 0.25), (0.0, 0.0)]


@in_virtual_time
async def test_dropping_the_faults_drops_restarts_to_come_and_not_one_under_way() -> None:
    server, gate = _Failing(), Gate()
    faults = FaultRunner(server, gate)
    app = EmulatedApp(faults.table, gate)
    faults.request(ServerFault("restart"))
    faults.request(ServerFault("restart", after_s=9.0))
    await asyncio.sleep(1.0)
    assert await ask_directly(app, "DELETE", FAULTS) == (200, {"faults": [{"kind": "restart"}]})
    await asyncio.sleep(20.0)
    assert await ask_directly(app, "GET", FAULTS) == (200, {"faults": []})
    assert server.num_deaths == 1


@pytest.mark.parametrize(
    ("faults", "is_up"),
    [
        ((ServerFault("die", after_s=0.1),), False),
        ((ServerFault("restart", after_s=0.1), ServerFault("restart", after_s=0.2)), True),
    ],
)
def test_a_server_that_dies_while_it_loads_does_not_come_up_by_that_loading(
    faults: tuple[ServerFault, ...], is_up: bool
) -> None:
    fleet = fleet_of(loading_s=0.5, faults=tuple((0, fault) for fault in faults))
    with running_servers(fleet) as servers:
        (url,) = servers.urls
        with httpx.Client(base_url=url) as client:
            until_s = time.monotonic() + (100 if is_up else 1.5)
            while not answers(client) and time.monotonic() < until_s:
                time.sleep(0.01)
            assert answers(client) == is_up
