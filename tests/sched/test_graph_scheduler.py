"""The upper tier: one query, its work handed out and answered by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.machines import compiled

from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.errors import BadReply, CapacityError, EngineFailure, GraphError, StrettoError, UserError
from stretto.model.values import ABSENT, KV, Failure, Segment
from stretto.sched.queries import live_graph
from stretto.sched.queries.outcome import Outcome
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.session import SessionMachine


class Run:
    """A graph scheduler with its invariants checked, and what it hands out by step."""

    def __init__(self, text: str, expand: Any = None, **inputs: object) -> None:
        self.session = SessionMachine("q", None, expand)
        self.nodes = {node.name: node for node in compiled(text).nodes}
        self.work: dict[str, list[StepRequest]] = {}
        self.text: list[tuple[str, str]] = []
        self.withdrawn: list[str] = []
        self.ended = False
        self._outputs: Mapping[str, object] = {}
        self._take(self.session.submit(compiled(text), inputs))

    def _take(self, outcome: Outcome) -> None:
        self.session.check_invariants()
        if outcome.error is not None:
            raise outcome.error
        for work in outcome.work:
            self.work.setdefault(work.node.name, []).append(work)
        self.text += outcome.text
        for node in outcome.withdrawn:
            self.withdrawn.append(node.name)
            self.work.pop(node.name, None)
        if outcome.outputs is not None:
            self.ended = True
            self._outputs = outcome.outputs
        if outcome.is_paused:
            self._take(self.session.go_on())

    def complete(self, node_id: int, lo: int, results: Sequence[object]) -> None:
        self._take(self.session.complete(node_id, lo, results))

    def waiting(self) -> dict[str, list[tuple[int, int]]]:
        """Return the items handed out and not answered, by primitive."""
        return {name: [(work.lo, work.hi) for work in works] for name, works in self.work.items() if works}

    def answer(self, name: str, *results: object, place: int = 0) -> None:
        """Answer one piece of work of a primitive."""
        work = self.work[name].pop(place)
        assert len(results) == work.hi - work.lo
        self.complete(work.node.id, work.lo, results)

    def deliver(self, name: str, offset: int, piece: str) -> None:
        self._take(self.session.deliver(self.work[name][0].node.id, offset, piece))

    def fail(self, name: str, error: StrettoError) -> None:
        """Let one piece of work of a primitive fail for good."""
        work = self.work[name].pop(0)
        failures = [Failure(error)] * (work.hi - work.lo)
        self.complete(work.node.id, work.lo, failures)

    def inputs(self, name: str, place: int = 0) -> Mapping[str, object]:
        return self.work[name][place].inputs

    @property
    def result(self) -> dict[str, object]:
        assert self.ended
        return dict(self._outputs)


def prompt_of(work: StepRequest, item: int = 0) -> str:
    return "".join(segment.text for segment in work.prompts[item])


# --- absent values


REFINE = """
    graph g(%hits: list[text])
      %k1 = prefill([c"1 ", %hits[0]]) : kv @llm
      %a1 = decode(%k1) : text @llm
      %k2 = prefill([c"2 ", %hits[1], %a1]) : kv @llm
      %a2 = decode(%k2) : text @llm
      %k3 = prefill([c"3 ", %hits[2], %a2]) : kv @llm
      %a3 = decode(%k3) : text @llm
      %answer = select(%a3, %a2, %a1) : text
      return %answer
    """


@pytest.mark.parametrize(("num_hits", "answer"), [(3, "a3"), (2, "a2"), (1, "a1"), (0, ABSENT)])
def test_select_takes_the_last_answer_that_there_was_a_hit_for(num_hits: int, answer: object) -> None:
    run = Run(REFINE, hits=["x", "y", "z"][:num_hits])
    for number in range(1, num_hits + 1):
        (work,) = run.work[f"k{number}"]
        assert work.step == f"a{number}"
        run.answer(f"k{number}", (KV(work.prompts[0], 0), f"a{number}"))
    assert run.waiting() == {}
    assert run.result == {"answer": answer}


def test_a_branch_not_taken_is_absent() -> None:
    text = """
        graph g(%q: text)
          %c = condition(%q) {equals="yes"} : text
          %a = web_search(%q, when=%c.yes) {k=1} : list[hit] @web
          %b = web_search(%q, when=%c.no) {k=2} : list[hit] @web
          %d = embed(%a[0]) : vector @e
          %s = select(%a, %b) : list[hit]
          return %s, %d
        """
    run = Run(text, q="no")
    assert run.waiting() == {"b": [(0, 1)]}
    assert dict(run.inputs("b")) == {"queries": "no"}, "a guard is no input"
    run.answer("b", ["hit"])
    assert run.result == {"s": ["hit"], "d": ABSENT}
    assert Run(text, q="Yes!").waiting() == {"a": [(0, 1)]}


@pytest.mark.parametrize(
    ("value", "setting", "holds"),
    [
        ("", "", False),
        ("text", "", True),
        ([], "", False),
        (" YES, it is", ' {equals="yes"}', True),
        ("**Yes**.", ' {equals="yes"}', True),
        ("Yesterday", ' {equals="yes"}', False),
        ("no", ' {equals="yes"}', False),
        (3, " {equals=3}", True),
        (4, " {equals=3}", False),
        (["yes"], ' {equals="yes"}', False),
    ],
)
def test_conditions(value: object, setting: str, holds: bool) -> None:
    run = Run(f"graph g(%x: any)\n%c = condition(%x){setting} : any\nreturn y=%c.yes, n=%c.no", x=value)
    assert run.result == {"y": value if holds else ABSENT, "n": ABSENT if holds else value}


def test_optional_ports_do_without_absent_values() -> None:
    run = Run(
        """
        graph g(%v: vector, %q: text)
          %c = condition(%q) : text
          %hits = search(%v, collection=%c.yes) : list[hit] @vectors
          %all = aggregate(%c.yes, %c.no) {join=" "} : text
          %none = aggregate(%c.yes) : list[text]
          return %hits, %all, %none
        """,
        v=(1,),
        q="",
    )
    assert dict(run.inputs("hits")) == {"queries": (1,)}
    run.answer("hits", [])
    assert run.result == {"hits": [], "all": "", "none": ABSENT}


def test_absent_items_are_skipped_in_place_and_the_others_run_together() -> None:
    text = """
        graph g(%xs: list[text])
          %a = call(each %xs) {result="text"} : list[text] @cpu
          %b = call(each~2 %a, each %xs) {result="text"} : list[text] @cpu
          return %b
        """
    run = Run(text, xs=["p", ABSENT, "q", "r", ABSENT])
    assert run.waiting() == {"a": [(0, 1), (2, 4)]}
    assert run.inputs("a", 1)["xs"] == ["q", "r"]
    run.answer("a", "Q", ABSENT, place=1)
    assert "b" not in run.waiting()
    run.answer("a", "P")
    assert run.waiting() == {"b": [(0, 1), (2, 3)]}
    assert dict(run.inputs("b", 1)) == {"a": ["Q"], "xs": ["q"]}
    run.answer("b", "PP")
    run.answer("b", "QQ")
    assert run.result == {"b": ["PP", ABSENT, "QQ", ABSENT, ABSENT]}


def test_all_items_absent() -> None:
    run = Run(
        """
        graph g(%xs: list[text])
          %ks = prefill([c"a ", each %xs]) : list[kv] @llm
          %as = decode(each %ks) : list[text] @llm
          %all = aggregate(%as) {join=" "} : text
          return %as, %all
        """,
        xs=[ABSENT, ABSENT],
    )
    assert run.result == {"as": [ABSENT, ABSENT], "all": ABSENT}


def test_a_stream_that_turns_out_absent_ends_its_readers_once() -> None:
    """Whichever of two zipped streams ends first."""
    text = """
        graph g(%q: text, %files: list[document])
          %chunks = chunk(each~1 %files) : list[chunk] @cpu
          %c = web_search(%q) : list[hit] @web
          %no = condition(%c) : list[hit]
          %vectors = embed(each~1 %chunks, when=%no.no) : list[vector] @e
          !done = ingest(each~1 %chunks, each~1 %vectors) : effect @vectors
          %hits = search(each~1 %vectors, !done) : list[list[hit]] @vectors
          return %hits
        """
    run = Run(text, q="x", files=["f", "g"])
    run.answer("c", ["a hit"])
    run.answer("chunks", ["p"], ["q"])
    assert run.result == {"hits": ABSENT}
    run = Run(text, q="x", files=["f", "g"])
    run.answer("chunks", ["p"], ["q"])
    run.answer("c", ["a hit"])
    assert run.result == {"hits": ABSENT}


def test_a_fused_pair_is_skipped_together() -> None:
    run = Run(
        """
        graph g(%q: text, %xs: list[text])
          %c = condition(%q) : text
          %x = web_search(%q) : list[hit] @web
          %no = condition(%x) : list[hit]
          %ks = prefill([c"a ", each~1 %xs], when=%no.no) : list[kv] @llm
          %as = decode(each~1 %ks) : list[text] @llm
          %k = prefill([c"b ", %q], when=%no.no) : kv @llm
          %a = decode(%k) : text @llm
          return %as, %a
        """,
        q="x",
        xs=["y"],
    )
    run.answer("x", ["a hit"])
    assert run.result == {"as": ABSENT, "a": ABSENT}


def test_thousands_of_absent_nodes_in_a_row() -> None:
    lines = [f"%x{i + 1} = call(%x{i}) : any @cpu" for i in range(2000)]
    run = Run(
        "graph g(%xs: list[any])\n%x0 = select(%xs[0]) : any\n" + "\n".join(lines) + "\nreturn %x2000", xs=[]
    )
    assert run.result == {"x2000": ABSENT}


# --- lists and streams


def test_zip_and_broadcast() -> None:
    run = Run(
        """
        graph g(%xs: list[text], %q: text)
          %ys = call(each %xs) {result="text"} : list[text] @cpu
          %zs = call(each %xs, each %ys, %q) {result="text"} : list[text] @cpu
          return %zs
        """,
        xs=["a", "b"],
        q="?",
    )
    run.answer("ys", "A", "B")
    assert dict(run.inputs("zs")) == {"xs": ["a", "b"], "ys": ["A", "B"], "q": "?"}
    assert run.work["zs"][0].each == ("xs", "ys")


def test_streams_of_different_piece_sizes_zip_by_index() -> None:
    run = Run(
        """
        graph g(%xs: list[text])
          %a = call(each~2 %xs) {result="text"} : list[text] @cpu
          %b = call(each~3 %a) {result="text"} : list[text] @cpu
          %c = call(each~1 %a, each~1 %b, each~5 %xs) {result="text"} : list[text] @cpu
          return %c
        """,
        xs=list("abcde"),
    )
    assert run.waiting() == {"a": [(0, 5)]}, "pieces are cut by the engine"
    node = run.work["a"][0].node.id
    run.complete(node, 3, ["A3"])
    run.complete(node, 0, ["A0", "A1"])
    assert "b" not in run.waiting()
    run.complete(node, 2, ["A2"])
    assert run.waiting()["b"] == [(0, 4)]
    run.answer("b", *"wxyz")
    assert run.waiting()["c"] == [(0, 4)]
    run.complete(node, 4, ["A4"])
    assert run.waiting()["b"] == [(4, 5)], "the last piece may be smaller"
    run.answer("b", "v")
    assert run.waiting()["c"] == [(0, 4), (4, 5)]
    run.answer("c", "5", place=1)
    run.answer("c", *"1234")
    assert run.result == {"c": ["1", "2", "3", "4", "5"]}


def test_empty_lists_end_at_once() -> None:
    run = Run(
        """
        graph g(%files: list[document])
          %chunks = chunk(each~1 %files) : list[chunk] @cpu
          %vs = embed(each~1 %chunks) : list[vector] @e
          !done = ingest(each~1 %chunks, each %vs) : effect @v
          %hits = search(each %vs, !done) : list[list[hit]] @v
          %ks = prefill([c"a ", each %chunks]) : list[kv] @llm
          %as = decode(each %ks) : list[text] @llm
          %top = aggregate(%hits) {best=3} : list[hit]
          %first = embed(%top[0]) : vector @e
          return %hits, %as, %top, %first
        """,
        files=[],
    )
    assert run.waiting() == {}
    assert run.result == {"hits": [], "as": [], "top": [], "first": ABSENT}


def test_flattened_results_keep_their_order() -> None:
    run = Run(
        "graph g(%fs: list[document])\n%c = chunk(each %fs) : list[chunk] @cpu\nreturn %c", fs=["f", "g", "h"]
    )
    node = run.work["c"][0].node.id
    run.complete(node, 2, [["h0"]])
    run.complete(node, 1, [[]])
    run.complete(node, 0, [["f0", "f1"]])
    assert run.result == {"c": ["f0", "f1", "h0"]}


def test_an_effect_fires_once_at_the_end_of_its_stream_and_the_query_waits_for_it() -> None:
    run = Run(
        """
        graph g(%files: list[document], %v: vector)
          %chunks = chunk(each %files) : list[chunk] @cpu
          %vs = embed(each~1 %chunks) : list[vector] @e
          !done = ingest(each~1 %chunks, each~1 %vs) : effect @v
          %hits = search(%v, !done) : list[hit] @v
          return %files
        """,
        files=["f"],
        v=(1,),
    )
    run.answer("chunks", ["p", "q"])
    node = run.work["vs"][0].node.id
    run.complete(node, 1, [(2,)])
    run.complete(node, 0, [(1,)])
    assert run.waiting()["done"] == [(0, 2)]
    node = run.work["done"][0].node.id
    run.complete(node, 0, [True])
    assert "hits" not in run.waiting()
    assert not run.ended
    run.complete(node, 1, [True])
    assert run.waiting()["hits"] == [(0, 1)]
    assert run.result == {"files": ["f"]}, "nobody needs the hits"


def test_map_and_reduce() -> None:
    run = Run(
        """
        graph g(%q: text, %xs: list[text])
          %ks = prefill([c"Map ", %q, each %xs]) : list[kv] @llm
          %as = decode(each %ks) {max_tokens=5} : list[text] @llm
          %k = prefill([c"Reduce ", %as]) : kv @llm
          %a = decode(%k) : text @llm
          return %a
        """,
        q="q",
        xs=["x", "y", "z"],
    )
    (work,) = run.work["ks"]
    assert [prompt_of(work, i) for i in range(3)] == ["Map qx", "Map qy", "Map qz"]
    assert work.decode is not None
    assert work.units == (4, 4, 4)
    for i in (2, 0, 1):
        run.complete(work.node.id, i, [(KV(work.prompts[i], 0), f"a{i}")])
    assert prompt_of(run.work["k"][0]) == "Reduce a0\n\na1\n\na2"


def test_kv_that_two_decodes_share_is_handed_on_with_its_place() -> None:
    run = Run(
        """
        graph g(%q: text)
          %k = prefill([c"See ", %q]) : kv @llm
          %a = decode(%k) : text @llm
          %b = decode(%k) : text @llm
          %l = prefill([c"See ", %q, c"!"], hint=%k) : kv @llm
          return %a, %b, %l
        """,
        q="x",
    )
    (work,) = run.work["k"]
    assert work.decode is None
    (longer,) = run.work["l"]
    assert (longer.hint, longer.hint_nodes) == (None, (work.node.id,)), "it does not wait for the hint"
    run.answer("k", KV(work.prompts[0], 3))
    assert [(w.hint, w.prompts) for name in ("a", "b") for w in run.work[name]] == [(3, work.prompts)] * 2
    assert run.work["l"][0].prompts == ((Segment("See "), Segment("x", "q"), Segment("!")),)


def test_items_of_a_running_decode_are_used_at_once() -> None:
    run = Run(
        """
        graph g(%q: text)
          %k = prefill([c"List ", %q]) : kv @llm
          %xs = decode(%k) {items="json_list"} : list[text] @llm #splittable
          %vs = embed(each~1 %xs) : list[vector] @e #batchable
          %all = embed(each %xs) : list[vector] @e
          return %vs, %all
        """,
        q="x",
    )
    run.deliver("k", 0, "one")
    assert run.waiting()["vs"] == [(0, 1)]
    run.deliver("k", 0, "one")
    run.deliver("k", 1, "two")
    assert run.waiting()["vs"] == [(0, 1), (1, 2)]
    assert run.inputs("vs", 1)["texts"] == ["two"]
    run.answer("vs", (1,))
    assert "all" not in run.waiting()
    run.answer("k", (KV((), 0), ["one", "two", "three"]))
    assert run.waiting() == {"vs": [(1, 2), (2, 3)], "all": [(0, 3)]}
    run.answer("all", (7,), (8,), (9,))
    run.answer("vs", (2,))
    run.answer("vs", (3,))
    assert run.result == {"vs": [(1,), (2,), (3,)], "all": [(7,), (8,), (9,)]}


def test_a_decode_must_return_what_it_streamed() -> None:
    run = Run(
        'graph g(%k: kv)\n%xs = decode(%k) {items="json_list"} : list[text] @llm\nreturn %xs', k=KV((), None)
    )
    run.deliver("xs", 0, "one")
    with pytest.raises(BadReply, match="step 'xs': the items it streamed are not those it returned"):
        run.answer("xs", ["two"])


def test_repeated_results_are_ignored() -> None:
    run = Run("graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v", xs=["a", "b"])
    node = run.work["v"][0].node.id
    run.complete(node, 0, [(1,)])
    run.complete(node, 0, [(9,), (2,)])
    assert run.result == {"v": [(1,), (2,)]}
    run.complete(node, 0, [(7,), (8,)])
    assert run.result == {"v": [(1,), (2,)]}


def test_order_waits_for_the_whole_even_of_what_streams() -> None:
    run = Run(
        """
        graph g(%xs: list[text], %q: text)
          %a = call(each %xs) {result="text"} : list[text] @cpu
          %b = call(each~1 %a) {result="text"} : list[text] @cpu
          %c = web_search(%q) : list[hit] @web
          order a > b
          order b > c
          return %c
        """,
        xs=["x", "y"],
        q="q",
    )
    node = run.work["a"][0].node.id
    run.complete(node, 0, ["X"])
    assert list(run.waiting()) == ["a"]
    run.complete(node, 1, ["Y"])
    assert run.waiting()["b"] == [(0, 2)]
    run.answer("b", "1", "2")
    assert run.waiting()["c"] == [(0, 1)]


def test_outputs_may_be_inputs_items_and_one_value_twice() -> None:
    run = Run(
        "graph g(%q: text, %xs: list[text])\nreturn %q, a=%xs[1], b=%xs[1], c=%xs[7]", q="?", xs=["x", "y"]
    )
    assert run.result == {"q": "?", "a": "y", "b": "y", "c": ABSENT}


# --- hints


AHEAD = """
    graph g(%q: text)
      %ahead = prefill([c"Rules "]) : kv @llm
      %x     = web_search(%q) : list[hit] @web
      %k     = prefill([c"Rules ", %x], hint=%ahead) : kv @llm
      %a     = decode(%k) : text @llm
      return %a
    """
AHEAD_OF_TWO = """
    graph g(%q: text)
      %ahead = prefill([c"Rules "]) : kv @llm
      %x     = web_search(%q) : list[hit] @web
      %y     = call(%x) {result="text"} : text @cpu
      %k     = prefill([c"Rules ", %x], hint=%ahead) : kv @llm
      %l     = prefill([c"Rules ", %y], hint=%ahead) : kv @llm
      return %k, %l
    """


def test_a_prefill_ahead_is_withdrawn_when_its_only_reader_opens() -> None:
    run = Run(AHEAD, q="x")
    assert list(run.waiting()) == ["ahead", "x"]
    run.answer("x", ["a hit"])
    assert run.withdrawn == ["ahead"]
    (work,) = run.work["k"]
    assert (work.hint, work.hint_nodes) == (None, (0,))
    run.complete(0, 0, [KV((), 0)])
    run.answer("k", (KV((), 0), "answer"))
    assert run.result == {"a": "answer"}


def test_a_prefill_ahead_that_is_done_is_a_hint() -> None:
    run = Run(AHEAD, q="x")
    run.answer("ahead", KV((), 3))
    run.answer("x", ["a hit"])
    assert run.withdrawn == []
    assert (run.work["k"][0].hint, run.work["k"][0].hint_nodes) == (3, ())


def test_a_prefill_ahead_of_several_readers_runs_on() -> None:
    run = Run(AHEAD_OF_TWO, q="x")
    run.answer("x", ["a hit"])
    assert list(run.waiting()) == ["ahead", "y", "k"]
    run.answer("y", ["a hit"])
    assert list(run.waiting()) == ["ahead", "k", "l"]
    run.answer("k", KV(()))
    assert run.withdrawn == []
    run.answer("l", KV(()))
    assert run.withdrawn == ["ahead"], "all readers have ended"
    assert run.ended


def test_a_prefill_ahead_of_a_mapped_reader_runs_on() -> None:
    run = Run(
        """
        graph g(%q: text, %xs: list[text])
          %ahead = prefill([c"Rules "]) : kv @llm
          %word  = web_search(%q) : list[hit] @web
          %k     = prefill([c"Rules ", each %xs, %word], hint=%ahead) : list[kv] @llm
          %a     = decode(each %k) : list[text] @llm
          return %a
        """,
        q="x",
        xs=["one", "two"],
    )
    run.answer("word", ["a hit"])
    assert run.withdrawn == []
    assert list(run.waiting()) == ["ahead", "k"]


def test_a_prefill_that_is_ahead_of_nothing_is_not_sent() -> None:
    """A prefill is not sent if its reader is ready at the same time, has opened before, or is skipped."""
    guarded = """
        graph g(%q: text)
          %g     = web_search(%q) : list[hit] @web
          %ahead = prefill([c"Rules "], when=%g) : kv @llm
          %x     = web_search(%q) : list[hit] @web
          %k     = prefill([c"Rules ", %x[0]], hint=%ahead) : kv @llm
          return %k
        """
    at_once = Run(guarded.replace("%x[0]", "%q"), q="x")
    assert list(at_once.waiting()) == ["g", "x", "k"]
    at_once.answer("g", ["a hit"])
    assert list(at_once.waiting()) == ["x", "k"]
    later = Run(guarded, q="x")
    later.answer("x", ["a hit"])
    later.answer("g", ["a hit"])
    assert list(later.waiting()) == ["k"]
    skipped = Run(guarded, q="x")
    skipped.answer("g", ["a hit"])
    skipped.answer("x", [])
    assert skipped.withdrawn == ["ahead"]
    assert skipped.result == {"k": ABSENT}


def test_a_chain_of_prefills_ahead_is_withdrawn_link_by_link() -> None:
    run = Run(
        """
        graph g(%q: text)
          %one = prefill([c"A "]) : kv @llm
          %x   = web_search(%q) : list[hit] @web
          %two = prefill([c"A ", %x], hint=%one) : kv @llm
          %y   = call(%x) {result="text"} : text @cpu
          %k   = prefill([c"A ", %x, %y], hint=%two) : kv @llm
          return %k
        """,
        q="x",
    )
    run.answer("x", ["a hit"])
    assert run.withdrawn == ["one"]
    assert list(run.waiting()) == ["two", "y"]
    run.answer("y", ["a hit"])
    assert run.withdrawn == ["one", "two"]
    assert run.work["k"][0].hint_nodes == (2, 0)


def test_a_failing_prefill_ahead_is_no_hint_and_nothing_else() -> None:
    run = Run(AHEAD_OF_TWO, q="x")
    run.fail("ahead", EngineFailure("broken"))
    run.answer("x", ["a hit"])
    run.answer("y", ["a hit"])
    assert (run.work["k"][0].hint, run.work["l"][0].hint) == (None, None)
    with pytest.raises(EngineFailure, match="needed"):
        run.fail("k", EngineFailure("needed"))


def test_a_hint_with_a_prompt_that_has_no_text_vanishes_too() -> None:
    text = AHEAD.replace("graph g(%q: text)", "graph g(%q: text, %z: any)").replace(
        '[c"Rules "])', '[c"Rules ", %z])'
    )
    run = Run(text, q="x", z=set())
    assert list(run.waiting()) == ["x"]
    run.answer("x", ["a hit"])
    assert list(run.waiting()) == ["k"]


def test_a_call_may_have_a_port_called_hint_and_waits_for_it() -> None:
    text = """
        graph g(%q: text)
          %x = web_search(%q) : list[hit] @web
          %y = call(hint=%x) {result="text"} : text @cpu
          return %y
        """
    assert list(Run(text, q="x").waiting()) == ["x"]


# --- text


STREAMING = """
    graph g(%q: text, %k: kv)
      %hits = web_search(%q) : list[hit] @web
      %k2 = prefill([c"Better ", %hits[0]]) : kv @llm
      %b = decode(%k2) : text @llm
      %a = decode(%k) : text @llm
      %best = select(%b, %a) : text
      return %best, %a
    """


def test_text_streams_through_select_once_nothing_better_can_come() -> None:
    run = Run(STREAMING, q="x", k=KV((), None))
    run.answer("hits", [])
    run.deliver("a", 0, "Hel")
    run.deliver("a", 0, "Hel")
    run.deliver("a", 3, "lo")
    assert run.text == [("best", "Hel"), ("a", "Hel"), ("best", "lo"), ("a", "lo")]


def test_text_that_began_unseen_is_not_shown_from_the_middle() -> None:
    """`best` learns too late that the better answer will not come; `a` shows all along."""
    run = Run(STREAMING, q="x", k=KV((), None))
    run.deliver("a", 0, "Hel")
    run.answer("hits", [])
    run.deliver("a", 3, "lo")
    assert run.text == [("a", "Hel"), ("a", "lo")]
    run.deliver("a", 0, "Hello")
    run.deliver("a", 5, "!")
    assert run.text[2:] == [("best", "Hello"), ("best", "!"), ("a", "!")], "an attempt from the start helps"


def test_the_better_answer_streams_alone() -> None:
    run = Run(STREAMING, q="x", k=KV((), None))
    run.answer("hits", ["a hit"])
    run.deliver("k2", 0, "B")
    run.deliver("a", 0, "A")
    assert run.text == [("best", "B"), ("a", "A")]


# --- expansion


def expander(**bodies: Any) -> Any:
    def expand(body: str, inputs: Mapping[str, object]) -> ExecutionGraph:
        found = bodies[body]
        return compiled(found(inputs) if callable(found) else found)

    return expand


def test_expand_grows_the_running_graph() -> None:
    body = """
        graph body(%xs: list[text], %other: text)
          %v = embed(each %xs) : list[vector] @e
          %top = aggregate(%v) : list[vector]
          return %top[1]
        """
    run = Run(
        """
        graph g(%xs: list[text])
          %x = expand(%xs) {body="b", result="vector"} : vector
          %hits = search(%x) : list[hit] @v
          return %x, %hits
        """,
        expander(b=body),
        xs=["a", "b"],
    )
    (work,) = run.work["v"]
    assert work.node.depth == 2, "above the place it was spliced into"
    run.answer("v", (1,), (2,))
    assert dict(run.inputs("hits")) == {"queries": (2,)}
    run.answer("hits", [])
    assert run.result == {"x": (2,), "hits": []}


def test_expansions_nest_and_may_return_what_they_were_given() -> None:
    run = Run(
        'graph g(%q: text)\n%x = expand(%q) {body="twice"} : any\nreturn %x',
        expander(
            twice="""
                graph t(%q: text)
                  %y = expand(%q) {body="same"} : any
                  %z = embed(%y) : vector @e
                  return %z
                """,
            same="graph s(%q: text)\nreturn %q",
        ),
        q="?",
    )
    assert dict(run.inputs("z")) == {"texts": "?"}
    run.answer("z", (1,))
    assert run.result == {"x": (1,)}


def test_a_loop_is_an_expansion_at_its_own_end() -> None:
    """A thousand rounds deep, as an agent's may be."""

    def rounds(inputs: Mapping[str, object]) -> str:
        xs = inputs["xs"]
        assert isinstance(xs, list)
        if not xs:
            return "graph end(%xs: list[text])\nreturn %xs"
        xs.pop()
        return 'graph again(%xs: list[text])\n%x = expand(%xs) {body="rounds"} : any\nreturn %x'

    text = 'graph g(%xs: list[text])\n%x = expand(%xs) {body="rounds"} : any\nreturn %x'
    run = Run(text, expander(rounds=rounds), xs=["x"] * 1000)
    assert run.result == {"x": []}


