"""Long prompts and long lists that become ready together are begun in turns, so that others are served."""

from __future__ import annotations

from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.sched.actions import Release, Reply, Settled, WakeAt
from stretto.sched.messages import Close, Open, Provide, Wake, Want
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.results import Completed
from stretto.sched.queries.session import SessionMachine
from stretto.sched.queries.turn_work import MAX_PARTS, TurnWork
from stretto.sched.system import System

NUM_PARTS = 500


def long_prompts(number: int) -> ExecutionGraph:
    """A graph of calls with long prompts that all wait for one value."""
    prompt = ", ".join(['c"a"', "%x"] * (NUM_PARTS // 2))
    calls = [f"%kv{i} = prefill([{prompt}]) : kv @llm" for i in range(number)]
    answers = [f"%y{i} = decode(%kv{i}) {{max_tokens=9}} : text @llm" for i in range(number)]
    outputs = ", ".join(f"%y{i}" for i in range(number))
    return compiled("graph g(%x: any)", *calls, *answers, f"return {outputs}")


MAPPED = """
%kv = prefill([c"a", each %xs]) : list[kv] @llm
%ys = decode(each %kv) {max_tokens=9} : list[text] @llm
return %ys
"""


def compiled(*lines: str) -> ExecutionGraph:
    return compile_graph(parse_graph("\n".join(lines)), {})


def num_parts(outcome: Outcome) -> int:
    return sum(len(prompt) for request in outcome.work for prompt in request.prompts)


def turns(session: SessionMachine, turn: TurnWork, first: Outcome) -> list[Outcome]:
    """Return the outcomes of all turns that a session takes."""
    found = [first]
    while found[-1].is_paused:
        turn.renew()
        found.append(session.go_on())
    return found


def test_calls_that_wait_for_one_value_begin_in_turns() -> None:
    turn = TurnWork()
    session = SessionMachine("s", turn=turn)
    session.extend(long_prompts(100), {})
    found = turns(session, turn, session.provide("x", "b"))
    assert len(found) > 5
    assert all(0 < num_parts(outcome) <= MAX_PARTS + NUM_PARTS for outcome in found)
    assert [request.node.name for one in found for request in one.work] == [f"kv{i}" for i in range(100)]


def test_queries_share_the_work_of_one_instant() -> None:
    turn = TurnWork()
    sessions = [SessionMachine(f"s{i}", turn=turn) for i in range(5)]
    for session in sessions:
        session.extend(long_prompts(20), {})
    outcomes = [session.provide("x", "b") for session in sessions]
    assert sum(map(num_parts, outcomes)) <= MAX_PARTS + NUM_PARTS
    assert all(outcome.is_paused for outcome in outcomes)
    done = [turns(session, turn, first) for session, first in zip(sessions, outcomes, strict=True)]
    assert [sum(len(one.work) for one in found) for found in done] == [20] * 5


def test_usual_steps_begin_together() -> None:
    turn = TurnWork()
    session = SessionMachine("s", turn=turn)
    lines = [f"%y{i} = embed(%x) : any @e" for i in range(3000)]
    session.extend(compiled("graph g(%x: any)", *lines, "return %y0"), {})
    outcome = session.provide("x", "b")
    assert not outcome.is_paused
    assert len(outcome.work) == 3000


def test_the_items_of_a_long_list_begin_in_turns_and_keep_their_places() -> None:
    turn = TurnWork()
    session = SessionMachine("s", turn=turn)
    session.extend(compiled("graph g(%xs: list[text])", MAPPED), {})
    items = [str(n) for n in range(19_000)]
    found = turns(session, turn, session.provide("xs", items))
    assert all(sum(request.hi - request.lo for request in one.work) <= 2000 for one in found)
    spans = [(request.lo, request.hi) for one in found for request in one.work]
    assert [item for lo, hi in spans for item in range(lo, hi)] == list(range(19_000))
    assert all(hi - lo <= 200 for lo, hi in spans)
    values: dict[str, object] = {}
    for one in found:
        for request in one.work:
            results = [("kv", text.upper()) for text in items[request.lo : request.hi]]
            outcome = session.complete_all([Completed("s", request.node.id, request.lo, results)])
            values.update(outcome.settled)
    assert values["ys"] == items


def test_a_session_of_many_variables_ends_in_turns() -> None:
    """Its reply comes after all its variables, in their order; a small one does not wait for long."""
    system = System([])
    system.handle([Open("large"), Open("small")], 0.0)
    names = [f"v{n}" for n in range(10_000)]
    system.handle([Want("large", name) for name in names], 1.0)
    system.handle([Provide("large", "set", 1), Want("small", "v")], 1.0)
    turns = [system.handle([Close("large"), Close("small")], 2.0)]
    while any(isinstance(action, WakeAt) for action in turns[-1]):
        turns.append(system.handle([Wake()], 2.0))
    assert 2 < len(turns) < 10
    assert max(map(len, turns)) < 5000
    flat = [action for turn in turns for action in turn if not isinstance(action, WakeAt | Release)]
    settled = [action.name for action in flat if isinstance(action, Settled) and action.query == "large"]
    assert settled == names
    replies = [action.query for action in flat if isinstance(action, Reply)]
    assert replies == ["large", "small"]
    assert system.is_idle()
