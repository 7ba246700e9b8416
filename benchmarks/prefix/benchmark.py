"""`stretto bench prefix`: planted faults of prompts that the prefix guard finds, clean programs in which it
finds none, hits that repairs restore, and what it costs.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import process_time

from benchmarks.placement.hit_replay import Keyed, LRUCache
from benchmarks.prefix.clean import clean_programs
from benchmarks.prefix.faulty import planted_faults
from benchmarks.prefix.sessions import CHAT, PromptCall, calls_of
from benchmarks.prefix.texts import Texts, some_texts
from benchmarks.recognition.calls import interleaved
from benchmarks.recognition.recorded import recorded_calls
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, spread
from stretto.cluster.placement_request import PromptKey
from stretto.operate.prefix.fault import Fault
from stretto.operate.prefix.guard import PrefixGuard, PromptKind
from stretto.operate.prefix.seen_prompt import seen_prompt
from stretto.router.prompt_check import PromptCheck
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.repairs import RepairConfig, Repairs

FOUND = "planted faults"
CLEAN = "clean programs"
RESTORED = "hits restored by repairs (%)"
COSTS = "processor time of the guard for a prompt of 12 kB"
_REPORTED = 100
"""First seed that is reported. Smaller ones were used to choose the rules."""
_CLEAN_OF_A_KIND = 4


@dataclass(frozen=True, slots=True)
class PrefixSize:
    """Sizes of the benchmark.

    Attributes:
        seeds: number of seeds.
        num_prompts: prompts of 12 kB whose time is measured.
        repeats: number of times that it is.
    """

    seeds: int = 3
    num_prompts: int = 1000
    repeats: int = 5


QUICK = PrefixSize(seeds=1, num_prompts=200, repeats=3)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about a minute, or some seconds if `quick`."""
    return measure(QUICK if options.quick else PrefixSize(), options)


