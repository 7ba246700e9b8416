"""Whatever an app or an engine is built of, what does not fit is a typed error before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stretto import DEFAULT, Component, Deployment, Engine, Input, Runtime, Template, deploy, load_documents
from stretto.apps import naive_rag
from stretto.apps.components.component import parallel
from stretto.apps.components.rag import QueryExpansion
from stretto.graph.text import parse_graph
from stretto.model.errors import UserError

DEEP = "list[" * 5000 + "text" + "]" * 5000
ANY: Any = None


def expansion(**settings: Any) -> QueryExpansion:
    return QueryExpansion(question=Input("question", "text"), **settings)


def template(flow: Any = ANY, outputs: Any = ANY, name: Any = "app", **more: Any) -> Template:
    return Template(name, flow, outputs, **more)


class LowersToNothing(Component):
    outs: Mapping[str, str] = {"a": "text"}  # type: ignore[misc]

    def lower(self, build: Any, config: Any) -> Any:
        return None


class Unfinished(Component):
    outs: Mapping[str, str] = {"a": "text"}  # type: ignore[misc]


class NoDataclass(Component):
    Config: Any = 3  # type: ignore[misc]


def of_one(component: Component) -> Template:
    return template(component, {"a": component["a"]})


CASES: Mapping[str, Callable[[], object]] = {
    "component >> 3": lambda: expansion() >> ANY,
    "chain >> text": lambda: (expansion() >> expansion(name="b")) >> "x",  # type: ignore[operator]
    "parallel(3)": lambda: parallel(3),  # type: ignore[arg-type]
    "no flow": lambda: template(None, {}),
    "flow of None": lambda: template([None], {}),
    "no outputs": lambda: template(expansion()),
    "output 3": lambda: template(expansion(), {"x": 3}),
    "output named 3": lambda: template([], {3: Input("a", "text")}),
    "app without a name": lambda: template([], {"x": Input("a", "text")}, None),
    "no vocabulary": lambda: template([], {"x": Input("a", "text")}, vocabulary=None),
    "deep type": lambda: template([], {"x": Input("a", DEEP)}),
    "input of type 3": lambda: Input("a", ANY),
    "input without a name": lambda: Input("", "text"),
    "component named 3": lambda: expansion(name=3),
    "out port []": lambda: expansion()[[]],  # type: ignore[index]
    "lowers to None": lambda: of_one(LowersToNothing()),
    "lowers not": lambda: of_one(Unfinished()),
    "settings that are no dataclass": NoDataclass,
    "configuration None": lambda: naive_rag().lower(ANY),
    "settings None": lambda: naive_rag().lower({"synthesis": ANY}),
    "graph None": lambda: parse_graph(ANY),
    "deep graph": lambda: parse_graph(f"graph g(%x: {DEEP})\nreturn %x"),
    "deep constant": lambda: parse_graph(
        f"graph g(%x: text)\n%a = call(%x) {{c={'[' * 100_000}}} : text @a\nreturn %a"
    ),
    "runtime of None": lambda: Runtime(ANY),
    "runtime of 3": lambda: Runtime([3]),  # type: ignore[list-item]
    "max_queries as text": lambda: Runtime([], max_queries="x"),  # type: ignore[arg-type]
    "engine named 3": lambda: deploy(3, len),  # type: ignore[arg-type]
    "timeout as text": lambda: deploy("a", len, timeout_s="x"),
    "age limit None": lambda: deploy("a", len, age_limit_s=None),
    "start timeout as text": lambda: deploy("a", len, start_timeout_s="3"),
    "devices 3": lambda: deploy("a", len, devices=3),
    "device 3": lambda: deploy("a", len, devices=(3,)),
    "port as text": lambda: deploy("a", len, contract="llm", port="x"),
    "profile 3": lambda: deploy("a", len, profile=3),
    "policy []": lambda: deploy("a", len, policy=[]),
    "deployment of None": lambda: Deployment(ANY),
    "replicas 3": lambda: Deployment(Engine("a"), (3,)),  # type: ignore[arg-type]
    "paths None": lambda: load_documents(ANY),
    "one path": lambda: load_documents("docs"),
    "path 3": lambda: load_documents([3]),  # type: ignore[list-item]
    "op None": lambda: DEFAULT.with_op(ANY),
    "pass 3": lambda: DEFAULT.with_pass("x", 3),  # type: ignore[arg-type]
    "expansion None": lambda: DEFAULT.with_expansion("x", ANY),
    "passes None": lambda: DEFAULT.select_passes(ANY),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_a_typed_error_with_a_short_message(case: str) -> None:
    with pytest.raises(UserError) as refused:
        CASES[case]()
    assert len(str(refused.value)) < 500
