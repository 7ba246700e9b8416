"""Settings of one call, samples, what happens if a generation fails, and variables that are no values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.programs import Desk, desk_llm
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine
from stretto.graph.strategy import Strategy
from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable, UserError


@P.SemanticFunction(max_tokens=50)
def joke(topic: P.SemanticVariable) -> None:
    """Tell a joke about {{topic}}: {{output:text}}"""


@P.SemanticFunction
def rated(topic: P.SemanticVariable, rating: P.Output = P.Output(max_tokens=4, stop="!")) -> None:
    """{{topic}}: {{output:text}} Rated: {{rating}}"""


def test_a_call_has_settings_of_its_own() -> None:
    desk = Desk(lambda prompt: "ha")
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        warm = joke.using(temperature=0.5, seed=7, stop=["."], max_tokens=9, ignore_eos=True)
        assert joke("cats").get() == warm("cats").get() == "ha"
        rated.using(max_tokens=5, n=2)("dogs")[1].get()
        text, rating = rated("dogs")
        assert (text.get(), rating.get()) == ("ha", "ha")
    plain, warmed, *rest = desk.decodes
    assert (plain.max_tokens, plain.temperature, plain.stop) == (50, 0.0, ())
    assert (plain.ignore_eos, warmed.ignore_eos) == (False, True)
    assert (warmed.max_tokens, warmed.temperature, warmed.seed, warmed.stop) == (9, 0.5, 7, (".",))
    assert [(one.max_tokens, one.stop) for one in rest] == [
        (5, ()),
        (5, ("!",)),
        (5, ("!",)),
        (128, ()),
        (4, ("!",)),
    ]


def test_calls_with_the_same_settings_share_their_plan() -> None:
    desk = Desk()
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        for topic in ("cats", "dogs", "ants"):
            joke.using(temperature=0.5)(topic).get()
        assert len(runtime.plan_cache._plans) == 1


def test_equal_calls_differ_if_they_are_sampled_without_a_seed() -> None:
    desk = Desk()
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        for sampled in (joke.using(temperature=1.0), joke.using(temperature=1.0, seed=3), joke.using()):
            calls = [sampled("cats") for _ in range(3)]
            for call in calls:
                call.get()
    seeds = [one.seed for one in desk.decodes]
    assert len(set(seeds[:3])) == 3
    assert seeds[3:] == [3, 3, 3, 0, 0, 0]
    assert not any(one.draws_seed for one in desk.decodes)


def test_samples_of_one_call_have_seeds_of_their_own() -> None:
    desk = Desk()
    with Runtime([desk_llm(desk)]) as runtime, P.Client(runtime):
        for settings in ({"temperature": 1.0, "seed": 3}, {"seed": 3}):
            joke.using(n=3, **settings)("cats").get()
    assert sorted(one.seed for one in desk.decodes[:3]) == [3, 4, 5]
    assert [one.seed for one in desk.decodes[3:]] == [3, 3, 3]


def test_samples_are_a_list_also_behind_a_transform() -> None:
    numbers = iter(range(100))
    desk = Desk(lambda prompt: str(next(numbers)))
    with Runtime([desk_llm(desk), transforms_engine()]) as runtime, P.Client(runtime):
        found = joke.using(n=3, temperature=1.0)("cats").get()
        assert sorted(found) == ["0", "1", "2"]
        assert joke.using(n=1)("cats").get() == ["3"]

        @P.SemanticFunction
        def count(x: P.SemanticVariable, y: P.Output = P.Output(transform="number", n=2)) -> None:
            """{{x}} {{y}}"""

        assert sorted(count("x").get()) == [4, 5]
        shown = joke(P.join(joke.using(n=2)("dogs"), separator=" and "))
        shown.get()
    assert desk.prompts[-1] in ("Tell a joke about 6 and 7: ", "Tell a joke about 7 and 6: ")


def failing(times: int) -> tuple[Callable[[str], str], list[str]]:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) <= times:
            raise EngineFailure("a bad day")
        return "ha"

    return answer, asked


@in_virtual_time
async def test_a_generation_that_fails_is_tried_again_or_made_elsewhere() -> None:
    answer, asked = failing(2)
    other = Desk(lambda prompt: "from the other one")
    engines = [
        desk_llm(Desk(answer), in_thread=False),
        desk_llm(other, in_thread=False).changed(name="other"),
    ]
    async with Runtime(engines) as runtime, P.Client(runtime):
        assert await joke.using(retries=2)("cats") == "ha"
        assert len(asked) == 3
        asked.clear()
        with pytest.raises(EngineFailure, match="a bad day"):
            await joke.using(retries=1)("cats")
        asked.clear()
        assert await joke.using(fallback="other")("cats") == "from the other one"
        assert await joke.using(engine="other")("cats") == "from the other one"
    assert len(other.prompts) == 2


def test_all_steps_of_a_generation_have_its_strategy() -> None:
    with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime):
        joke.using(timeout_s=9, retries=2, backoff_s=0.1)("cats").get()
        (plan,) = runtime.plan_cache._plans.values()
    strategies = {primitive.name: primitive.strategy for primitive in plan.graph}
    assert strategies == dict.fromkeys(
        ("joke.text.prompt", "joke.text"), Strategy(timeout_s=9, retries=2, backoff_s=0.1)
    )


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: joke.using(temprature=1),
            "joke: generation has no setting 'temprature'; it has max_tokens, ",
        ),
        (lambda: joke.using(n=0), "joke: n must be a whole number from 1 to 64, got 0"),
        (lambda: joke.using(retries=-1), "joke: retries is -1"),
        (lambda: joke.using(timeout_s=0), "joke: timeout_s is 0"),
        (lambda: joke.using(fallback=3), "joke: fallback must be the name of an engine, got 3"),
        (lambda: joke.using(max_tokens=0), "joke: max_tokens must be at least 1"),
        (lambda: P.SemanticFunction(n=2)(rated_plain), "rated_plain: n=2 is for the last output"),
    ],
)
def test_unusable_settings_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def rated_plain(topic: P.SemanticVariable) -> None:
    """{{topic}}: {{output:text}} Rated: {{output:rating}}"""


def test_what_does_not_fit_a_call_is_refused() -> None:
    with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime):
        with pytest.raises(ConfigError, match="there is no engine 'nowhere'"):
            joke.using(fallback="nowhere")("cats")
        with pytest.raises(UserError, match="map makes a list already"):
            joke.using(n=2).map(["a", "b"])


def test_a_variable_is_no_value() -> None:
    with Runtime([desk_llm(Desk())]) as runtime, P.Client(runtime):
        one, two = joke("a"), joke("b")
        for use in (
            lambda: bool(one),
            lambda: one == "yes",
            lambda: one != "yes",
            lambda: two == 3,
            lambda: "yes" in [one, two],
            lambda: str(one),
            lambda: f"{one}",
        ):
            with pytest.raises(UserError, match="SemanticVariable"):
                use()
        assert one in [two, one]
        assert one != two
        assert len({one, two, one}) == 2
        assert one is not None


def test_a_closed_runtime_says_so() -> None:
    async def main() -> None:
        runtime = Runtime([desk_llm(Desk(), in_thread=False)])
        with pytest.raises(UserError, match="is not running: use `async with"):
            await runtime.open_session()
        async with runtime, P.Client(runtime):
            variable = joke("a")
            assert await variable
        with pytest.raises(UserError, match="has been closed"):
            await runtime.open_session()
        with pytest.raises(UserError, match="without a client"):
            joke("a")

    asyncio.run(main())


def test_an_unavailable_engine_falls_back_at_once() -> None:
    def away(prompt: str) -> str:
        raise EngineUnavailable("gone")

    engines = [desk_llm(Desk(away)), desk_llm(Desk(lambda prompt: "here")).changed(name="other")]
    with Runtime(engines) as runtime, P.Client(runtime):
        assert joke.using(fallback="other", retries=0)("cats").get() == "here"