TURNS = """
    graph g(%q: text)
      %x = expand(%q) {body="turn", result="text"} : text
      %sure = web_search(%q) : list[hit] @web
      %better = call(%sure[0]) {result="text"} : text @cpu
      %best = select(%better, %x) : text
      return %best, %x
    """


def _turn(inputs: Mapping[str, object]) -> str:
    return """
        graph turn(%q: text)
          %kv = prefill([c"Think ", %q]) : kv @llm
          %thought = decode(%kv) : text @llm
          %more = expand(%thought) {body="last", result="text"} : text
          return %more
        """


def _last(inputs: Mapping[str, object]) -> str:
    return """
        graph last(%thought: text)
          %kv2 = prefill([c"Say ", %thought]) : kv @llm
          %said = decode(%kv2) : text @llm
          return %said
        """


def test_text_of_an_expansion_streams_once_it_is_certain() -> None:
    run = Run(TURNS, expander(turn=_turn, last=_last), q="?")
    run.deliver("kv", 0, "Hm")
    assert run.text == [], "a thought is not the answer"
    run.answer("kv", (KV(()), "Hm"))
    run.deliver("kv2", 0, "Hel")
    assert run.text == [("x", "Hel")], "a hit would be better"
    run.answer("sure", [])
    run.deliver("kv2", 0, "Hello")
    assert run.text == [("x", "Hel"), ("best", "Hello"), ("x", "lo")]
    run.answer("kv2", (KV(()), "Hello."))
    assert run.result == {"best": "Hello.", "x": "Hello."}


