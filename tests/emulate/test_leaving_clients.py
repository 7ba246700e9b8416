"""Clients that leave harm no other."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from threading import Thread

import httpx
import pytest
from support.emulated import emulating

from stretto.costs.known_costs import batch_device
from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.fleet import check_fleet
from stretto.emulate.lag import LagMeter
from stretto.emulate.wanted import WantedFleet, WantedServer

ASK = {"prompt": "Every house has a kitchen.", "max_tokens": 50, "ignore_eos": True}


def test_a_client_that_leaves_with_two_requests_under_way_stops_no_other() -> None:
    """The server hears only at the second request that the client has left; the first is being answered."""
    body = json.dumps({**ASK, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with emulating() as (url,):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=100) as client:
            client.sendall((head + body) * 2)
            assert client.recv(10).startswith(b"HTTP/1.1")
        answer = httpx.post(f"{url}/v1/completions", json=ASK, timeout=100).json()
        assert answer["usage"]["completion_tokens"] == 50


def test_a_text_whose_client_leaves_before_its_batch_begins_waits_no_longer() -> None:
    server = WantedServer(devices=(0,), kind="embedding", port=0)
    fleet = check_fleet(WantedFleet(("RTX-3090",), (server,), speed=0.001))
    with emulating(fleet) as (url,):

        def num_of(kind: str) -> float:
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            (line,) = [line for line in lines if line.startswith(f"vllm:num_requests_{kind}{{")]
            return float(line.split()[-1])

        def embed(patience_s: float) -> None:
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{url}/v1/embeddings", json={"input": "A kitchen."}, timeout=patience_s)

        first = Thread(target=embed, args=(4.0,))
        first.start()
        deadline_s = time.monotonic() + 100
        while num_of("running") != 1:
            assert time.monotonic() < deadline_s
        second = Thread(target=embed, args=(1.0,))
        second.start()
        while num_of("waiting") != 1:
            assert time.monotonic() < deadline_s
        second.join()
        while num_of("waiting") != 0:
            assert time.monotonic() < deadline_s
        first.join()


def test_a_batch_has_no_requests_that_were_cancelled() -> None:
    profile = batch_device("RTX-3090", "embedding").engines["embedding"]

    async def run() -> float:
        clock = EmulatedClock(speed=10.0)
        replica = EmulatedBatches(profile, clock, LagMeter())
        first = replica.submit(128)
        begun_s = clock.now_s
        second, third = replica.submit(128), replica.submit(1)
        second.cancel()
        assert await first
        assert await third
        clock.close()
        return clock.now_s - begun_s

    assert asyncio.run(run()) == pytest.approx(profile.batch_s(128) + profile.batch_s(1))
