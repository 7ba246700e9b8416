"""The hits of placement policies on four instances beside those of one cache as large as all of theirs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.baselines import PLACEMENTS
from benchmarks.placement.conversations import conversations
from benchmarks.placement.hit_replay import Hits, Keyed, pooled_share, replay_hits
from benchmarks.placement.machines import machine
from benchmarks.placement.routed import routed
from benchmarks.placement.workloads import Request, make_requests, poisson_s
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from benchmarks.router.contestants import others
from stretto.cluster.placement import Placement
from stretto.cluster.prefix_hashes import PrefixHasher, salted_root
from stretto.trace.agents.formats import read_agent_trace
from stretto.trace.agents.requests import SizedPrompt
from stretto.trace.summary import quantile

POOL = "one cache for all"
CONVERSATIONS = "conversations"
POLICIES = ("round_robin", "lmetric", "prefix_threshold", "e2", "stretto")
_WITH_EVENTS = ", with KV events"
_NUM_INSTANCES = 4
_BLOCK_TOKENS = 64
_MOONCAKE = "Mooncake synthetic"
_MOONCAKE_FILE = "mooncake_synthetic.jsonl.gz"
_LEAST_OF_POOL = 0.99
_LEAST_OF_CONVERSATIONS = 0.985
_MOST_FIRST = 1.02
_LEAST_OF_MOONCAKE = 0.645
_MOST_IMBALANCE = 1.15
_MOST_LOST_POINTS = 0.01


@dataclass(frozen=True, slots=True)
class HitScene:
    """Requests whose hits are counted.

    Attributes:
        workload: name of the workload; "" for the trace of Mooncake, "conversations" for those.
        num: number of requests; None for all of the trace.
        num_groups: number of tools or videos; None for the workload's own.
        cache_tokens: size of each instance's cache; None for no limit.
    """

    name: str
    workload: str
    num: int | None
    rate_per_s: float = 0.0
    num_groups: int | None = None
    cache_tokens: int | None = machine("A6000").kv_tokens

    def requests(self, seed: int, data: Path | None) -> list[Keyed]:
        """Return the requests of a seed. The trace of Mooncake is the same for each."""
        if self.workload == CONVERSATIONS:
            assert self.num is not None, "conversations have no end"
            return conversations(seed, self.num, self.rate_per_s)
        if not self.workload:
            assert data is not None, "the trace is in the folder of data"
            return _of_trace(data / "traces" / _MOONCAKE_FILE)[: self.num]
        hasher, root = PrefixHasher(_BLOCK_TOKENS), salted_root("hits")
        made = self._made(seed, data)
        return [
            Keyed(at_s, one.num_tokens, one.output_tokens, hasher.hash_buffer(one.text, root), _BLOCK_TOKENS)
            for at_s, one in zip(poisson_s(len(made), self.rate_per_s, seed), made, strict=True)
        ]

    def texts(self, seed: int, data: Path | None) -> list[bytes]:
        """Return the prompts of the requests of a seed. Only for workloads with texts."""
        return [one.text for one in self._made(seed, data)]

    @property
    def has_texts(self) -> bool:
        """Whether the prompts are texts, which routers by others can place."""
        return self.workload not in ("", CONVERSATIONS)

    def _made(self, seed: int, data: Path | None) -> list[Request]:
        assert self.num is not None, "workloads have no end"
        return make_requests(self.workload, self.num, seed, data, num_groups=self.num_groups)


def hit_scenes(data: Path | None) -> Iterator[HitScene]:
    """Yield the scenes; that of Mooncake needs its trace."""
    yield HitScene("200 tools", "toolbench", 4000, 24.0, 200)
    yield HitScene("1,500 tools", "toolbench", 4000, 12.0, 1500)
    yield HitScene("videos", "video", 967, 1.5)
    for rate_per_s in (4.0, 8.0, 16.0, 32.0):
        yield HitScene(f"conversations, {rate_per_s:g}/s", CONVERSATIONS, 3000, rate_per_s)
    if data is not None and (data / "traces" / _MOONCAKE_FILE).exists():
        yield HitScene(_MOONCAKE, "", None, cache_tokens=None)


def table_of(scene: HitScene) -> str:
    """Return the name of a scene's table."""
    size = "no limit" if scene.cache_tokens is None else f"{scene.cache_tokens:,} tokens"
    return f"hits: {scene.name}, {_NUM_INSTANCES} caches of {size}"


