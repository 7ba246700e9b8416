"""The states of nodes: the table of moves is all there is."""

from __future__ import annotations

import pytest
from support.machines import compiled

from stretto.model.errors import InternalError
from stretto.sched.queries.node_state import TRANSITIONS, NodeState, NodeStates

(NODE,) = compiled("graph g(%x: text)\n%v = embed(%x) : vector @e\nreturn %v").nodes
WAYS: dict[NodeState, tuple[NodeState, ...]] = {
    "waiting": (),
    "open": ("open",),
    "flowing": ("open", "flowing"),
    "expanded": ("open", "expanded"),
    "ended": ("open", "ended"),
}


def waiting() -> NodeStates:
    states = NodeStates()
    states.add([NODE])
    return states


PAIRS = [(a, b) for a in TRANSITIONS for b in TRANSITIONS]


@pytest.mark.parametrize(("start", "to"), [pair for pair in PAIRS if pair[1] in TRANSITIONS[pair[0]]])
def test_a_move_in_the_table_is_made(start: NodeState, to: NodeState) -> None:
    states = waiting()
    for state in (*WAYS[start], to):
        states.move(NODE, state)
    assert states[0] == to


@pytest.mark.parametrize(("start", "to"), [pair for pair in PAIRS if pair[1] not in TRANSITIONS[pair[0]]])
def test_any_other_move_is_a_bug_that_names_the_node_and_both_states(start: NodeState, to: NodeState) -> None:
    states = waiting()
    for state in WAYS[start]:
        states.move(NODE, state)
    with pytest.raises(InternalError) as raised:
        states.move(NODE, to)
    assert str(raised.value) == f"step 'v': node 0 cannot go from {start} to {to}"
    assert states[0] == start


def test_every_state_leads_to_the_end() -> None:
    for state in TRANSITIONS:
        reached = {state}
        for _ in TRANSITIONS:
            reached |= {later for earlier in reached for later in TRANSITIONS[earlier]}
        assert "ended" in reached
    assert not TRANSITIONS["ended"]
