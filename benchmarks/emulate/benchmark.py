"""`stretto bench emulate`: can emulated servers keep their schedule, and what do they cost?

Servers, load and report are processes of their own. Steps last 30 ms whatever they compute, so that the load
is the one that is said; beside the simulator the steps have their predicted times.

    streamed      16 servers, 16 streams each, whose answers begin at different times
    not streamed  16 servers, 256 answers each
    memory, idle  what a server takes while nothing is asked
    beside sim    map-reduce summaries with Poisson arrivals, in virtual time and on emulated servers
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.emulate.beside_sim import NUM_LEVELS, arrivals_s, served, simulated_s
from benchmarks.emulate.load import Answered, SentRequest, ask_all
from benchmarks.emulate.servers import STEP_S, Spent, fleet, serving
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.trace.summary import quantile

SCHEDULE = "keeping the schedule, steps of 30 ms"
COST = "cost of a server at rest"
BESIDE_SIM = "map-reduce summaries in simulation and on emulated servers"
MAX_LAG = 0.02
MAX_BYTES = 5_000_000
MAX_DISTANCE = 0.05
_PROMPT = "Every house has a kitchen, and every kitchen has a table. "


@dataclass(frozen=True, slots=True)
class EmulateSize:
    """Sizes of the benchmark.

    Attributes:
        streams, answers: requests at once at each server, streamed and not.
        tokens: length of each answer.
        idle_servers: number of servers whose memory is measured.
        queries, servers_beside_sim, rate_per_s: size and load of the comparison with the simulator.
    """

    servers: int = 16
    streams: int = 16
    answers: int = 256
    tokens: int = 400
    idle_servers: int = 64
    idle_s: float = 5.0
    queries: int = 60
    servers_beside_sim: int = 2
    rate_per_s: float = 1.0


QUICK = EmulateSize(tokens=150, idle_s=2.0, queries=15)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about two minutes, or one if `quick`."""
    return measure(QUICK if options.quick else EmulateSize(), options)


