"""The virtual-time driver: when things happen, and that they always happen alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.faults import Death, FaultPlan, Refusal
from support.fleets import FleetWatch
from support.machines import compiled

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from stretto.cluster.messages import StopInstance
from stretto.costs.mean_output import num_tokens
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineFailure,
    EngineUnavailable,
    QueryCancelled,
)
from stretto.model.profile import Profile
from stretto.model.tasks import LLMTask, Task
from stretto.model.values import KV, Segment
from stretto.sched.actions import Admit, Release, StartBatch, WakeAt
from stretto.sim.driver import VirtualDriver
from stretto.sim.profiled_llm import ProfiledLLM

EMBED = "graph g(%xs: list[text])\n%v = embed(each %xs) : list[vector] @e\nreturn %v"
ANSWER = (
    'graph g(%q: text)\n%k = prefill([c"Answer: ", %q]) : kv @llm\n%a = decode(%k) : text @llm\nreturn %a'
)
LONG = "long question " * 40


def batch(**changes: object) -> Deployment:
    options = {"profile": Profile(1.0, 0.5, 4), "timeout_s": None, **changes}
    return deploy("e", FakeBatch, options.pop("config", FakeBatchConfig()), **options)  # type: ignore[arg-type]


def llm(**changes: object) -> Deployment:
    options = {"profile": Profile(1.0, 0.01, 4, 0.1), "timeout_s": None, "keeps_state": True, **changes}
    return deploy("llm", FakeLLM, options.pop("config", FakeLLMConfig()), contract="llm", **options)  # type: ignore[arg-type]


def driver(*engines: Deployment, **options: object) -> VirtualDriver:
    return VirtualDriver(engines, check=True, **options)  # type: ignore[arg-type]


def end_s(run: VirtualDriver, query: str) -> float:
    found = run.recorder.queries[query].end_s
    assert found is not None
    return found


def starts(run: VirtualDriver) -> list[tuple[float, int, int]]:
    """Return (time, instance, units) of every batch."""
    return [(at_s, a.instance, a.num_units) for at_s, a in run.actions if isinstance(a, StartBatch)]


def test_a_batch_takes_what_its_profile_says() -> None:
    run = driver(batch())
    run.submit("1", compiled(EMBED), {"xs": list("abcdef")}, at_s=2.0)
    assert run.run()["1"].error is None
    assert starts(run) == [(2.0, 0, 4), (5.0, 0, 2)]
    assert end_s(run, "1") == 7.0
    assert [(span.start_s, span.end_s, span.outcome) for span in run.recorder.spans] == [
        (2.0, 5.0, "done"),
        (5.0, 7.0, "done"),
    ]


def test_what_happens_at_one_instant_is_handled_together() -> None:
    """Two arrivals and the end of a batch make one full batch."""
    run = driver(batch())
    run.submit("1", compiled(EMBED), {"xs": list("abcde")})
    run.submit("2", compiled(EMBED), {"xs": ["x"]}, at_s=3.0)
    run.submit("3", compiled(EMBED), {"xs": ["x", "y"]}, at_s=3.0)
    run.run()
    assert starts(run) == [(0.0, 0, 4), (3.0, 0, 4)]


def test_jitter_lengthens_by_its_seed() -> None:
    def ends(seed: int, jitter: float) -> float:
        run = driver(batch(), seed=seed, jitter=jitter)
        run.submit("1", compiled(EMBED), {"xs": list("ab")})
        run.run()
        return end_s(run, "1")

    assert ends(1, 0.0) == ends(2, 0.0) == 2.0
    assert 2.0 < ends(1, 0.5) < 3.0
    assert ends(1, 0.5) == ends(1, 0.5) != ends(2, 0.5)


def test_a_lost_batch_is_run_again_elsewhere_and_its_answer_never_heard() -> None:
    run = driver(batch(instances=2))
    run.submit("1", compiled(EMBED), {"xs": list("ab")})
    run.lose("e", 0, 1.5)
    run.lose("e", 1, 0.5)
    assert run.run()["1"].error is None
    assert starts(run) == [(0.0, 0, 2), (1.5, 2, 2)], "instance 2 came in the place of 1"
    assert [span.outcome for span in run.recorder.spans] == ["lost: e/0 died", "done"]
    assert end_s(run, "1") == 3.5


def test_an_instance_that_dies_at_the_moment_of_its_answer() -> None:
    """What happened first is first: the answer was under way before the death."""
    run = driver(batch())
    run.submit("1", compiled(EMBED), {"xs": list("ab")})
    run.lose("e", 0, 2.0)
    assert run.run()["1"].error is None
    assert end_s(run, "1") == 4.0, "the death was known of first"


def test_work_that_kills_every_instance_ends_its_query() -> None:
    run = driver(batch(max_attempts=3))
    run.submit("1", compiled(EMBED), {"xs": list("ab")})
    for at_s in (0.5, 1.0, 1.5):
        run.lose("e", 0, at_s)
    error = run.run()["1"].error
    assert isinstance(error, EngineUnavailable)
    assert error.step == "v"


def test_deadlines_and_cancels_come_on_time() -> None:
    run = driver(batch())
    run.submit("1", compiled(EMBED), {"xs": list("ab")}, deadline_s=1.25)
    run.submit("2", compiled(EMBED), {"xs": list("ab")})
    run.cancel("2", 1.5)
    replies = run.run()
    assert isinstance(replies["1"].error, DeadlineExceeded)
    assert isinstance(replies["2"].error, QueryCancelled)
    assert (end_s(run, "1"), end_s(run, "2")) == (1.25, 1.5)


def test_an_instance_too_slow_for_its_timeout_is_restarted() -> None:
    run = driver(batch(timeout_s=1.0, max_attempts=2))
    run.submit("1", compiled(EMBED), {"xs": list("ab")})
    assert run.run()["1"].error is not None
    given_up = [(at_s, action) for at_s, action in run.actions if isinstance(action, StopInstance)]
    assert given_up == [(1.0, StopInstance("e", 0, "kill")), (2.0, StopInstance("e", 1, "kill"))]


def test_alarms_do_not_pile_up() -> None:
    """Every little wait of the policy moves the one alarm; none is left behind for the timeout."""
    run = driver(batch(policy="throughput", timeout_s=300.0))
    for number in range(200):
        run.submit(str(number), compiled(EMBED), {"xs": ["x"]}, at_s=float(number))
    run.run()
    late = [at_s for at_s, action in run.actions if isinstance(action, WakeAt) and at_s > 250.0]
    assert late == []


def test_a_request_takes_prefill_and_tokens() -> None:
    run = driver(llm())
    run.submit("1", compiled(ANSWER), {"q": "x" * 36})
    reply = run.run()["1"]
    assert reply.outputs is not None
    text = str(reply.outputs["a"])
    (span,) = run.recorder.spans
    prefill_s = 1.0 + 0.01 * (num_tokens("Answer: ") + num_tokens("x" * 36))
    assert span.marks_s[0] > prefill_s
    assert span.marks_s[-1] == span.end_s == end_s(run, "1")
    assert len(span.marks_s) == len(text.split())
    assert run.streamed["1", "a"] == text


def test_requests_are_prefilled_by_priority_and_decoded_side_by_side() -> None:
    run = driver(llm())
    for number in range(3):
        run.submit(str(number), compiled(ANSWER), {"q": f"question {number}"})
    run.run()
    begun = [span.start_s for span in run.recorder.spans]
    assert begun == sorted(begun)
    assert begun[1] - begun[0] == pytest.approx(1.0, abs=0.1)
    assert max(end_s(run, str(number)) for number in range(3)) < 3 * end_s(run, "0")


SHARED = """
    graph g(%q: text, %k: kv)
      %head = prefill([c"Answer: ", %q]) : kv @llm
      %x    = decode(%k) {max_tokens=1} : text @llm
      %kv   = prefill([c"Answer: ", %q, c" or ", %x], hint=%head) : kv @llm
      %a    = decode(%kv) {max_tokens=2} : text @llm
      return %a
    """


def test_a_held_prefix_saves_its_prefill() -> None:
    """A held prefix is lost when its instance dies, or when the query that left it is released."""

    def seconds_of_the_whole(lose_s: float | None) -> float:
        run = driver(llm(profile=Profile(0.0, 0.01, 4, 0.5)))
        run.submit("1", compiled(SHARED), {"q": LONG, "k": KV((Segment("Hi"),))})
        if lose_s is not None:
            run.lose("llm", 0, lose_s)
        assert run.run()["1"].error is None
        (span,) = (s for s in run.recorder.spans if s.parts[0].step == "a" and s.outcome == "done")
        return span.marks_s[0] - span.start_s

    saved = seconds_of_the_whole(2.2) - seconds_of_the_whole(None)
    assert saved == pytest.approx(0.01 * (num_tokens("Answer: ") + num_tokens(LONG)))


def test_a_cancelled_prefill_leaves_the_segments_it_has_computed_and_makes_way() -> None:
    """Two segments of 4 s, and a reader after 5 s, which computes the second anew."""
    text = f"""
        graph g(%q: text)
          %ahead = prefill([c"{"a" * 1600}", c"{"b" * 1600}"]) : kv @llm
          %x     = call(%q) {{result="text"}} : text @e
          %kv    = prefill([c"{"a" * 1600}", c"{"b" * 1600}", %x], hint=%ahead) : kv @llm
          %a     = decode(%kv) {{max_tokens=2}} : text @llm
          return %a
        """
    slow = deploy("e", FakeBatch, FakeBatchConfig(), profile=Profile(base_s=5.0))
    run = driver(llm(profile=Profile(0.0, 0.01, 4, 0.0)), slow)
    run.submit("1", compiled(text), {"q": "x"})
    run.run()
    assert 9.0 <= end_s(run, "1") <= 9.1


def test_prefixes_go_with_their_query() -> None:
    run = driver(llm(instances=2))
    run.submit("1", compiled(ANSWER), {"q": "x"})
    run.submit("2", compiled(ANSWER), {"q": LONG})
    run.run()
    released = [(action.query, action.instance) for _, action in run.actions if isinstance(action, Release)]
    admitted = [
        (action.task.query, action.instance) for _, action in run.actions if isinstance(action, Admit)
    ]
    assert sorted(released) == sorted(admitted)
    assert all(isinstance(llm, ProfiledLLM) and not llm._held for llm in run.instances.llms.values())


def test_an_instance_that_crashes_is_lost_and_started_anew() -> None:
    """An error that is no `StrettoError` leaves `step`, as it would a real instance's thread."""
    crashes = iter([ZeroDivisionError("a bug in the engine")])

    def fail_on(task: LLMTask) -> BaseException | None:
        return next(crashes, None)

    run = driver(llm(config=FakeLLMConfig(fail_on=fail_on)))
    run.submit("1", compiled(ANSWER), {"q": "x"})
    assert run.run()["1"].error is None
    assert [span.outcome for span in run.recorder.spans][-1] == "done"
    assert len(run.recorder.spans) == 2


