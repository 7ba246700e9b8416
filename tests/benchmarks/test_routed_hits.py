"""A real router in the replay of hits: it decides, and the replay counts."""

from __future__ import annotations

import sys

import pytest

from benchmarks.placement.hit_replay import replay_hits
from benchmarks.placement.hits import HitScene
from benchmarks.placement.machines import machine
from benchmarks.placement.routed import routed
from benchmarks.router.contestants import Contestant, ours
from stretto.cluster.placements.table import PLACEMENTS

SCENE = HitScene("20 tools", "toolbench", 60, 24.0, 20, 20_000)
REFUSING = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.send_error(503)

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_router_makes_of_a_replay_what_its_policy_makes_of_it() -> None:
    requests, profile = SCENE.requests(3, None), machine("A6000").profile
    with routed(ours("round_robin"), 3, SCENE.texts(3, None)) as policy:
        found = replay_hits(requests, policy, profile, 3, SCENE.cache_tokens)
    assert found == replay_hits(requests, PLACEMENTS["round_robin"](), profile, 3, SCENE.cache_tokens)


def test_a_router_that_refuses_a_request_ends_the_replay() -> None:
    refusing = Contestant("refusing", lambda urls, port, other: [sys.executable, "-c", REFUSING, str(port)])
    requests = SCENE.requests(3, None)
    with (
        routed(refusing, 1, SCENE.texts(3, None)) as policy,
        pytest.raises(RuntimeError, match="refused a request: status 503"),
    ):
        replay_hits(requests, policy, machine("A6000").profile, 1, SCENE.cache_tokens)