def measure(size: EmulateSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for name, num, is_streamed in (("streamed", size.streams, True), ("not streamed", size.answers, False)):
        options.say(f"{size.servers} servers, {num} answers each, {name}")
        values, lag = _keep_schedule(size, num, is_streamed=is_streamed)
        rows.append(Row(SCHEDULE, f"{size.servers} × {num} {name}", values))
        goals.append(Goal(f"{size.servers} × {num} {name}: lag", lag, MAX_LAG, "lower"))
    options.say("servers at rest")
    server_bytes, idle_share = _rest(size)
    rest: dict[str, Value] = {
        "bytes_per_server": server_bytes,
        "share_of_a_core_idle": idle_share,
        "servers": size.idle_servers,
    }
    rows.append(Row(COST, "a server in a shared process", rest))
    goals.append(Goal("bytes of a server at rest", server_bytes, MAX_BYTES, "lower"))
    options.say("beside the simulator")
    beside, distance = _beside_sim(size, options.seed)
    rows += beside
    goals.append(Goal("mean latency beside the simulator, apart", abs(distance), MAX_DISTANCE, "lower"))
    notes = (
        "lag: seconds that parts of answers came late, and those that the clock slipped, per second that "
        "clients waited; what a client sees late includes its own process",
        "mean_request_s: an LLM request from its arrival at an instance to its end; in_servers_apart_s: what "
        "that adds to a query, in which two follow each other; http_and_own_s: the rest of the distance of "
        "the means, HTTP and our own work, on the same cores; http_and_own_share: its share of the mean",
        "servers, client and report share the cores of this machine",
    )
    return Report("emulate", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


def _keep_schedule(size: EmulateSize, num: int, *, is_streamed: bool) -> tuple[dict[str, Value], float]:
    """Keep many answers at many servers going; return what was seen, and the lag."""
    answer_s = size.tokens * STEP_S
    with serving(fleet(size.servers, STEP_S)) as servers:
        requests = [
            SentRequest(
                answer_s * (server + one * size.servers) / (num * size.servers),
                url,
                f"{server} {one} {_PROMPT * 4}",
                size.tokens,
                is_streamed,
            )
            for one in range(num)
            for server, url in enumerate(servers.urls)
        ]
        begun_s = time.monotonic()
        answers = ask_all(requests)
        taken_s = time.monotonic() - begun_s
        spent = servers.spent()
    lag = (spent.late_s + spent.slipped_s) / spent.waited_s
    return _seen(answers, spent, answer_s, taken_s, lag), lag


def _beside_sim(size: EmulateSize, seed: int) -> tuple[list[Row], float]:
    """Run the same queries in virtual time and on emulated servers; return what was seen, and by which share
    the mean latency on emulated servers is above the other.
    """
    planned = fleet(size.servers_beside_sim)
    arrivals = arrivals_s(size.queries, size.rate_per_s, seed)
    before: list[Spent] = []
    with serving(planned) as servers:
        found = served(planned, servers.urls, arrivals, lambda: before.append(servers.spent()))
        spent = servers.spent()
    latencies_s, request_s = simulated_s(planned, arrivals)
    simulated_mean_s, served_mean_s = statistics.fmean(latencies_s), statistics.fmean(found.latencies_s)
    distance = served_mean_s / simulated_mean_s - 1
    in_servers_s = NUM_LEVELS * (found.request_s - request_s)
    http_and_own_s = served_mean_s - simulated_mean_s - in_servers_s
    emulated: dict[str, Value] = {
        **_latencies(found.latencies_s),
        "mean_request_s": found.request_s,
        "mean_apart": distance,
        "mean_request_apart": found.request_s / request_s - 1,
        "in_servers_apart_s": in_servers_s,
        "http_and_own_s": http_and_own_s,
        "http_and_own_share": http_and_own_s / served_mean_s,
        "own_cpu_s_per_query": found.cpu_s / size.queries,
        "servers_cpu_s_per_query": (spent.cpu_s - before[0].cpu_s) / size.queries,
        "servers_lag": (spent.late_s - before[0].late_s) / (spent.waited_s - before[0].waited_s),
        "servers_slipped_s": spent.slipped_s - before[0].slipped_s,
    }
    rows = [
        Row(BESIDE_SIM, "simulated", {**_latencies(latencies_s), "mean_request_s": request_s}, "simulated"),
        Row(BESIDE_SIM, "emulated servers", emulated),
    ]
    return rows, distance


def _seen(
    answers: Sequence[Answered], spent: Spent, answer_s: float, taken_s: float, lag: float
) -> dict[str, Value]:
    late_s = [answer.whole_s - answer_s for answer in answers]
    return {
        "lag": lag,
        "mean_late_s": statistics.fmean(late_s),
        "p99_late_s": quantile(late_s, 0.99),
        "most_late_s": spent.most_late_s,
        "slipped_s": spent.slipped_s,
        "events_per_s": sum(answer.num_chunks for answer in answers) / taken_s,
        "share_of_a_core": spent.cpu_s / taken_s,
        "answers": len(answers),
    }


def _rest(size: EmulateSize) -> tuple[float, float]:
    """Return the bytes of a server at rest, and the share of a core that all of them take."""
    with serving(fleet(1)) as one:
        alone = one.spent()
    with serving(fleet(1 + size.idle_servers)) as many:
        before = many.spent()
        time.sleep(size.idle_s)
        after = many.spent()
    server_bytes = (before.resident_bytes - alone.resident_bytes) / size.idle_servers
    return server_bytes, (after.cpu_s - before.cpu_s) / size.idle_s


def _latencies(latencies_s: Sequence[float]) -> dict[str, Value]:
    return {
        "mean_s": statistics.fmean(latencies_s),
        "p50_s": quantile(latencies_s, 0.5),
        "p99_s": quantile(latencies_s, 0.99),
        "queries": len(latencies_s),
    }
