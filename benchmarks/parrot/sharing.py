"""What is filled once: ten calls over one long text, one answer with many readers, and a team of agents.

Four instances serve semantic functions; the texts are made up, and a token is four characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.parrot.agents import coding
from benchmarks.parrot.contestants import OURS, contestant, is_there
from benchmarks.parrot.machines import a6000
from benchmarks.parrot.recorded import RecordedCall, in_rounds, infinite_share, load_calls
from benchmarks.parrot.simulated import Outcome, simulate
from benchmarks.parrot.workflows import Arrival, Call, Output, Part, Workflow
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from stretto.sim.synthetic_output import filler

SHARING = "tokens filled for ten calls over 4,440 tokens, four instances"
READERS = "times that an answer with eight readers is filled, four instances"
AGENTS = "share of prompt tokens that agents find cached"
_NUM_CALLS, _LONG_TOKENS, _MOST_FILLED = 10, 4440, 5000
_NUM_INSTANCES = 4
_NUM_READERS, _ANSWER_TOKENS = 8, 640
_NUM_FILES = 8
_LEAST_OF_INFINITE, _LEAST_OF_TEAMS = 0.97, 0.7

_Found: TypeAlias = tuple[Row, list[Goal]]


@dataclass(frozen=True, slots=True)
class Case:
    """Ten calls over one long text.

    Attributes:
        parts_of: function from a call's number to its prompt.
        is_one_session: whether one session makes all calls.
        can_share: whether the prompts begin alike.
    """

    name: str
    parts_of: Callable[[int], tuple[Part, ...]]
    is_one_session: bool = False
    can_share: bool = True

    def arrivals(self, apart_s: float) -> list[Arrival]:
        """Return the calls, one every `apart_s` seconds; those of one session are made at once."""
        calls = [Call(f"answer{number}", self.parts_of(number), 20, 1) for number in range(_NUM_CALLS)]
        if self.is_one_session:
            return [Arrival(0.0, Workflow(self.name, tuple(calls)))]
        return [Arrival(apart_s * number, Workflow(self.name, (call,))) for number, call in enumerate(calls)]


_TEXT = filler("a long text", _LONG_TOKENS)


def _question(number: int) -> str:
    return filler(f"question {number}", 10)


CASES = (
    Case("A, B: one text in ten sessions", lambda number: (_TEXT, _question(number))),
    Case("C: one text in one session", lambda number: (_TEXT, _question(number)), is_one_session=True),
    Case(
        "E: one text, then constants of their own",
        lambda number: (_TEXT + f" {number:03}", _question(number)),
    ),
    Case(
        "D: a number after 54 characters",
        lambda number: (_TEXT[:54] + f"{number:03}" + _TEXT[54:], _question(number)),
        can_share=False,
    ),
)


def measure_sharing(num_teams: int, options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    """Return the tables of what is filled, and what ours must reach.

    Args:
        num_teams: number of teams of agents that work at the same time; 0 leaves them out.
    """
    rows, goals = list[Row](), list[Goal]()
    for name in filter(is_there, ("automatic", *OURS)):
        options.say(f"sharing, {name}")
        found = [_case(name, case, options.seed) for case in CASES]
        found += [_readers(name, is_chain=is_chain, seed=options.seed) for is_chain in (False, True)]
        if num_teams:
            found.append(_teams(name, num_teams, options.seed))
        if options.data is not None:
            found.append(_recorded(name, load_calls(options.data), options.seed))
        for row, to_reach in found:
            rows.append(row)
            goals += to_reach if name == "stretto" else []
    return rows, goals


def _run(name: str, arrivals: Sequence[Arrival], seed: int) -> Outcome:
    return simulate(contestant(name), a6000(), _NUM_INSTANCES, arrivals, seed)


def _case(name: str, case: Case, seed: int) -> _Found:
    at_once, one_by_one = (_run(name, case.arrivals(apart_s), seed) for apart_s in (0.0, 30.0))
    values: dict[str, Value] = {
        "at_once": at_once.filled_tokens,
        "last_at_s": max(at_once.kinds[case.name].latencies_s),
        "one_by_one": None if case.is_one_session else one_by_one.filled_tokens,
    }
    goals = [
        Goal(f"filled, {case.name}, {label.replace('_', ' ')}", tokens, _MOST_FILLED, "lower")
        for label in ("at_once", "one_by_one")
        if isinstance(tokens := values[label], int)
    ]
    return Row(SHARING, f"{case.name}, {name}", values, "simulated"), goals if case.can_share else []


def _readers(name: str, *, is_chain: bool, seed: int) -> _Found:
    workflow = read_by_eight(is_chain=is_chain)
    num_others = workflow.prompt_tokens - _NUM_READERS * _ANSWER_TOKENS
    times = (_run(name, [Arrival(0.0, workflow)], seed).filled_tokens - num_others) / _ANSWER_TOKENS
    goal = Goal(f"times filled, eight readers {workflow.kind}", times, 1.1, "lower")
    return Row(READERS, f"{workflow.kind}, {name}", {"times": times}, "simulated"), [goal]


def read_by_eight(*, is_chain: bool) -> Workflow:
    """Return a workflow in which eight calls begin with one answer, side by side or one after the other."""
    calls = [Call("write", (filler("write", 100),), _ANSWER_TOKENS)]
    for number in range(_NUM_READERS):
        before = (Output(calls[-1].name),) if is_chain and number else ()
        calls.append(Call(f"read{number}", (Output("write"), filler(f"task {number}", 20), *before), 30))
    return Workflow("one after the other" if is_chain else "side by side", tuple(calls))


def _teams(name: str, num_teams: int, seed: int) -> _Found:
    """Run teams of agents on one instance that can hold the KV of the last stage of two of them."""
    team = coding("project", _NUM_FILES)
    last = team.calls[-1]
    kv_tokens = 2 * (team.tokens_of(last) + _NUM_FILES * last.num_output)
    teams = [Arrival(0.0, coding(f"project {number}", _NUM_FILES)) for number in range(num_teams)]
    outcome = simulate(contestant(name), a6000(), 1, teams, seed, kv_tokens=kv_tokens)
    label, share = f"{num_teams} teams at once, KV for two", _found_share(outcome)
    goal = Goal(f"share found, {label}", share, _LEAST_OF_TEAMS, "higher")
    return Row(AGENTS, f"{label}, {name}", {"found": share}, "simulated"), [goal]


def _recorded(name: str, calls: Sequence[RecordedCall], seed: int) -> _Found:
    found = _found_share(simulate(contestant(name), a6000(), 1, in_rounds(calls), seed))
    most = infinite_share(calls)
    values: dict[str, Value] = {"found": found, "infinite_cache": most}
    label = "57 recorded calls"
    goal = Goal(f"{label}: found over that of one infinite cache", found / most, _LEAST_OF_INFINITE, "higher")
    return Row(AGENTS, f"{label}, {name}", values, "simulated"), [goal]


def _found_share(outcome: Outcome) -> float:
    return 1 - outcome.filled_tokens / outcome.prompt_tokens