def test_a_crash_of_a_batch_engine_fails_the_batch() -> None:
    def fail_on(task: Task) -> BaseException | None:
        return ZeroDivisionError("a bug in the engine") if task.query == "1" else None

    run = driver(batch(config=FakeBatchConfig(fail_on=fail_on)))
    run.submit("1", compiled(EMBED), {"xs": ["x"]})
    run.submit("2", compiled(EMBED), {"xs": ["y"]})
    replies = run.run()
    assert isinstance(replies["1"].error, EngineFailure)
    assert "ZeroDivisionError: a bug in the engine" in str(replies["1"].error)
    assert replies["2"].error is None


def test_same_run_same_actions() -> None:
    def actions(seed: int) -> Sequence[str]:
        run = driver(batch(instances=2), llm(instances=2), seed=seed, jitter=0.3)
        for number in range(6):
            run.submit(f"e{number}", compiled(EMBED), {"xs": list("abcdef")}, at_s=number / 3)
            run.submit(f"l{number}", compiled(ANSWER), {"q": f"question {number}"}, at_s=number / 4)
        run.lose("e", 1, 2.0)
        run.lose("llm", 0, 2.5)
        run.run()
        return [f"{at_s!r} {action!r}" for at_s, action in run.actions]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_an_instance_that_refuses_gets_one_probe_at_a_time_until_it_answers() -> None:
    watch = FleetWatch()
    refusals = (Refusal("llm", 0, 1.0, 2.0), Refusal("llm", 0, 1.5, 3.0))
    run = driver(llm(max_attempts=2), faults=FaultPlan(refusals=refusals), observers=[watch])
    for query in "12":
        run.submit(query, compiled(ANSWER), {"q": "?"}, at_s=1.0)
    replies = run.run()
    assert not run.observers.dropped
    watch.check_end()
    assert [replies[query].error for query in "12"] == [None, None], "refusals cost no attempts"
    admitted_s = [at_s for at_s, action in run.actions if isinstance(action, Admit)]
    assert admitted_s[:2] == [1.0, 1.0]
    probes_s = [at_s for at_s in admitted_s if 1.0 < at_s < 3.0]
    assert probes_s == sorted({*probes_s}) != []
    assert sum(at_s >= 3.0 for at_s in admitted_s) == 2
    assert watch.state == {("llm", 0): "serving"}