def test_another_text_than_an_expansion_has_shown_is_a_bad_reply() -> None:
    run = Run('graph g(%thought: text)\n%x = expand(%thought) {body="last", result="text"} : text\nreturn %x',
              expander(last=_last), thought="Hm")  # fmt: skip
    run.deliver("kv2", 0, "Hel")
    with pytest.raises(BadReply, match="not what it returned"):
        run.answer("kv2", (KV(()), "Good morning"))


def test_text_behind_an_item_of_an_expansion_does_not_stream() -> None:
    text = 'graph g(%thought: text)\n%x = expand(%thought) {body="last", result="any"} : any\nreturn %x[0]'
    run = Run(text, expander(last=_last), thought="Hm")
    run.deliver("kv2", 0, "Hel")
    assert run.text == []


def test_an_expansion_gets_its_settings_and_its_graph_may_read_them() -> None:
    seen = dict[str, object]()

    def body(inputs: Mapping[str, object]) -> str:
        seen.update(inputs)
        return "graph b(%q: text, %rounds: number)\n%x = aggregate(%q, %rounds) : list[any]\nreturn %x"

    text = (
        'graph g(%q: text)\n%x = expand(%q) {body="b", q="hidden", result="any", rounds=3} : any\nreturn %x'
    )
    assert Run(text, expander(b=body), q="?").result == {"x": ["?", 3]}
    assert seen == {"q": "?", "rounds": 3}


