"""Where the time of programs went: the parts add up, whatever happens, and stand on the critical path."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cluster.placement import Choice
from stretto.operate.explanations import explanation_json, explanation_text
from stretto.operate.live import FleetView, LiveWait, live_json, program_gauge
from stretto.operate.program_times import ProgramTimes
from stretto.operate.watch import Watch
from stretto.sched.request_trace import RequestTrace, Try


def arrive(times: ProgramTimes, program: str, now_s: float, arrived_s: float | None = None) -> RequestTrace:
    """Let a request of a program arrive."""
    trace = RequestTrace(f"r{now_s}", "/v1/chat/completions", now_s if arrived_s is None else arrived_s)
    trace.program, trace.placed_s, trace.model, trace.is_listed = program, now_s, "m", True
    times.on_request_arrived(trace, now_s)
    return trace


def send(trace: RequestTrace, now_s: float, held_s: float = 0.0) -> None:
    """Send a request to a worker."""
    waited_s = now_s - trace.arrived_s
    trace.tries.append(Try(0, "http://w", Choice(0), now_s, waited_s, held_s))


def end(times: ProgramTimes, trace: RequestTrace, now_s: float, status: int = 200) -> None:
    """End a request."""
    trace.end(status, now_s)
    times.on_request_ended(trace, now_s)
    times.check_invariants()


def test_each_second_of_a_chat_with_tools_has_its_place() -> None:
    times = ProgramTimes()
    for number in range(2):
        begun_s = 100.0 + number * 10.0
        trace = arrive(times, "p", begun_s)
        send(trace, begun_s + 3.0, held_s=2.0)
        trace.first_token_s = begun_s + 4.0
        trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 1000, 500, 21
        trace.paused_s = 0.5
        end(times, trace, begun_s + 6.0)
    (program,) = times.find("p")
    assert program.wall_s == 16.0
    assert program.path.to_json() == {
        "client": 4.0,
        "held": 4.0,
        "queue": 2.0,
        "prefill": 2.0,
        "decode": 3.0,
        "network": 1.0,
    }
    assert program.saved_s == pytest.approx(2 * 500 * 1.0 / 500)
    text = explanation_text(explanation_json(program, 200.0))
    assert "tool or client" in text
    assert "50% from caches" in text
    assert "requests: 2, open: 0, failed: 0" in text
    assert "prefill saved by caches, in all its requests: 2.000 s" in text


def test_what_caches_saved_is_not_known_of_answers_that_come_whole() -> None:
    times = ProgramTimes()
    trace = arrive(times, "p", 0.0)
    send(trace, 0.0)
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 1000, 500, 21
    end(times, trace, 2.0)
    (program,) = times.find("p")
    assert program.path.to_json() == {"decode": 2.0}
    assert "prefill saved by caches, in all its requests: not known" in explanation_text(
        explanation_json(program, 3.0)
    )


def test_only_the_longest_of_parallel_requests_is_on_the_path() -> None:
    times = ProgramTimes()
    first = arrive(times, "p", 0.0)
    send(first, 0.0)
    end(times, first, 1.0)
    short, long = arrive(times, "p", 1.5), arrive(times, "p", 1.5)
    send(short, 1.5)
    send(long, 2.0)
    end(times, short, 3.0)
    end(times, long, 9.0)
    (program,) = times.find("p")
    assert [one.number for one in program.critical()] == [0, 2]
    assert program.path.client == 0.5
    assert program.path.queue == 0.5
    assert program.path.total == program.wall_s == 9.0


def test_the_time_of_attempts_that_failed_is_told_apart() -> None:
    times = ProgramTimes()
    trace = arrive(times, "p", 0.0)
    send(trace, 1.0)
    send(trace, 4.0)
    end(times, trace, 5.0)
    (program,) = times.find("p")
    assert program.path.retries == 3.0
    assert program.path.queue == 1.0


def test_a_prompt_that_another_worker_computes_is_no_retry() -> None:
    """The prefill begins where its prompt was sent first, and ends with the first token of the answer."""
    times = ProgramTimes()
    trace = arrive(times, "p", 0.0)
    trace.tries.append(Try(0, "http://prompts", Choice(0), 1.0, 1.0, is_prefill=True))
    trace.tries.append(Try(1, "http://answers", Choice(1), 3.0, 1.0))
    trace.first_token_s, trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 4.0, 1000, 0, 11
    end(times, trace, 6.0)
    (program,) = times.find("p")
    assert program.path.to_json() == {"queue": 1.0, "prefill": 3.0, "decode": 2.0}


def test_a_slow_worker_is_told_from_a_long_prefill() -> None:
    times = ProgramTimes()
    for number in range(10):
        trace = arrive(times, f"p{number}", float(number))
        send(trace, float(number))
        slow_s = 5.0 if number == 9 else 0.0
        trace.first_token_s = number + 0.1 + slow_s
        trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 1000, 0, 2
        end(times, trace, number + 0.2 + slow_s)
    (program,) = times.find("p9")
    assert program.path.prefill == pytest.approx(0.1)
    assert program.path.worker_queue == pytest.approx(5.0)


def test_programs_are_bounded_and_open_ones_are_kept() -> None:
    times = ProgramTimes(max_programs=10)
    kept = arrive(times, "open", 0.0)
    for number in range(100):
        trace = arrive(times, str(number), 1.0 + number)
        end(times, trace, 1.5 + number, 499)
    assert len(times) == 10
    end(times, kept, 500.0, 503)
    (program,) = times.find("open")
    assert (program.wall_s, program.num_failed) == (500.0, 1)


def test_while_all_programs_are_open_new_ones_are_not_followed() -> None:
    times = ProgramTimes(max_programs=100)
    first = [arrive(times, f"first{number}", 0.0) for number in range(100)]
    late = [arrive(times, f"late{number}", 1.0) for number in range(10)]
    for trace in (*first, *late):
        end(times, trace, 2.0)
    assert {one.program for one in times} == {f"first{number}" for number in range(100)}
    arrive(times, "later", 3.0)
    assert len(times) == 100
    assert times.find("later")


def test_the_same_name_is_another_program_for_another_tenant() -> None:
    watch = Watch()
    for tenant in ("a", "b"):
        trace = RequestTrace(
            f"r{tenant}", "/v1/chat/completions", 1.0, tenant=tenant, program="p", placed_s=1.0
        )
        watch.observers.on_request_arrived(trace, 1.0)
    view = FleetView([], [LiveWait(("b", "p"), 2.0, "no room", is_held=True)], 2, 1)
    shown = live_json(watch, view, 5.0)
    rows = [(one["tenant"], one["state"], one["why"], one["for_s"]) for one in shown["programs"]]
    assert rows == [("b", "held", "no room", 3.0), ("a", "waiting", "", 4.0)]
    states = {"held": 1, "waiting": 1, "running": 0, "silent": 0}
    assert program_gauge(watch, view, 5.0) == shown["states"] == states


def test_programs_that_are_silent_for_long_are_not_counted_behind_any_number_of_others() -> None:
    watch = Watch()
    times = watch.programs
    slow = [arrive(times, f"slow{number}", 0.0) for number in range(60)]
    for number in range(30):
        end(times, arrive(times, f"old{number}", 1.0), 2.0)
    for trace in slow:
        end(times, trace, 400.0)
    view = FleetView([], [], 0, 0)
    assert program_gauge(watch, view, 410.0)["silent"] == 60
    assert {one["silent_s"] for one in live_json(watch, view, 410.0)["programs"]} == {10.0}


steps = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "send", "first", "end")),
        st.integers(0, 7),
        st.floats(0.0, 3.0),
        st.integers(0, 2000),
    ),
    max_size=60,
)


@given(steps)
def test_parts_add_up_to_the_wall_time_whatever_happens(steps: list[tuple[str, int, float, int]]) -> None:
    times, open_requests, now_s = ProgramTimes(max_programs=3), list[RequestTrace](), 10.0
    for what, which, seconds, tokens in steps:
        now_s += seconds
        trace = open_requests[which % len(open_requests)] if open_requests else None
        if what == "arrive" or trace is None:
            arrived_s = now_s - seconds / 2
            open_requests.append(arrive(times, f"p{which % 4}", now_s, arrived_s))
        elif what == "send":
            send(trace, now_s, held_s=seconds / 3)
        elif what == "first" and trace.tries:
            trace.first_token_s, trace.paused_s = now_s, seconds
        elif what == "end":
            trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = tokens, tokens // 3, tokens // 7
            open_requests.remove(trace)
            end(times, trace, now_s, 200 if tokens % 5 else 0)
    for program in times:
        assert math.isclose(program.path.total, program.wall_s, abs_tol=1e-6)
        assert min(program.path.to_json().values(), default=0.0) >= 0.0
