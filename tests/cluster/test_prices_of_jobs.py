"""What policy `stretto` counts for requests of jobs alone: shared context once, and the work of prefills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.cluster.placements.stretto import Stretto
from stretto.model.profile import Profile

GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.03, per_neighbour_s=0.001)
REQUEST = PlacementRequest(4000, 200, purpose=Purpose(job="answer"), shared_tokens={0: 3000})
NEIGHBOURS_S = 4 * 200 * 0.001 / 2
"""Delay by four neighbours, which are there for half of an answer in the mean."""
WORK_S = 0.75 * (0.005 + 1000 * 0.0001)


def terms(request: PlacementRequest, *, reads_shared_once: bool) -> Mapping[str, float]:
    """The terms at an instance that holds 3,000 tokens of a prompt and runs four requests, which share most
    of theirs.
    """
    view = InstanceView(
        0,
        replace(GPU, reads_shared_once=reads_shared_once),
        50_000,
        num_running=4,
        num_decoding=4,
        running_tokens=5000,
        repeated_tokens=9000,
        expected_output=100,
    )
    policy = Stretto()
    policy.prepare(request, [view], HeldTokens({}), 0.0)
    return dict(zip(policy.names, policy.terms(request, view, 3000, 0.0), strict=True))


def test_neighbours_cost_what_their_steps_read() -> None:
    """A prefill of 1,000 tokens delays each of the four by 0.1 s. Steps that read what is shared for each of
    them cost what those of other requests do.
    """
    once, each = (terms(REQUEST, reads_shared_once=flag) for flag in (True, False))
    plain = terms(replace(REQUEST, purpose=Purpose(), shared_tokens={}), reads_shared_once=True)
    assert [each[name] for name in ("slowdown_s", "decode_s")] == [plain["slowdown_s"], plain["decode_s"]]
    assert once["slowdown_s"] == pytest.approx(0.4 + NEIGHBOURS_S * 1200 / 4200), "its own 1,200 tokens"
    assert each["decode_s"] == pytest.approx(200 * 0.03 + NEIGHBOURS_S)
    assert once["decode_s"] == pytest.approx(200 * 0.03 + NEIGHBOURS_S * 5000 / 14_000)


def test_the_work_of_a_prefill_has_a_price() -> None:
    plain = replace(REQUEST, purpose=Purpose(), shared_tokens={})
    assert terms(REQUEST, reads_shared_once=True)["later_s"] == pytest.approx(WORK_S)
    assert terms(plain, reads_shared_once=True)["later_s"] == 0.0, "nothing was seen to come"


def test_a_request_adds_what_nothing_else_has() -> None:
    here, there = InstanceView(0, GPU, 4000), InstanceView(1, GPU, 4000)
    assert (REQUEST.new_tokens(here), REQUEST.new_tokens(there)) == (1200, 4200)
    for view in (here, there):
        view.num_running = view.num_decoding = 1
        view.running_tokens, view.expected_output = 2500, 100
    assert REQUEST.start_s(here, 0.0) == 0.0
    assert REQUEST.start_s(there, 0.0) == there.turn_s > 0.0


def test_prefills_that_go_out_together_share_their_steps() -> None:
    """Two run and three wait; what a step takes anyway, 5 ms, counts once."""
    view = InstanceView(1, GPU, 50_000, num_running=2, prefill_s=0.2, num_waiting=3, waiting_prefill_s=0.3)
    view.waiting_s = 9.0
    assert REQUEST.start_s(view, 0.0) == pytest.approx(0.5 - 4 * 0.005)
