"""When a query will need its prompts again: known from its graph, or learned from earlier turns."""

from __future__ import annotations

import sys
from itertools import count
from types import FrameType

import pytest
from support.machines import compiled, llm_engine, llm_request, serving

from stretto.cluster.placements.table import PLACEMENTS
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import Node
from stretto.graph.op_table import OPS
from stretto.graph.reuse import find_reuse
from stretto.graph.text import parse_graph
from stretto.model.errors import EngineUnavailable
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, Failed, QueryRecord
from stretto.model.values import Segment
from stretto.sched.actions import Retain
from stretto.sched.llm.reuse_forecasts import ReuseForecasts
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.request import StepRequest

ONE_SHOT = QueryRecord(arrival_s=0.0)
SECOND = Profile(base_s=1.0, per_unit_s=0.0, per_output_s=0.1)
REVIEW = """
graph review(%doc: text)
  %k1 = prefill([c"Read. ", %doc, c"Summary?"]) : kv @llm
  %a1 = decode(%k1) {max_tokens=10} : text @llm
  %k2 = prefill([c"Search. ", %a1]) : kv @llm
  %a2 = decode(%k2) {max_tokens=30} : text @llm
  %k3 = prefill([c"Read. ", %doc, c"Is it so? ", %a2]) : kv @llm
  %a3 = decode(%k3) {max_tokens=10} : text @llm
  %k4 = prefill([c"Read. ", %doc, c"Is it so? ", %a2, %a3, c"Sure?"]) : kv @llm
  %a4 = decode(%k4) {max_tokens=10} : text @llm
  return %a4
"""


def nodes(text: str) -> dict[str, Node]:
    return {node.name: node for node in compile_graph(parse_graph(text), {"llm": SECOND}).nodes}


def request(node: Node, *texts: str, query: str = "q", num: int = 1, **changes: object) -> StepRequest:
    """A request of `node`, in whose prompt the texts in capitals are constants."""
    prompt = tuple(Segment(text, None if text.isupper() else "v") for text in texts)
    options = {"record": ONE_SHOT, "decode": Decode(), **changes}
    return StepRequest(query, node, "answer", 0, num, {}, prompts=(prompt,) * num, **options)  # type: ignore[arg-type]


def uses(forecasts: ReuseForecasts, one: StepRequest, answer: object = "yes", at_s: float = 0.0) -> object:
    """Let a request arrive and end at `at_s`; return the forecast uses."""
    forecasts.arrived(one, at_s)
    reuse = forecasts.ended(one, one.prompts[0], answer, at_s)
    return None if reuse is None else reuse.uses


def test_a_later_request_of_the_graph_needs_the_common_beginning() -> None:
    """Between the first and the third request lie a prefill of 1 s and a decode of 3 s."""
    of = nodes(REVIEW)
    forecasts = ReuseForecasts()
    assert uses(forecasts, request(of["k1"], "READ", "doc", "SUMMARY?")) == (
        (2, pytest.approx(4.0)),
        (1, None),
    )
    assert uses(forecasts, request(of["k2"], "SEARCH", "yes")) == ((1, None),)
    third = request(of["k3"], "READ", "doc", "IS IT SO?", "no")
    assert uses(forecasts, third) == ((5, 0.0), (1, None)), "with its answer"
    assert uses(forecasts, request(of["k4"], "READ", "doc", "IS IT SO?", "no", "yes", "SURE?")) is None


def test_one_that_has_arrived_needs_it_at_once_and_one_that_ended_never() -> None:
    of = nodes(REVIEW)
    forecasts = ReuseForecasts()
    forecasts.arrived(request(of["k3"], "READ", "doc", "IS IT SO?", "no"), 0.0)
    forecasts.withdrawn("q", of["k4"].id)
    first = request(of["k1"], "READ", "doc", "SUMMARY?")
    assert uses(forecasts, first) == ((2, 0.0), (1, None))
    forecasts.withdrawn("q", of["k3"].id)
    assert uses(forecasts, first) == ((1, None),)


def side_by_side(num: int) -> str:
    """Many requests about one document."""
    lines = []
    for i in range(num):
        lines.append(f'%k{i} = prefill([c"Read. ", %doc, c"{i}"]) : kv @llm')
        lines.append(f"%a{i} = decode(%k{i}) {{max_tokens=10}} : text @llm")
    answers = ", ".join(f"%a{i}" for i in range(num))
    return "\n".join(["graph g(%doc: text)", *lines, f"return {answers}"])


def test_a_beginning_is_needed_until_the_last_of_many_requests_has_ended() -> None:
    num = 150
    of = nodes(side_by_side(num))
    forecasts = ReuseForecasts()
    asked = [request(of[f"k{i}"], "READ", "doc", str(i)) for i in range(num)]
    for one in asked:
        forecasts.arrived(one, 0.0)
    ended = [forecasts.ended(one, one.prompts[0], "yes", 1.0) for one in asked]
    assert all(reuse is not None and reuse.uses[0] == (2, 0.0) for reuse in ended[:-1])
    assert ended[-1] is None