def test_growth_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_graph, "MAX_NODES", 50)
    body = 'graph b(%q: text)\n%deeper = expand(%q) {body="b"} : any\nreturn %deeper'
    with pytest.raises(CapacityError, match="step 'deeper': the graph has grown beyond 50 primitives"):
        Run(body, expander(b=body), q="?")


def test_an_expansion_that_is_skipped_expands_to_nothing() -> None:
    run = Run(
        'graph g(%xs: list[text])\n%x = expand(a=%xs[0]) {body="b"} : any\nreturn %x', expander(), xs=[]
    )
    assert run.result == {"x": ABSENT}


@pytest.mark.parametrize(
    ("body", "kind", "step"),
    [
        ("graph b(%q: text)\n%inner = embed(%nothing) : vector @e", GraphError, "x"),
        ("graph b(%q: text)", UserError, "x"),
        (lambda inputs: 1 / 0, EngineFailure, "x"),
        (
            "graph b(%q: text)\n%inner = aggregate(%q) {best=1} : list[hit]\nreturn %inner",
            EngineFailure,
            "inner",
        ),
    ],
    ids=["no graph", "no output", "a bug in the body", "an error in the subgraph"],
)
def test_a_failing_expansion_names_the_step(body: Any, kind: type[StrettoError], step: str) -> None:
    with pytest.raises(kind) as raised:
        Run('graph g(%q: text)\n%x = expand(%q) {body="b"} : any\nreturn %x', expander(b=body), q="?")
    assert raised.value.step == step