def measure_hits(
    scenes: Sequence[HitScene], num_seeds: int, options: BenchmarkOptions
) -> tuple[list[Row], list[Goal]]:
    """Return a table for each scene, and what `stretto` must reach there.

    Routers by others, as far as they are installed, place the same requests where these have texts.
    """
    rows, goals = list[Row](), list[Goal]()
    for scene in scenes:
        seeds = range(options.seed, options.seed + (num_seeds if scene.workload else 1))
        pools, found = list[float](), dict[str, list[Hits]]()
        for seed in seeds:
            requests = scene.requests(seed, options.data)
            size = scene.cache_tokens
            pools.append(pooled_share(requests, None if size is None else _NUM_INSTANCES * size))
            for name, hits in _hits_of_seed(scene, seed, requests, options):
                found.setdefault(name, []).append(hits)
        pool = statistics.fmean(pools)
        rows.append(Row(table_of(scene), POOL, {"hit_share": pool}, "simulated"))
        rows += [Row(table_of(scene), name, _values(of, pool), "simulated") for name, of in found.items()]
        goals += _goals(scene, pool, found["stretto"], found["stretto" + _WITH_EVENTS])
        if scene.workload == CONVERSATIONS:
            best_s = min(_first_s(of) for of in found.values())
            what = f"{scene.name}: mean first token over that of the best policy"
            goals.append(Goal(what, _first_s(found["stretto"]) / best_s, _MOST_FIRST, "lower"))
    return rows, goals


def _hits_of_seed(
    scene: HitScene, seed: int, requests: Sequence[Keyed], options: BenchmarkOptions
) -> Iterator[tuple[str, Hits]]:
    """Yield the hits of each policy, without KV events and with them, and of each router by others."""

    def replay(policy: Placement, *, has_events: bool = False) -> Hits:
        profile, size = machine("A6000").profile, scene.cache_tokens
        return replay_hits(requests, policy, profile, _NUM_INSTANCES, size, has_events=has_events)

    for name in POLICIES:
        options.say(f"{table_of(scene)}, seed {seed}, {name}")
        yield name, replay(PLACEMENTS[name]())
        yield name + _WITH_EVENTS, replay(PLACEMENTS[name](), has_events=True)
    for router in others() if scene.has_texts else ():
        options.say(f"{table_of(scene)}, seed {seed}, {router.name}")
        with routed(router, _NUM_INSTANCES, scene.texts(seed, options.data)) as policy:
            yield router.name, replay(policy)


def _values(hits: Sequence[Hits], pool: float) -> dict[str, Value]:
    share = _share(hits)
    return {
        "hit_share": share,
        "over_pool": share / pool,
        "requests_imbalance": statistics.fmean(one.requests_imbalance for one in hits),
        "work_imbalance": statistics.fmean(one.work_imbalance for one in hits),
        "busy_share": statistics.fmean(one.busy_share for one in hits),
        "first_token_mean_ms": 1000 * _first_s(hits),
        "first_token_p99_ms": 1000 * statistics.fmean(quantile(one.first_s, 0.99) for one in hits),
    }


def _first_s(hits: Sequence[Hits]) -> float:
    return statistics.fmean(statistics.fmean(one.first_s) for one in hits)


def _goals(scene: HitScene, pool: float, without: Sequence[Hits], with_events: Sequence[Hits]) -> list[Goal]:
    best = max(_share(without), _share(with_events))
    lost = Goal(
        f"hits, {scene.name}: share lost without events",
        _share(with_events) - _share(without),
        _MOST_LOST_POINTS,
        "lower",
    )
    if not scene.workload:
        return [Goal(f"hits, {scene.name}", best, _LEAST_OF_MOONCAKE, "higher"), lost]
    imbalances = [
        max(
            statistics.fmean(one.requests_imbalance for one in hits),
            statistics.fmean(one.work_imbalance for one in hits),
        )
        for hits in (without, with_events)
    ]
    what = f"hits, {scene.name}: largest over mean work or requests"
    least = _LEAST_OF_CONVERSATIONS if scene.workload == CONVERSATIONS else _LEAST_OF_POOL
    return [
        Goal(f"hits, {scene.name}, over those of one cache", best / pool, least, "higher"),
        Goal(what, max(imbalances), _MOST_IMBALANCE, "lower"),
        lost,
    ]


def _share(hits: Sequence[Hits]) -> float:
    return statistics.fmean(one.hit_share for one in hits)


def _of_trace(path: Path) -> list[Keyed]:
    found = []
    for request in read_agent_trace(path).requests:
        prompt = request.prompt
        assert isinstance(prompt, SizedPrompt)
        blocks = [block.to_bytes(8, "little") for block in prompt.blocks]
        output = request.output_tokens or 1
        found.append(Keyed(request.arrival_s, prompt.num_tokens, output, blocks, prompt.block_tokens))
    return found
