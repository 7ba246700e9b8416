"""What is filled once: ten calls over one long text, one answer with many readers, and a team of agents.

Four instances serve semantic functions; the texts are made up, and a token is four characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.parrot.agents import coding
from benchmarks.parrot.contestants import OURS, contestant, is_there
from benchmarks.parrot.machines import a6000
from benchmarks.parrot.recorded import in_rounds, infinite_share, load_calls
from benchmarks.parrot.simulated import simulate
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
_NUM_TEAMS, _NUM_FILES = 8, 8
_LEAST_OF_INFINITE, _LEAST_OF_TEAMS = 0.97, 0.7


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


def measure_sharing(options: BenchmarkOptions) -> tuple[list[Row], list[Goal]]:
    """Return the tables of what is filled, and what ours must reach."""
    rows, goals = list[Row](), list[Goal]()
    for name in ("automatic", *OURS):
        if not is_there(name):
            continue
        options.say(f"sharing, {name}")
        for row, goal in (
            *_cases(name, options.seed),
            *_readers(name, options.seed),
            *_agents(name, options),
        ):
            rows.append(row)
            if goal is not None and name == "stretto":
                goals.append(goal)
    return rows, goals


def _filled(name: str, arrivals: Sequence[Arrival], seed: int, num_instances: int = _NUM_INSTANCES) -> int:
    return simulate(contestant(name), a6000(), num_instances, arrivals, seed).filled_tokens


def _cases(name: str, seed: int) -> Iterator[tuple[Row, Goal | None]]:
    for case in CASES:
        at_once = _filled(name, case.arrivals(0.0), seed)
        values: dict[str, Value] = {
            "at_once": at_once,
            "one_by_one": _filled(name, case.arrivals(30.0), seed),
        }
        goal = Goal(f"{case.name}, at once", at_once, _MOST_FILLED, "lower") if case.can_share else None
        yield Row(SHARING, f"{case.name}, {name}", values, "simulated"), goal


def _readers(name: str, seed: int) -> Iterator[tuple[Row, Goal | None]]:
    for is_chain in (False, True):
        workflow = read_by_eight(is_chain=is_chain)
        answer = _NUM_READERS * _ANSWER_TOKENS
        others = workflow.prompt_tokens - answer
        filled = _filled(name, [Arrival(0.0, workflow)], seed)
        times = (filled - others) / _ANSWER_TOKENS
        label = f"{workflow.kind}, {name}"
        yield Row(READERS, label, {"times": times}, "simulated"), Goal(workflow.kind, times, 1.1, "lower")


def read_by_eight(*, is_chain: bool) -> Workflow:
    """Return a workflow in which eight calls begin with one answer, side by side or one after the other."""
    calls = [Call("write", (filler("write", 100),), _ANSWER_TOKENS)]
    for number in range(_NUM_READERS):
        before = (Output(calls[-1].name),) if is_chain and number else ()
        calls.append(Call(f"read{number}", (Output("write"), filler(f"task {number}", 20), *before), 30))
    return Workflow("one after the other" if is_chain else "side by side", tuple(calls))


def _agents(name: str, options: BenchmarkOptions) -> Iterator[tuple[Row, Goal | None]]:
    team = coding("project", _NUM_FILES)
    last = team.calls[-1]
    tokens_of_team = team.tokens_of(last) + _NUM_FILES * last.num_output
    teams = [Arrival(0.0, coding(f"project {number}", _NUM_FILES)) for number in range(_NUM_TEAMS)]
    outcome = simulate(contestant(name), a6000(), 1, teams, options.seed, kv_tokens=2 * tokens_of_team)
    share = 1 - outcome.filled_tokens / outcome.prompt_tokens
    label = "eight teams at once, KV for two"
    yield (
        Row(AGENTS, f"{label}, {name}", {"found": share}, "simulated"),
        Goal(label, share, _LEAST_OF_TEAMS, "higher"),
    )
    if options.data is not None:
        calls = load_calls(options.data)
        outcome = simulate(contestant(name), a6000(), 1, in_rounds(calls), options.seed)
        found, most = 1 - outcome.filled_tokens / outcome.prompt_tokens, infinite_share(calls)
        values: dict[str, Value] = {"found": found, "infinite_cache": most}
        label = "57 recorded calls"
        yield (
            Row(AGENTS, f"{label}, {name}", values, "simulated"),
            Goal(
                f"{label}: found over that of an infinite cache", found / most, _LEAST_OF_INFINITE, "higher"
            ),
        )
