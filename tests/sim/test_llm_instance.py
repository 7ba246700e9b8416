"""An LLM instance in virtual time: the production local scheduler, step by step or in jumps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from support.faults import Death, FaultPlan, Slowness
from support.machines import compiled
from support.run_log import RunLog
from support.simulated_llm import GRAPHS, HEAD, ITEMS, PROFILE, TEXT, model

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens, output_as_of
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import CapacityError, ConfigError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask
from stretto.sched.actions import Reprioritise
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import SimulatedModel
from stretto.sim.synthetic_output import drawn_lengths, filler, filler_output

MAPPED = compiled(
    'graph m(%xs: list[text])\n%ks = prefill([c"Read ", each %xs]) : list[kv] @llm\n'
    "%as = decode(each %ks) {max_tokens=12} : list[text] @llm\nreturn %as"
)


def engines(**changes: object) -> list[Deployment]:
    from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig

    options = {"profile": PROFILE, "timeout_s": None, "keeps_state": True, **changes}
    return [
        deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", **options),  # type: ignore[arg-type]
        deploy("e", FakeBatch, FakeBatchConfig(), profile=Profile(0.1, 0.01)),
    ]


def driver(made: SimulatedModel, log: RunLog, **options: object) -> VirtualDriver:
    engine_changes = options.pop("engine", {})
    return VirtualDriver(
        engines(**engine_changes),  # type: ignore[arg-type]
        models={"llm": made},
        observers=(log,),
        check=True,
        **options,  # type: ignore[arg-type]
    )


def by_instance(log: RunLog) -> tuple[list[str], dict[str, list[str]]]:
    """Return the messages in order, and the steps of each instance; jumps are noted when they end."""
    messages: list[str] = []
    steps: dict[str, list[str]] = {}
    for line in log.lines:
        fields = json.loads(line)
        if fields[1] == "Step":
            steps.setdefault(fields[3], []).append(line)
        elif fields[1] not in ("BlockStored", "BlockRemoved"):
            messages.append(line)
    return messages, steps


queries = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda n: n / 4),
        st.integers(0, 2),
        st.integers(1, 40),
        st.one_of(st.none(), st.floats(0.01, 12.0)),
    ),
    min_size=1,
    max_size=12,
)


# Somebody is preempted, and lets another in with the next step.
PREEMPTED = [
    (8.75, 2, 3, 10.720900997150924),
    (8.5, 1, 4, 1.5),
    (2.25, 0, 19, None),
    (9.5, 1, 7, None),
    (5.25, 1, 30, 3.361602044596191),
    (2.75, 0, 9, None),
    (2.0, 0, 28, 6.633812081494327),
    (0.25, 1, 30, None),
    (2.25, 0, 19, None),
    (1.5, 2, 39, None),
]


@example(PREEMPTED, "prefill_first", 24, 1, 0.3, None, 1.0)
@given(
    queries,
    st.sampled_from(("chunked", "prefill_first")),
    st.sampled_from((16, 24, 64)),
    st.integers(1, 3),
    st.sampled_from((0.0, 0.3)),
    st.sampled_from((None, 2.0, 30.0)),
    st.sampled_from((0.05, 1.0)),
)
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
def test_jumps_change_nothing(
    arrivals: list[tuple[float, int, int, float | None]],
    policy: str,
    num_blocks: int,
    instances: int,
    jitter: float,
    timeout_s: float | None,
    level_s: float,
) -> None:
    """The same messages at the same times, and the same steps, one by one or as many at once as can be."""
    logs = []
    for max_jump in (1, 3, 1000):
        made = model(max_jump=max_jump)
        made = replace(
            made,
            scheduler=replace(made.scheduler, policy=policy, num_blocks=num_blocks, level_s=level_s),
        )
        log = RunLog()
        run = driver(
            made, log, jitter=jitter, seed=3, engine={"instances": instances, "timeout_s": timeout_s}
        )
        for number, (at_s, graph, tokens, cancel_s) in enumerate(arrivals):
            text = filler(f"question {number % 3}", tokens)
            run.submit(f"q{number}", GRAPHS[graph], {"q": text}, at_s=at_s)
            if cancel_s is not None:
                run.cancel(f"q{number}", at_s + cancel_s)
        assert len(run.run()) == len(arrivals)
        assert_nothing_is_left(run)
        logs.append(by_instance(log))
    assert logs[0] == logs[1] == logs[2]


def assert_nothing_is_left(run: VirtualDriver) -> None:
    """Check that no work is left and every block is back."""
    assert run.system.is_idle()
    for instance in run.instances.stepped():
        assert instance.is_idle()
        instance.scheduler.check_invariants()
        assert instance.scheduler.pool.num_free == instance.scheduler.pool.num_blocks


def test_new_ranks_end_jumps_where_single_steps_would_hear_of_them() -> None:
    """Queries of ten calls each: as they start, the rest of them goes sooner."""
    logs = []
    for max_jump in (1, 1000):
        made = model(max_jump=max_jump)
        made = replace(made, scheduler=replace(made.scheduler, max_running=3, num_blocks=64))
        log = RunLog()
        run = driver(made, log, engine={"max_running": 30, "policy": "least_work"})
        for number in range(3):
            texts = [filler(f"{number} {place}", 15 + 5 * number) for place in range(10)]
            run.submit(f"q{number}", MAPPED, {"xs": texts}, at_s=0.3 * number)
        assert all(reply.error is None for reply in run.run().values())
        assert any(isinstance(action, Reprioritise) for _, action in run.actions)
        logs.append(by_instance(log))
    assert logs[0] == logs[1]


def test_the_query_of_which_less_waits_is_started_first() -> None:
    """Both simulations of an LLM, which are handed all requests at once."""
    for models in ({}, {"llm": model(scheduler=replace(model().scheduler, max_running=1))}):
        run = VirtualDriver(engines(max_running=30), models=models)
        run.submit("many", MAPPED, {"xs": [filler(f"{place}", 20) for place in range(8)]})
        run.submit("few", MAPPED, {"xs": [filler(f"few {place}", 20) for place in range(2)]}, at_s=0.1)
        run.run()
        ends_s = [run.recorder.queries[query].end_s or 0.0 for query in ("few", "many")]
        assert ends_s[0] < 0.6 * ends_s[1]


def test_a_jump_takes_one_event() -> None:
    log = RunLog()
    made = model(output_source=filler_output(as_max_tokens))
    run = driver(made, log)
    num_before = run.num_events
    run.submit("q", TEXT, {"q": "x" * 40})
    run.run()
    _, steps = by_instance(log)
    num_steps = len(steps[0])  # type: ignore[index]
    assert num_steps == 1 + 23
    num_wakes = sum('"Wake"' in line for line in log.lines)
    # submitted, started, the first piece, the last, done
    assert run.num_events - num_before - num_wakes == 5
    (span,) = run.recorder.spans
    num_prompt = 17 + 11
    assert span.usage is not None
    assert (span.usage.num_prompt_tokens, span.usage.num_output_tokens) == (num_prompt, 24)
    first_s = PROFILE.base_s + PROFILE.per_unit_s * num_prompt
    assert span.marks_s == [first_s, first_s + 23 * PROFILE.per_output_s]


def test_a_second_prompt_finds_the_shared_prefix() -> None:
    run = driver(model(keeps_released=True), RunLog())
    for number in range(2):
        run.submit(f"q{number}", TEXT, {"q": f"{number} and more"}, at_s=20.0 * number)
    run.run()
    first, second = (span.usage for span in run.recorder.spans)
    assert first is not None
    assert second is not None
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == len(HEAD) // 4 + 1


def test_a_request_that_never_fits_fails_alone() -> None:
    run = driver(model(), RunLog(), engine={"max_batch": 10_000})
    run.submit("long", TEXT, {"q": "x" * 4000})
    run.submit("short", TEXT, {"q": "x"})
    replies = run.run()
    assert isinstance(replies["long"].error, CapacityError)
    assert replies["short"].error is None


def test_a_slow_instance_is_slow_while_it_is() -> None:
    def end_s(*slow: Slowness) -> float:
        run = driver(model(output_source=filler_output(as_max_tokens)), RunLog(), faults=FaultPlan(slow=slow))
        run.submit("q", TEXT, {"q": "x"})
        run.run()
        found = run.recorder.queries["q"].end_s
        assert found is not None
        return found

    plain_s = end_s()
    assert end_s(Slowness("llm", 0, 0.0, 100.0, 2.0)) == 2 * plain_s
    assert end_s(Slowness("llm", 0, 1.0, 1.125, 3.0)) == plain_s + 2 * 0.0625
    assert end_s(Slowness("llm", 1, 0.0, 100.0, 2.0)) == plain_s


def test_a_dead_instance_takes_work_when_it_is_back() -> None:
    faults = FaultPlan(deaths=(Death("llm", 0, 1.0, back_s=7.0),))
    run = driver(model(), RunLog(), faults=faults)
    run.submit("q", TEXT, {"q": "x"})
    assert run.run()["q"].error is None
    first, second = run.recorder.spans
    assert (first.outcome, first.end_s) == ("lost: llm/0 died", 1.0)
    assert second.start_s == 7.0


def test_an_instance_that_dies_is_back_when_its_model_is_loaded() -> None:
    faults = FaultPlan(deaths=(Death("llm", 0, 1.0),))
    for loading_s in (0.0, 12.5):
        run = driver(replace(model(), loading_s=loading_s), RunLog(), faults=faults)
        run.submit("q", TEXT, {"q": "x"})
        assert run.run()["q"].error is None
        first, second = run.recorder.spans
        assert (first.start_s, first.end_s, second.start_s) == (0.0, 1.0, 1.0 + loading_s)


def test_lengths_are_drawn_by_model_and_template() -> None:
    known = LengthsBySource(
        {
            ("m", ""): output_lengths({3: 1, 9: 1}),
            ("m", "short"): output_lengths({1: 1}),
        }
    )

    def drawn(seed: int, step: str = "answer", limit: int = 100) -> list[int]:
        length = drawn_lengths(known, "m", seed, {"judge": "short"})
        tasks = (LLMTask(i, f"q{i}", step, (), Decode(limit)) for i in range(50))
        return [length(task, task.decode) for task in tasks if task.decode]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {3, 9}
    assert set(drawn(1, limit=5)) == {3, 5}
    assert set(drawn(1, "judge")) == {1}
    with pytest.raises(ConfigError, match="output lengths of model 'n' are not known"):
        drawn_lengths(known, "n", 1)


def test_lengths_are_of_a_query_a_step_and_an_item_however_often_they_are_tried() -> None:
    known = LengthsBySource({("m", ""): output_lengths(dict.fromkeys(range(1, 100), 1))})
    length = drawn_lengths(known, "m", 1)

    def drawn(task: int, item: int, query: str = "q") -> int:
        return length(LLMTask(task, query, "answer", (), Decode(100), item=item), Decode(100))

    assert [drawn(7, item) for item in range(20)] == [drawn(8, item) for item in range(20)]
    assert len({drawn(7, item) for item in range(20)}) > 10
    assert [drawn(7, item) for item in range(20)] != [drawn(7, item, "r") for item in range(20)]


def test_a_lost_answer_is_asked_for_again_after_the_timeout() -> None:
    run = driver(
        model(),
        RunLog(),
        faults=FaultPlan(lost_messages={"llm": frozenset({1, 2, 3, 4})}),
        engine={"timeout_s": 4.0},
    )
    run.submit("q", TEXT, {"q": "x"})
    assert run.run()["q"].error is None
    assert [span.outcome for span in run.recorder.spans] == ["lost: no answer in time", "done"]


def test_it_says_what_a_deterministic_engine_says() -> None:
    def outputs(**options: object) -> object:
        run = VirtualDriver(engines(), **options)  # type: ignore[arg-type]
        run.submit("q", ITEMS, {"q": "what?"})
        run.submit("r", TEXT, {"q": "who?"})
        return {query: reply.outputs for query, reply in run.run().items()}

    as_fake = model(output_source=output_as_of(FakeLLM(FakeLLMConfig())))
    assert outputs() == outputs(models={"llm": as_fake})