def test_a_query_has_a_tenant_and_an_objective() -> None:
    run = driver(llm())
    run.submit("1", compiled(ANSWER), {"q": "?"}, tenant="ann", objective="latency")
    run.submit("2", compiled(ANSWER), {"q": "?"})
    run.run()
    tasks = [action.task for _, action in run.actions if isinstance(action, Admit)]
    assert [(task.query, task.tenant, task.objective) for task in tasks] == [
        ("1", "ann", "latency"),
        ("2", "", "throughput"),
    ]


def test_a_deadline_beyond_the_time_for_starts_is_kept() -> None:
    run = driver(batch(profile=Profile(2000.0, 0.0, 4)))
    run.submit("1", compiled(EMBED), {"xs": ["x"]}, deadline_s=700.0)
    assert isinstance(run.run()["1"].error, DeadlineExceeded)
    assert end_s(run, "1") == 700.0


@pytest.mark.parametrize("death", [Death("f", 0, 1.0), Death("e", 1, 1.0)])
def test_what_is_not_there_cannot_die(death: Death) -> None:
    with pytest.raises(ConfigError, match=f"no instance {death.instance} of an engine '{death.engine}'"):
        driver(batch(), faults=FaultPlan(deaths=(death,)))


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), -1.0])
def test_a_query_arrives_at_a_time(at_s: float) -> None:
    with pytest.raises(ConfigError, match="cannot arrive at"):
        driver(batch()).submit("q", compiled(EMBED), {"xs": ["x"]}, at_s=at_s)
