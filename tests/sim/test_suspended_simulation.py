"""Instances that are suspended at any moment, in virtual time: what is said does not show it."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.run_log import RunLog
from support.simulated_llm import GRAPHS, HEAD, PROFILE, TEXT, model

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.model.deployment import Deployment, deploy
from stretto.model.profile import Profile
from stretto.sim.driver import VirtualDriver
from stretto.sim.synthetic_output import drawn_lengths, filler, filler_output


def deployments(instances: int) -> list[Deployment]:
    return [
        deploy(
            "llm",
            FakeLLM,
            FakeLLMConfig(),
            contract="llm",
            instances=instances,
            profile=PROFILE,
            keeps_state=True,
            no_replica_s=100.0,
        ),
        deploy("e", FakeBatch, FakeBatchConfig(), profile=Profile(0.1, 0.01)),
    ]


def run(
    arrivals: list[tuple[float, int, int]],
    drains: list[tuple[float, int, bool]],
    *,
    instances: int = 2,
    is_simulated: bool = True,
    max_jump: int = 64,
    log: RunLog | None = None,
) -> VirtualDriver:
    """Return the driver after a run. An instance that is drained is followed by another one."""
    given = deployments(instances)
    driver = VirtualDriver(
        given,
        models={"llm": model(max_jump=max_jump)} if is_simulated else None,
        observers=(log,) if log else (),
        check=True,
    )
    for number, (at_s, graph, tokens) in enumerate(arrivals):
        driver.submit(f"q{number}", GRAPHS[graph], {"q": filler(f"{number % 3}", tokens)}, at_s=at_s)
    for at_s, slot, is_suspended in drains:
        driver.drain("llm", slot, at_s, "suspend" if is_suspended else "finish")
        driver.add("llm", given[0].replicas[0], at_s)
    driver.run()
    assert driver.system.is_idle()
    for instance in driver.instances.stepped():
        assert instance.is_idle()
        instance.scheduler.check_invariants()
    return driver


def said(driver: VirtualDriver) -> tuple[object, object]:
    return {query: (reply.outputs, reply.error) for query, reply in driver.replies.items()}, driver.streamed


queries = st.lists(
    st.tuples(st.integers(0, 20).map(lambda n: n / 4), st.integers(0, 2), st.integers(1, 40)),
    min_size=1,
    max_size=8,
)
times = st.one_of(st.floats(0.0, 12.0), st.integers(0, 96).map(lambda n: n / 8))
drains = st.lists(st.tuples(times, st.integers(0, 2), st.booleans()), min_size=1, max_size=5)
some = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)


@given(queries, drains, st.booleans())
@some
def test_suspending_changes_nothing_of_what_is_said(
    arrivals: list[tuple[float, int, int]], drained: list[tuple[float, int, bool]], is_simulated: bool
) -> None:
    undisturbed = run(arrivals, [], is_simulated=is_simulated)
    assert said(run(arrivals, drained, is_simulated=is_simulated)) == said(undisturbed)


@pytest.mark.parametrize("drained_s", [0.5, 1.0, 1.7, 2.4, 3.3])
def test_lengths_that_are_drawn_are_the_same_elsewhere(drained_s: float) -> None:
    known = LengthsBySource({("m", ""): output_lengths(dict.fromkeys(range(1, 25), 1))})

    def answers(*, is_drained: bool) -> dict[str, object]:
        source = filler_output(drawn_lengths(known, "m", 1))
        driver = VirtualDriver(deployments(2), models={"llm": model(output_source=source)})
        for number in range(6):
            driver.submit(f"q{number}", TEXT, {"q": f"{number}"}, at_s=number / 4)
        if is_drained:
            driver.drain("llm", 0, drained_s, "suspend")
            driver.lose("llm", 1, drained_s + 0.3)
        driver.run()
        return {query: reply.outputs for query, reply in driver.replies.items()}

    assert answers(is_drained=True) == answers(is_drained=False)


@given(queries, drains)
@some
def test_jumps_are_suspended_where_single_steps_are(
    arrivals: list[tuple[float, int, int]], drained: list[tuple[float, int, bool]]
) -> None:
    ends_s = []
    for max_jump in (1, 1000):
        driver = run(arrivals, drained, max_jump=max_jump)
        ends_s.append({query: record.end_s for query, record in driver.recorder.queries.items()})
    assert ends_s[0] == ends_s[1]


@pytest.mark.parametrize("max_jump", [1, 64])
def test_the_tokens_that_there_are_are_not_generated_again(max_jump: int) -> None:
    driver = VirtualDriver(
        deployments(1),
        models={"llm": model(max_jump=max_jump, output_source=filler_output(lambda task, decode: 24))},
        check=True,
    )
    driver.submit("q", TEXT, {"q": "x"})
    prompt = len(HEAD) // 4 + 2
    first_s = PROFILE.base_s + PROFILE.per_unit_s * prompt
    drained_s = first_s + 10.5 * PROFILE.per_output_s  # 11 tokens
    driver.drain("llm", 0, drained_s, "suspend")
    driver.add("llm", deployments(1)[0].replicas[0], drained_s)
    driver.run()
    again_s = PROFILE.base_s + PROFILE.per_unit_s * (prompt + 11)
    assert driver.recorder.queries["q"].end_s == pytest.approx(
        drained_s + again_s + (24 - 12) * PROFILE.per_output_s
    )
    usage = driver.recorder.spans[-1].usage
    assert usage is not None
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (prompt, 24)
