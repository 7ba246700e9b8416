"""Clients that leave harm no other."""

from __future__ import annotations

import json
import socket

import httpx
from support.emulated import emulating

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