def test_what_many_requests_share_is_found_in_linear_time() -> None:
    def num_calls(num: int) -> int:
        graph, count = parse_graph(side_by_side(num)), 0
        own_s = {primitive.name: 1.0 for primitive in graph}

        def note(frame: FrameType, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            find_reuse(graph, OPS, {2 * i + 1: 2 * i for i in range(num)}, own_s)
        finally:
            sys.setprofile(None)
        return count

    assert num_calls(400) < 5 * num_calls(100)


def test_items_of_one_step_share_what_comes_before_the_item() -> None:
    of = nodes(
        'graph m(%xs: list[text])\n%k0 = prefill([c"Other"]) : kv @llm\n%a0 = decode(%k0) : text @llm\n'
        '%ks = prefill([c"Read ", each %xs]) : list[kv] @llm\n%as = decode(each %ks) : list[text] @llm\n'
        "return %as, %a0"
    )
    forecasts = ReuseForecasts()
    two = request(of["ks"], "READ", "item", num=2, each=("xs",))
    forecasts.arrived(two, 0.0)
    first = forecasts.ended(two, two.prompts[0], "yes", 0.0)
    assert first is not None
    assert first.uses == ((1, 0.0), (1, None))
    last = forecasts.ended(two, two.prompts[1], "yes", 0.0)
    assert last is not None
    assert last.uses == ((1, None),)


TURN = compiled(
    'graph turn(%q: text)\n%k = prefill([c"Go", %q]) : kv @llm\n%a = decode(%k) : text @llm\nreturn %a'
)


def test_the_time_of_a_tool_is_learned() -> None:
    """A session asks, calls a tool, and goes on from there; the next one is expected to do the same."""
    forecasts = ReuseForecasts()
    node = TURN.nodes[0]
    session = QueryRecord()
    assert uses(forecasts, request(node, "GO", "why", "CALL", record=session), ["find: x"], 10.0) is None
    second = request(node, "GO", "why", "found", "CALL", record=session)
    assert uses(forecasts, second, ["open: x"], 13.0) is None, "another tool"
    third = request(node, "GO", "why", "found", "opened", "CALL", record=session)
    assert uses(forecasts, third, ["find: y"], 20.0) == ((4, 3.0), (5, None))
    forecasts.forget("q")
    other = request(node, "GO", "what", "CALL", query="r", record=session)
    assert uses(forecasts, other, ["open: z"], 30.0) == ((2, 7.0), (3, None))
    assert uses(ReuseForecasts(), other, ["open: z"], 30.0) is None


def test_common_constants_teach_nothing() -> None:
    forecasts = ReuseForecasts()
    session = QueryRecord()
    for at_s, text in enumerate(("one", "two", "three")):
        found = uses(forecasts, request(TURN.nodes[0], "GO", text, record=session), "yes", float(at_s))
        assert found is None


@pytest.mark.parametrize("keeps_state", [True, False])
def test_only_an_engine_that_keeps_state_is_told(keeps_state: bool) -> None:
    deployment = llm_engine(keeps_state=keeps_state)
    placement = PLACEMENTS[deployment.engine.placement]()
    scheduler = serving(LLMScheduler(deployment.engine, Profile(), placement, count()), deployment)
    first = request(nodes(REVIEW)["k1"], "READ", "doc", "SUMMARY?", units=(3,))
    scheduler.add(first, 0.0)
    (admit,) = scheduler.schedule(0.0)
    scheduler.report(0, Done(admit.task.id, "yes"), 1.0)  # type: ignore[union-attr]
    told = scheduler.schedule(1.0)
    assert [type(action) for action in told] == ([Retain] if keeps_state else [])
    scheduler.add(llm_request("q", "later", 10), 2.0)
    scheduler.end_query("q")
    assert not any(isinstance(action, Retain) for action in scheduler.schedule(2.0))


def test_a_request_that_fails_for_good_needs_nothing_again() -> None:
    """Nothing is kept for the third request after its last attempt."""
    told = {}
    for is_lost in (False, True):
        deployment = llm_engine(keeps_state=True, max_attempts=1)
        placement = PLACEMENTS[deployment.engine.placement]()
        scheduler = serving(LLMScheduler(deployment.engine, Profile(), placement, count()), deployment)
        of = nodes(REVIEW)
        for name, ending in (("k1", "SUMMARY?"), ("k3", "IS IT SO?"), ("k4", "SURE?")):
            scheduler.add(request(of[name], "READ", "doc", ending, units=(3,)), 0.0)
        tasks = [action.task.id for action in scheduler.schedule(0.0)]  # type: ignore[union-attr]
        scheduler.report(0, Done(tasks[2], "yes"), 0.5)
        if is_lost:
            scheduler.report(0, Failed(tasks[1], EngineUnavailable("gone")), 0.5)
        scheduler.report(0, Done(tasks[0], "yes"), 1.0)
        (*_, retain) = (action for action in scheduler.schedule(1.0) if isinstance(action, Retain))
        told[is_lost] = retain.reuse.uses
    assert told == {False: ((2, 0.0), (1, None)), True: ((1, None),)}


def test_nothing_is_expected_after_the_only_request_of_a_whole_graph() -> None:
    """Whatever was learned of other queries of this template does not count."""
    graph = "graph one(%q: text)\n  %k = prefill([%q]) : kv @llm\n  %a = decode(%k) : text @llm\n  return %a"
    node = nodes(graph)["k"]
    assert node.reuse is not None
    assert node.reuse.is_whole
    assert uses(ReuseForecasts(), request(node, "question"), "search: x") is None
