"""The pages: complete, self-contained, and nothing in them is taken for markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.recorded_runs import driver
from support.worked_example import e_graph, p_graph

from stretto.graph.compile import compile_graph
from stretto.graph.passes.weigh import Verdict
from stretto.model.errors import BadReply
from stretto.trace.drawing import draw_graph
from stretto.trace.html import graph_page, trace_page, write_trace
from stretto.trace.recorder import QuerySpan, Recorder, Span, SpanPart

NASTY = '</script><script>alert("1")</script><img src=x onerror=alert(1)>&\'"'


class _Tags(HTMLParser):
    """Counts elements and checks that they nest."""

    VOID = frozenset({"meta", "path", "rect", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def _nasty_recorder() -> Recorder:
    recorder = Recorder()
    recorder.queries[NASTY] = QuerySpan(NASTY, NASTY, 0.0, 1.0, f"failed: {NASTY}")
    recorder.spans = [
        Span(NASTY, 0, (SpanPart(NASTY, NASTY, NASTY, 1),), 0.0, 1.0, outcome=f"failed: {NASTY}")
    ]
    return recorder


def test_a_trace_has_every_batch_once_and_every_query(tmp_path: Path) -> None:
    run = driver(4)
    run.run()
    graph = e_graph()
    write_trace(tmp_path / "trace.html", run.recorder, [graph, compile_graph(graph, {}), graph])
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    data = _data(page)
    placed = [i for group in data["groups"] for lane in group["lanes"] for i in lane]
    assert sorted(placed) == list(range(len(run.recorder.spans)))
    assert [group["label"] for group in data["groups"] if "llm" in group["label"]] == ["llm/0", "llm/1"]
    assert sorted(i for lane in data["query_lanes"] for i in lane) == [0, 1, 2, 3]
    assert {query["outcome"] for query in data["queries"]} == {"done"}
    tags = _Tags(page)
    assert tags.counts["svg"] == 1, "one drawing of each different graph"
    assert [value for name, value in tags.attributes if name == "data-query"] == ["0", "1", "2", "3"]


def test_bars_in_a_lane_do_not_overlap() -> None:
    run = driver(6)
    run.run()
    data = _data(trace_page(run.recorder))
    for group in data["groups"]:
        for lane in group["lanes"]:
            bars = [data["spans"][i] for i in lane]
            assert all(a["end"] <= b["start"] for a, b in pairwise(bars))
    for lane in data["query_lanes"]:
        bars = [data["queries"][i] for i in lane]
        assert all(a["end"] <= b["start"] for a, b in pairwise(bars))


def test_pages_load_nothing() -> None:
    run = driver(1)
    run.run()
    for page in (
        trace_page(run.recorder, [e_graph()]),
        graph_page("t", [("h", "x", draw_graph(p_graph()))]),
    ):
        assert not {"src", "href", "action", "xlink:href"} & {name for name, _ in _Tags(page).attributes}
        assert "@import" not in page
        assert set(re.findall(r"https?://[^\"' ]*", page)) <= {"http://www.w3.org/2000/svg"}


def test_names_and_outcomes_are_never_markup() -> None:
    page = trace_page(_nasty_recorder())
    tags = _Tags(page)
    assert tags.counts["script"] == 2
    assert "img" not in tags.counts
    assert _data(page)["spans"][0]["parts"] == [[0, NASTY, NASTY, 1]]
    assert not any(name.startswith("on") for name, _ in tags.attributes)


def test_the_script_writes_no_markup() -> None:
    script = trace_page(Recorder())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script)


def test_a_failed_query_says_why() -> None:
    run = driver(1, fail_on=lambda task: BadReply("no <b>scores</b>"))
    run.run()
    page = trace_page(run.recorder)
    assert "no &lt;b&gt;scores&lt;/b&gt;" in page
    assert any(span["outcome"].startswith("failed") for span in _data(page)["spans"])


def test_a_trace_says_why_passes_were_left_out() -> None:
    left_out = Verdict("split_prefill", False, "left out: saves 1 ms, costs <2 ms>", 0.001, 0.002)
    recorder = Recorder()
    recorder.queries["q1"] = QuerySpan("q1", "app", 0.0, 1.0, "done", (left_out,))
    page = trace_page(recorder)
    assert "<td>split_prefill</td><td>left out: saves 1 ms, costs &lt;2 ms&gt;</td>" in page
    assert "left out" not in trace_page(Recorder())


def test_an_empty_recording_is_a_page() -> None:
    assert _data(trace_page(Recorder()))["spans"] == []


def test_an_explanation_shows_each_section_in_order() -> None:
    drawing = draw_graph(p_graph())
    page = graph_page("<title>", [("p-graph", "a\nb < c", drawing), ("prune & order", "nothing to do", "")])
    assert _Tags(page).counts["svg"] == 1
    assert (
        page.index("p-graph</h2>")
        < page.index("a\nb &lt; c")
        < page.index("<svg")
        < page.index("&amp; order")
    )
