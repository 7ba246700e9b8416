"""Whatever the passes, the timing and the failures: every query ends once, with the same result.

Set STRETTO_EXAMPLES to run more examples than a normal run does.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graph_oracle import interpret
from support.random_apps import App, apps
from support.random_effects import effect_apps
from support.random_templates import template_apps
from support.worlds import BATCH_ENGINES, LLM_ENGINES, World, assert_nothing_is_left, worlds

from stretto.graph.op_table import OPS
from stretto.graph.passes.pipeline import PASSES
from stretto.model.errors import BadReply, EngineFailure, QueryEnded
from stretto.model.profile import Profile
from stretto.model.tasks import LLMTask, Task
from stretto.sched.actions import Emit, Reply
from stretto.sim.driver import VirtualDriver

NUM_EXAMPLES = int(os.environ.get("STRETTO_EXAMPLES", "28"))
moderately = settings(
    max_examples=NUM_EXAMPLES,
    derandomize="STRETTO_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
all_apps = st.one_of(apps(), template_apps(), effect_apps())
pass_lists = st.lists(st.sampled_from(sorted(PASSES)), max_size=10).map(tuple)


@given(all_apps)
@moderately
def test_a_plain_run_gives_what_the_graph_means(app: App) -> None:
    reply, driver = World().run(app)
    assert reply.error is None
    assert reply.outputs == interpret(app.graph, app.inputs)
    assert_nothing_is_left(driver)


@given(all_apps, pass_lists, worlds())
@moderately
def test_passes_timing_and_failures_change_nothing(app: App, passes: tuple[str, ...], world: World) -> None:
    reply, driver = world.run(app, passes)
    assert reply.error is None
    assert reply.outputs == interpret(app.graph, app.inputs)
    assert_nothing_is_left(driver)
    assert sum(isinstance(action, Reply) for _, action in driver.actions) == 1
    assert_shown_text_is_the_beginning(reply, driver)


@given(all_apps, pass_lists, worlds())
@settings(moderately, max_examples=NUM_EXAMPLES // 3)
def test_the_same_seed_gives_the_same_actions(app: App, passes: tuple[str, ...], world: World) -> None:
    _, first = world.run(app, passes)
    _, second = world.run(app, passes)
    assert [repr(action) for action in first.actions] == [repr(action) for action in second.actions]


@given(st.lists(st.tuples(all_apps, pass_lists, st.floats(0.0, 0.5)), min_size=2, max_size=5), worlds())
@settings(moderately, max_examples=NUM_EXAMPLES // 2)
def test_queries_that_share_engines_do_not_mix(
    queries: list[tuple[App, tuple[str, ...], float]], world: World
) -> None:
    driver = world.driver()
    for number, (app, passes, at_s) in enumerate(queries):
        driver.submit(f"q{number}", world.compile(app, passes), app.inputs, at_s=at_s, passes=passes)
    replies = driver.run()
    for number, (app, _, _) in enumerate(queries):
        assert replies[f"q{number}"].error is None
        assert replies[f"q{number}"].outputs == interpret(app.graph, app.inputs)
    assert_nothing_is_left(driver)


@given(
    st.lists(st.tuples(all_apps, pass_lists, st.floats(0.0, 0.5)), min_size=2, max_size=4),
    worlds(),
    st.integers(0, 30),
    st.sampled_from(("engine failure", "bad reply", "crash", "cancel", "deadline")),
)
@settings(moderately, max_examples=NUM_EXAMPLES // 2)
def test_a_query_that_ends_badly_hurts_no_other(
    queries: list[tuple[App, tuple[str, ...], float]], world: World, after: int, how: str
) -> None:
    """The first query's task number `after`, and all its later ones, fail; or it is given up."""
    seen = Counter[str]()

    def fail_on(task: Task | LLMTask) -> BaseException | None:
        seen[task.query] += 1
        if task.query != "q0" or seen["q0"] <= after:
            return None
        if how == "crash" and isinstance(task, Task):
            return ZeroDivisionError("a bug in the engine")
        return BadReply("nonsense") if how == "bad reply" else EngineFailure("broken")

    driver = world.driver(fail_on if how not in ("cancel", "deadline") else None)
    for number, (app, passes, at_s) in enumerate(queries):
        is_due = number == 0 and how == "deadline"
        driver.submit(
            f"q{number}",
            world.compile(app, passes),
            app.inputs,
            at_s=at_s,
            passes=passes,
            deadline_s=at_s + after / 100 if is_due else None,
        )
    if how == "cancel":
        driver.cancel("q0", queries[0][2] + after / 100)
    replies = driver.run()
    assert len(replies) == len(queries)
    for number, (app, _, _) in enumerate(queries):
        reply = replies[f"q{number}"]
        if number == 0 and reply.error is not None:
            named = reply.error.step is not None
            assert named if how not in ("cancel", "deadline") else isinstance(reply.error, QueryEnded)
        else:
            assert reply.outputs == interpret(app.graph, app.inputs)
    assert_nothing_is_left(driver)


def assert_shown_text_is_the_beginning(reply: Reply, driver: VirtualDriver) -> None:
    """Check that the text that was shown of each output is the beginning of that output."""
    shown: dict[str, str] = {}
    for _, action in driver.actions:
        if isinstance(action, Emit):
            shown[action.output] = shown.get(action.output, "") + action.text
    for output, text in shown.items():
        assert str((reply.outputs or {})[output]).startswith(text)


def test_most_random_applications_are_changed_by_each_pass() -> None:
    """Otherwise the properties above would say little about the passes."""
    changed, ops = Counter[str](), Counter[str]()
    profiles = dict.fromkeys((*BATCH_ENGINES, *LLM_ENGINES), Profile(max_efficient_batch=2))

    @given(apps())
    @settings(moderately, max_examples=100, derandomize=True)
    def count(app: App) -> None:
        changed["examples"] += 1
        ops.update({primitive.op for primitive in app.graph})
        ops["mapped decode"] += any(p.op == "decode" and p.is_mapped() for p in app.graph)
        ops["guard"] += any(p.arg("when") for p in app.graph)
        graph = app.graph
        for name, run_pass in PASSES.items():
            before, graph = graph, run_pass(graph, profiles, OPS)
            changed[name] += graph != before

    count()
    assert changed["examples"] >= 75
    for name in PASSES:
        assert changed[name] > changed["examples"] / 2, (name, changed)
    elsewhere = {
        "transform",
        "agent_run",
        "quote",
        "supported",
    }  # in random programs, agents, supported answers
    for op in {*OPS, "mapped decode", "guard"} - elsewhere:
        assert ops[op] > changed["examples"] / 12, (op, ops)


def test_random_templates_use_all_components_and_most_grow_and_stream() -> None:
    """Otherwise the properties above would say little about them."""
    seen = Counter[str]()

    @given(template_apps())
    @settings(moderately, max_examples=75, derandomize=True)
    def count(app: App) -> None:
        seen["examples"] += 1
        bodies = {str(p.setting("body")) for p in app.graph if p.op == "expand"}
        seen.update(bodies | {p.op for p in app.graph})
        _, driver = World().run(app)
        seen["text"] += any(isinstance(action, Emit) for _, action in driver.actions)

    count()
    for kind in ("agent_turn", "reduce_tree", "call", "condition", "select", "text"):
        assert seen[kind] > seen["examples"] / 6, (kind, seen)