def test_without_an_expander_a_query_cannot_expand() -> None:
    with pytest.raises(UserError, match="step 'x': this query cannot expand"):
        Run('graph g(%q: text)\n%x = expand(%q) {body="b"} : any\nreturn %x', q="?")


# --- values of the wrong shape


def test_a_missing_input_is_the_callers_fault() -> None:
    with pytest.raises(UserError, match="the query brings no input 'q'"):
        Run("graph g(%q: text)\nreturn %q")


def fails(
    text: str, kind: type[StrettoError], message: str, answers: Sequence[tuple[str, Any]], **inputs: object
) -> None:
    def everything() -> None:
        run = Run(text, **inputs)
        for name, result in answers:
            run.answer(name, result)

    with pytest.raises(kind) as raised:
        everything()
    assert message in str(raised.value)


def test_values_of_the_wrong_shape_name_the_step() -> None:
    each = "graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v"
    fails(each, BadReply, "step 'v': port 'texts' got a str, not a list", [], xs="text")
    fails(each, BadReply, "step 'v': port 'texts' got a int, not a list", [], xs=7)
    item = """
        graph g(%q: text)
          %c = call(%q) {result="list[text]"} : list[text] @c
          %v = embed(%c[0]) : any @e
          return %v
        """
    fails(item, BadReply, "step 'v': item 0 of a str, which is not a list", [("c", "text")], q="?")
    fails(item, BadReply, "step 'v': item 0 of a dict, which is not a list", [("c", {})], q="?")
    prompt = "graph g(%q: any)\n%k = prefill([%q]) : kv @llm\nreturn %k"
    fails(prompt, BadReply, "step 'k': a set has no textual form", [], q=set())
    flat = "graph g(%fs: list[document])\n%c = chunk(each %fs) : list[chunk] @c\nreturn %c"
    fails(flat, BadReply, "step 'c': a str instead of a list", [("c", "text")], fs=["f"])
    best = "graph g(%xs: list[hit])\n%t = aggregate(%xs) {best=1} : list[hit]\nreturn %t"
    fails(best, EngineFailure, "step 't': ", [], xs=[7])


def test_another_text_than_was_shown_is_a_bad_reply() -> None:
    """A second attempt must not contradict what the user has read."""
    graph = """
        graph g(%q: text)
          %kv = prefill([c"a ", %q]) : kv @llm
          %a = decode(%kv) : text @llm
          return %a
        """
    run = Run(graph, q="x")
    node = run.work["kv"][0].node.id
    run._take(run.session.deliver(node, 0, "The captain "))
    run._take(run.session.deliver(node, 0, "The cap"))
    with pytest.raises(BadReply, match="step 'a': a second attempt decoded another text"):
        run._take(run.session.deliver(node, 0, "I cannot say"))
    run = Run(graph, q="x")
    run._take(run.session.deliver(node, 0, "The captain "))
    with pytest.raises(BadReply, match="step 'a': the text it streamed is not what it returned"):
        run.complete(node, 0, [(KV(()), "Somebody else")])