def measure(size: PrefixSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says."""
    texts = some_texts(options.data)
    rows: list[Row] = []
    for number in range(size.seeds):
        seed = _REPORTED + options.seed + number
        options.say(f"seed {seed}")
        rows += [*found_rows(texts, seed), *clean_rows(texts, seed), *restored_rows(texts, seed)]
    if options.data is not None:
        options.say("recorded sessions")
        for name, sessions in recorded_calls(options.data, options.seed).items():
            check = PromptCheck()
            for call in interleaved(sessions):
                _add(check, call.path, call.fields, call.answer)
            rows.append(_clean_row(f"{name} (recorded)", check))
    options.say("costs")
    costs = cost_rows(texts, size.num_prompts, size.repeats)
    planted = [row for row in rows if row.table == FOUND]
    clean = [row for row in rows if row.table == CLEAN and "recorded" not in row.name]
    restored = [float(row.values["restored"] or 0.0) for row in rows if row.table == RESTORED]
    goals = (
        Goal("planted faults found (%)", _share(planted, "found"), 100.0, "higher"),
        Goal("planted faults found by a door's sample (%)", _share(planted, "by_sample"), 100.0, "higher"),
        Goal("clean programs with a fault (%)", _share(clean, "faults"), 0.0, "lower"),
        Goal("hits restored, the least of all repairs (%)", min(restored, default=0.0), 95.0, "higher"),
        Goal("processor time a prompt, all losing (ms)", _most_ms(costs), 0.1, "lower"),
    )
    notes = (
        f"{size.seeds} seeds from {_REPORTED} on; texts of {texts.origin}",
        f"a seed: {len(planted_faults())} faults, {_CLEAN_OF_A_KIND * len(clean_programs())} clean programs",
        "hits: one cache without a limit, in blocks of 256 bytes",
    )
    return Report("prefix", options.seed, asdict(size), (*rows, *costs), goals, notes)


def _share(rows: Sequence[Row], name: str) -> float:
    return 100.0 * sum(bool(row.values[name]) for row in rows) / max(1, len(rows))


def _most_ms(rows: Sequence[Row]) -> float:
    return max(float(row.values.get("median_ms") or 0.0) for row in rows)


def _add(check: PromptCheck, path: str, fields: object, answer: object) -> None:
    assert isinstance(fields, dict)
    program = check.add(path, fields)
    if program is not None:
        if answer is not None:
            program.answer.take_whole(json.dumps(answer).encode())
        program.end(was_answered=answer is not None)


def checked(calls: Sequence[PromptCall], guard: PrefixGuard | None = None) -> PromptCheck:
    """Return the check of some calls."""
    check = PromptCheck(guard)
    for call in calls:
        _add(check, call.path, call.fields, call.answer)
    return check


def found_rows(texts: Texts, seed: int) -> list[Row]:
    """Return which faults are found: by looks at all prompts that lose blocks, and by a sample of them."""
    rows = []
    for name, planted in planted_faults().items():
        calls = calls_of(planted.build, texts, f"{name} {seed}")
        found, sampled = (list(checked(calls, guard).faults()) for guard in (None, PrefixGuard()))
        mine = [fault for _, fault in found if fault.rule in planted.rules]
        values = {
            "found": bool(mine),
            "by_sample": any(fault.rule in planted.rules for _, fault in sampled),
            "others": len(found) - len(mine),
            "told_as": mine[0].rule if mine else None,
            "place": mine[0].last.place if mine else None,
            "lost_tokens": mine[0].lost_tokens if mine else 0,
        }
        rows.append(Row(FOUND, f"{name}, seed {seed}", values, "simulated"))
    return rows


def clean_rows(texts: Texts, seed: int) -> list[Row]:
    """Return the faults that are told of clean programs, of which there are none."""
    return [
        _clean_row(
            f"{name} {number}, seed {seed}", checked(calls_of(build, texts, f"{name} {number} {seed}"))
        )
        for name, build in clean_programs().items()
        for number in range(_CLEAN_OF_A_KIND)
    ]


def _clean_row(name: str, check: PromptCheck) -> Row:
    found: list[tuple[PromptKind, Fault]] = list(check.faults())
    told = f"{found[0][1].rule} in {found[0][1].last.place}" if found else None
    return Row(CLEAN, name, {"requests": check.num_requests, "faults": len(found), "told": told}, "simulated")


def restored_rows(texts: Texts, seed: int) -> list[Row]:
    """Return the shares of prompts that a cache has: with a fault, repaired, and of the same program without
    the fault.
    """
    rows = []
    for name, planted in planted_faults().items():
        if planted.repair is None:
            continue
        faulty = calls_of(planted.build, texts, f"{name} {seed}")
        clean = calls_of(planted.clean, texts, f"{name} {seed}")
        repairs = Repairs([RepairConfig(**planted.repair)])
        hits = [_hit_share(faulty), _hit_share(faulty, repairs), _hit_share(clean)]
        restored = 100.0 * (hits[1] - hits[0]) / max(1e-9, hits[2] - hits[0])
        percents = [round(100.0 * hit, 1) for hit in hits]
        values = {**dict(zip(("faulty", "repaired", "clean"), percents, strict=True)), "restored": restored}
        rows.append(Row(RESTORED, f"{name}, seed {seed}", values, "simulated"))
    return rows


def _hit_share(calls: Sequence[PromptCall], repairs: Repairs | None = None) -> float:
    cache, num_hit, num_all = LRUCache(None, 64), 0, 0
    for call in calls:
        body = json.dumps(call.fields).encode()
        rules = ReadingRules(repairs=repairs or Repairs(()))
        routed = read_request(RequestHead(call.path, ""), rules, body)
        assert routed.key is not None
        keyed = Keyed(0.0, routed.num_tokens, 1, routed.key.blocks, routed.key.block_tokens)
        num_hit += cache.use(keyed)[0]
        num_all += routed.num_tokens
    return num_hit / num_all


def cost_rows(texts: Texts, num_prompts: int, repeats: int) -> list[Row]:
    """Return the processor time of the guard, on average over many prompts, and its memory."""
    rows = []
    for name, is_faulty in (("clean", False), ("each loses its cache", True)):
        times = []
        for _ in range(repeats):
            work = _prompts(texts, num_prompts, is_faulty=is_faulty)
            start_s = process_time()
            num_looks = _watch(PrefixGuard(), work)
            times.append(1000 * (process_time() - start_s) / num_prompts)
        rows.append(Row(COSTS, name, {**spread(times, "ms"), "looks": num_looks}))
    work = _prompts(texts, num_prompts, is_faulty=True)
    tracemalloc.start()
    guard = PrefixGuard()
    _watch(guard, work)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    rows.append(Row(COSTS, "memory after these", {"kb": round(memory / 1000)}))
    return rows


def _prompts(texts: Texts, num: int, *, is_faulty: bool) -> list[tuple[str, bytes, PromptKey]]:
    """Return the programs, bodies and keys of prompts of 12 kB, of 50 programs in turn."""
    head = "\n".join(texts.passages)[:11_000]
    work = []
    for number in range(num):
        line = f"request id: {number * 7919 + 1_000_003:x}{number:05x}\n" if is_faulty else ""
        history = "".join(f" turn {turn} of {number % 50}" for turn in range(number // 50 % 20))
        content = f"{line}{head}\n{number % 50:05}{history}".ljust(12_000)
        messages = [{"role": "system", "content": content}, {"role": "user", "content": "Go on."}]
        body = json.dumps({"model": "m", "messages": messages}).encode()
        key = read_request(RequestHead(CHAT, ""), ReadingRules(), body).key
        assert key is not None
        work.append((str(number % 50), body, key))
    return work


def _watch(guard: PrefixGuard, work: Sequence[tuple[str, bytes, PromptKey]]) -> int:
    """Show prompts to a guard as a door does, which has their keys; return how many it has looked at."""
    kind, num_looks = PromptKind("", "", "m", CHAT, ""), 0
    for program, body, key in work:
        if guard.arrived(kind, program, key.blocks, key.block_tokens):
            num_looks += 1
            guard.looked(kind, seen_prompt(program, CHAT, json.loads(body)))
    return num_looks
