"""`stretto bench recognition`: requests of plain traffic joined with the program that they belong to, and
what that costs in time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce

from benchmarks.recognition.calls import Joined, TrueCall, add, interleaved, recognise
from benchmarks.recognition.costs import answer_rows, memory_rows, prompt_rows
from benchmarks.recognition.made_up import made_up_calls
from benchmarks.recognition.recorded import recorded_calls
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row

JOINED = "calls joined with their program (%)"
KINDS = "later calls of made-up sessions, by kind (%)"
_REPORTED = 100
"""First seed of sessions that are reported. Smaller ones were used to choose the rules."""


@dataclass(frozen=True, slots=True)
class RecognitionSize:
    """Sizes of the benchmark.

    Attributes:
        num_sessions: made-up sessions of a seed.
        seeds: number of seeds.
        num_programs: programs whose memory is measured.
        repeats: number of times that each time is measured.
    """

    num_sessions: int = 1000
    seeds: int = 3
    num_programs: int = 20_000
    repeats: int = 200


QUICK = RecognitionSize(num_sessions=300, seeds=1, num_programs=5_000, repeats=50)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: some minutes, or less than one if `quick`."""
    return measure(QUICK if options.quick else RecognitionSize(), options)


def measure(size: RecognitionSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says."""
    made_up = [
        made_up_calls(size.num_sessions, _REPORTED + options.seed + number) for number in range(size.seeds)
    ]
    rows, seen = _made_up_rows(made_up, options)
    if options.data is not None:
        for name, sessions in recorded_calls(options.data, options.seed).items():
            rows.append(_row(name, recognise(interleaved(sessions))))
    options.say("costs")
    costs = [*prompt_rows(size.repeats), *answer_rows(size.repeats), *memory_rows(size.num_programs)]
    times = {row.name: float(row.values["median_ms"] or 0.0) for row in costs if "median_ms" in row.values}
    goals = (
        Goal("later calls joined rightly (%)", _percent(seen.right, seen.later), 97.0, "higher"),
        Goal("later calls joined wrongly (%)", _percent(seen.wrong, seen.later), 1.0, "lower"),
        Goal("first calls joined wrongly (%)", _percent(seen.wrong_openings, seen.openings), 2.0, "lower"),
        *(
            Goal(f"{name}: processor time (ms)", time, 0.2 if "12 kB" in name else 1.0, "lower")
            for name, time in times.items()
            if "prompt" in name
        ),
    )
    notes = (
        f"made-up sessions: {size.num_sessions} of each seed from {_REPORTED} on; one begins in a second",
        "a join counts as wrong though it is doubtful",
        "times are processor time, without the parsing of JSON, which a router does in any case",
        "no recorded sessions without --data"
        if options.data is None
        else f"recorded sessions of {options.data}",
    )
    return Report("recognition", options.seed, asdict(size), (*rows, *costs), goals, notes)


def _made_up_rows(
    made_up: Sequence[Sequence[Sequence[TrueCall]]], options: BenchmarkOptions
) -> tuple[list[Row], Joined]:
    """Return the rows of made-up sessions, and the counts of all of them."""
    rows, all_seen = [], []
    for number, sessions in enumerate(made_up):
        options.say(f"made-up sessions, seed {_REPORTED + options.seed + number}")
        all_seen.append(recognise(interleaved(sessions)))
        rows.append(_row(f"made up, seed {_REPORTED + options.seed + number}", all_seen[-1]))
    calls = interleaved(made_up[0])
    rows.append(_row("the first of these, answers not read", recognise(calls, reads_answers=False)))
    middle_s = calls[len(calls) // 2].start_s
    rows.append(_row("the first of these, after a restart", recognise(calls, restart_s=middle_s)))
    seen = reduce(add, all_seen)
    for kind, (right, wrong, lost) in sorted(seen.by_kind.items()):
        num = right + wrong + lost
        values = {"calls": num, "right": _percent(right, num), "wrong": _percent(wrong, num)}
        rows.append(Row(KINDS, kind, {**values, "not_joined": _percent(lost, num)}, "simulated"))
    return rows, seen


def _row(name: str, seen: Joined) -> Row:
    values = {
        "later_calls": seen.later,
        "right": _percent(seen.right, seen.later),
        "wrong": _percent(seen.wrong, seen.later),
        "not_joined": _percent(seen.lost, seen.later),
        "doubtful": _percent(seen.doubtful, seen.later),
        "wrong_and_not_doubtful": _percent(seen.wrong_sure, seen.later),
        "first_calls": seen.openings,
        "first_calls_wrong": _percent(seen.wrong_openings, seen.openings),
    }
    return Row(JOINED, name, values, "simulated")


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
