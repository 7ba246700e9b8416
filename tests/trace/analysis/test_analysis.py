"""The analysis of programs: the paper's figures as golden texts, and the rules by search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from textwrap import dedent

from hypothesis import given
from hypothesis import strategies as st

from stretto.graph.graph import Constant, Slot
from stretto.graph.text import parse_graph
from stretto.model.tasks import Objective
from stretto.trace.analysis.objectives import Preference, deduce_preferences
from stretto.trace.analysis.prefix_hashes import prefix_hashes
from stretto.trace.analysis.requests import AnalysedRequest, RequestGraph
from stretto.trace.analysis.text import print_analysis


def graph_of(text: str) -> RequestGraph:
    return RequestGraph.of(parse_graph(dedent(text)))


def shown(graph: RequestGraph, wanted: Mapping[str, Objective], **seconds: float) -> list[str]:
    return print_analysis(graph, deduce_preferences(graph, wanted, seconds)).splitlines()


def call(name: str, *reads: str) -> str:
    """Two lines of a graph: a request that reads variables after a constant of its own."""
    slots = "".join(f", %{one}" for one in reads)
    return f"""
      %{name}_kv = prefill([c"{name.rstrip("0123456789")}: "{slots}]) : kv @llm
      %{name} = decode(%{name}_kv) {{max_tokens=8}} : text @llm"""


def program(*lines: str, inputs: str, outputs: str) -> RequestGraph:
    body = "".join(line if line.startswith("\n") else f"\n      {line}" for line in lines)
    given = ", ".join(f"%{name}: text" for name in inputs.split())
    returned = ", ".join(f"%{name}" for name in outputs.split())
    return graph_of(f"""
    graph program({given}){body}
      return {returned}
    """)


FIGURE_8 = graph_of(
    """
    graph snake_game(%task: text)
      %code_kv = prefill([c"You write python code of ", %task, c". Code: "]) : kv @llm
      %code = decode(%code_kv) {max_tokens=128} : text @llm
      %test_kv = prefill([c"You write test code for ", %task, c" Code: ", %code, c" Test: "]) : kv @llm
      %test = decode(%test_kv) {max_tokens=128} : text @llm
      return %code, %test
    """
)  # fmt: skip


def test_figure_8() -> None:
    """The graph of the program of Figure 7, its producers and consumers, and two and three prefixes."""
    assert shown(FIGURE_8, {"code": "latency", "test": "latency"}) == [
        "code(task) -> code | latency, slack 0 s | before task -, code -",
        "test(task, code) -> test | latency, slack 0 s | before task -, code -, test -",
    ]
    producer = FIGURE_8.producer("code")
    assert producer is not None
    assert producer.name == "code"
    assert [request.name for request in FIGURE_8.consumers("code")] == ["test"]
    assert [request.name for request in FIGURE_8.consumers("task")] == ["code", "test"]
    assert FIGURE_8.producer("task") is None
    assert FIGURE_8.consumers("test") == ()


MAP_REDUCE = program(
    *(call(f"map{n}", f"chunk{n}") for n in range(1, 4)),
    '%all = aggregate(map1=%map1, map2=%map2, map3=%map3) {join="\\n"} : text',
    call("reduce", "all"),
    inputs="chunk1 chunk2 chunk3",
    outputs="reduce",
)


def test_figure_4() -> None:
    """Maps are batched for throughput although the summary is wanted for latency."""
    assert shown(MAP_REDUCE, {"reduce": "latency"}, map2=3) == [
        "map1(chunk1) -> map1 | latency, task group 0 for throughput, slack 2 s | before chunk1 #1, map1 -",
        "map2(chunk2) -> map2 | latency, task group 0 for throughput, slack 0 s | before chunk2 #1, map2 -",
        "map3(chunk3) -> map3 | latency, task group 0 for throughput, slack 2 s | before chunk3 #1, map3 -",
        "reduce(all) -> reduce | latency, slack 0 s | before all -, reduce -",
    ]
    assert {one.batching for one in deduce_preferences(MAP_REDUCE, {"reduce": "throughput"}).values()} == {
        "throughput"
    }
    assert {one.criteria for one in deduce_preferences(MAP_REDUCE, {}).values()} == {None}


FIGURE_9 = program(
    *(call(f"c{n}", "x") for n in (1, 2)),
    *(call(f"b{n}", "c1", "c2") for n in (1, 2, 3)),
    call("a3", "b1", "b2", "b3"),
    call("a1", "a3"),
    call("a2", "a3"),
    inputs="x",
    outputs="a1 a2",
)


def test_figure_9() -> None:
    """Two wanted values: their requests and the one before are latency-sensitive, the two stages before that
    are task groups.
    """
    found = deduce_preferences(FIGURE_9, {"a1": "latency", "a2": "latency"})
    assert {name: (one.stage, one.group, one.batching) for name, one in found.items()} == {
        "a1": (0, None, "latency"),
        "a2": (0, None, "latency"),
        "a3": (1, None, "latency"),
        "b1": (2, 1, "throughput"),
        "b2": (2, 1, "throughput"),
        "b3": (2, 1, "throughput"),
        "c1": (3, 0, "throughput"),
        "c2": (3, 0, "throughput"),
    }


def test_requests_that_are_joined_for_the_application_are_a_group() -> None:
    graph = program(
        *(call(f"r{n}", "x") for n in (1, 2)),
        "%all = aggregate(r1=%r1, r2=%r2) : list[text]",
        inputs="x",
        outputs="all",
    )
    found = deduce_preferences(graph, {"all": "latency"})
    assert [found[name].group for name in ("r1", "r2")] == [0, 0]


def test_jobs_that_have_nothing_in_common_are_no_group() -> None:
    graph = program(
        *(call(f"a{n}", "x") for n in (1, 2)), call("a", "a1", "a2"),
        *(call(f"b{n}", "x") for n in (1, 2)), call("b", "b1", "b2"),
        inputs="x", outputs="a b",
    )  # fmt: skip
    found = deduce_preferences(graph, {"a": "latency", "b": "latency"})
    assert [found[name].group for name in ("a1", "a2", "b1", "b2")] == [0, 0, 1, 1]
    mixed = deduce_preferences(graph, {"a": "latency", "b": "throughput"})
    assert [mixed[name].criteria for name in ("a1", "b1", "b")] == ["latency", "throughput", "throughput"]


def test_a_chain_of_ten_thousand() -> None:
    requests = tuple(
        AnalysedRequest(f"r{n}", (Constant("c"), Slot(f"v{n}")), (f"v{n}",), f"v{n + 1}")
        for n in range(10_000)
    )
    found = deduce_preferences(RequestGraph(requests, {}), {"v10000": "latency"})
    assert found["r0"] == Preference("latency", None, 9999, 0.0)


def test_branches_and_guards_are_looked_through() -> None:
    graph = graph_of(
        """
        graph judged(%x: text)
          %draft_kv = prefill([c"Draft ", %x]) : kv @llm
          %draft = decode(%draft_kv) : text @llm
          %good = condition(%draft) {equals="yes"} : text
          %better_kv = prefill([c"Better ", %x], when=%good.no) : kv @llm
          %better = decode(%better_kv) : text @llm
          %best = select(better=%better, draft=%draft) : text
          return %best
        """
    )
    assert graph.predecessors == {"draft": (), "better": ("draft",)}
    assert {request.name for request in graph.sources("best")} == {"draft", "better"}


def test_equal_beginnings_have_equal_hashes_and_others_have_not() -> None:
    def hashes(*prompt: Constant | Slot, **values: str) -> list[str]:
        return [one.hash for one in prefix_hashes(AnalysedRequest("r", prompt, (), "y"), values)]

    a, x, z = Constant("a"), Slot("x"), Slot("z")
    assert hashes(a, x)[0] == hashes(a, z, a)[0]
    assert hashes(a, x)[1] != hashes(a, z)[1]
    assert hashes(a, x, x="v")[1] == hashes(a, z, z="v")[1], "equal values, whatever their names"
    assert hashes(a, x, x="v")[1] != hashes(a, x)[1]
    assert hashes(a, Constant("b")) != hashes(Constant("ab"))
    assert hashes(a) != hashes(Constant("a", "user"))
    assert len(hashes(x, a, z)) == 2, "before z, and all; nothing stands before x"


@st.composite
def programs(draw: st.DrawFn) -> tuple[RequestGraph, dict[str, Objective], dict[str, float]]:
    number = draw(st.integers(1, 7))
    requests = []
    for n in range(number):
        sources = draw(st.lists(st.integers(0, n), unique=True, max_size=3)) if n else []
        reads = tuple(f"v{one}" for one in sources if one < n)
        requests.append(AnalysedRequest(f"r{n}", (Constant("c"),), reads, f"v{n}"))
    criteria: st.SearchStrategy[Objective] = st.sampled_from(("latency", "throughput"))
    wanted = draw(st.dictionaries(st.sampled_from([f"v{n}" for n in range(number)]), criteria))
    seconds = {f"r{n}": float(draw(st.integers(0, 5))) for n in range(number)}
    return RequestGraph(tuple(requests), {}), wanted, seconds


@given(programs())
def test_slack_and_groups_by_search(
    given: tuple[RequestGraph, dict[str, Objective], dict[str, float]],
) -> None:
    """A request that takes its slack longer delays nothing wanted for latency; one that takes more does."""
    graph, wanted, seconds = given
    found = deduce_preferences(graph, wanted, seconds)
    latency = [name for name, criteria in wanted.items() if criteria == "latency"]

    def ends(extra: Mapping[str, float]) -> list[float]:
        end: dict[str, float] = {}
        for request in graph.requests:
            begin = max((end[one] for one in request.reads), default=0.0)
            end[request.makes] = begin + seconds[request.name] + extra.get(request.name, 0.0)
        return [end[name] for name in latency]

    for name, preference in found.items():
        if preference.criteria == "latency":
            assert ends({name: preference.slack_s}) == ends({})
            assert ends({name: preference.slack_s + 0.5}) != ends({})
        else:
            assert math.isinf(preference.slack_s)
            assert ends({name: 100.0}) == ends({})
    for one, other in itertools.combinations(found, 2):
        if found[one].group is not None and found[one].group == found[other].group:
            assert found[one].stage == found[other].stage
            assert one not in graph.predecessors[other]
