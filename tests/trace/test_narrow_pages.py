"""Pages fit a window of 600 pixels: what is wider scrolls in itself, and long words break."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from support.recorded_runs import driver
from support.worked_example import e_graph, p_graph

from stretto.planner.execution import Execution
from stretto.planner.gantt_page import gantt_page
from stretto.planner.machine import machine_of
from stretto.service.graph_page import as_html
from stretto.trace.drawing import draw_graph
from stretto.trace.html import graph_page, trace_page

WIDE = ("table", "svg")
VOID = ("meta", "path", "rect", "br")


class Wide(HTMLParser):
    """Collects the elements of a page that may be wider than the window and do not scroll in themselves."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        scrolls = "scroll" in (dict(attrs).get("class") or "").split()
        if tag in WIDE and not any(inside for _, inside in self.open):
            self.found.append(tag)
        if tag not in VOID:
            self.open.append((tag, scrolls))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass


def a_trace() -> str:
    run = driver(2)
    run.run()
    return trace_page(run.recorder, [e_graph()])


def a_plan() -> str:
    machine = machine_of("8xA100-80G")
    return gantt_page("plan", Execution(1.0, (), {}), ["a"], machine)


PAGES: dict[str, Callable[[], str]] = {
    "trace": a_trace,
    "explanation": lambda: graph_page("page", [("p-graph", "a line", draw_graph(p_graph()))]),
    "plan": a_plan,
    "session": lambda: as_html([], "0123456789"),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_scroll_only_within_what_is_wide(name: str) -> None:
    page = PAGES[name]()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert Wide(page).found == []
    assert re.search(r"\.scroll\s*{\s*overflow(-x)?:\s*auto", page)


def test_no_width_of_the_trace_page_is_fixed_above_a_narrow_window() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", a_trace(), re.DOTALL)[:1]
    widths = [int(width) for width in re.findall(r"(?:min-)?width:\s*(\d+)px", style.split(".graph")[0])]
    assert all(width <= 600 for width in widths if width != 640)  # 640: the narrow window itself
    assert "overflow-wrap: anywhere" in style
