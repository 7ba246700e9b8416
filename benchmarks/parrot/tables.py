"""The tables and goals of the evaluation, made of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.parrot.contestants import OURS
from benchmarks.parrot.runs import Ran
from benchmarks.parrot.scenes import CLAIMS, PARTS, RATE_CLAIMS, Claim
from benchmarks.report import Goal, Row, Value

SPEED_UPS = "times better than the paper's baselines"
RATES = "rate of GPTs with 100 ms for each token"
CALL_PARTS = "Figure 3a: shares of the latency of calls"
_STRONGEST = "automatic"
_RATE_FIGURE, _RATE_KIND, _RATE_LIMIT_S = "17 GPTs", "GPTs", 0.1
_TIE = 1.01


def scene_rows(ran: Ran) -> Iterator[Row]:
    """Yield a row for each contestant and kind of workflow of a scene."""
    scene = ran.scene
    for kind in scene.kinds:
        for name in ran.results:
            values: dict[str, Value] = {
                "mean_s": ran.mean(name, kind),
                "p90_s": ran.mean(name, kind, "p90_s"),
                "token_ms": 1000 * ran.mean(name, kind, "per_token_s"),
                "decode_ms": 1000 * ran.mean(name, kind, "decode_s"),
                "KV_GiB": ran.total(name, "kv_peak_gib"),
                "filled": ran.total(name, "filled_tokens") / ran.total(name, "prompt_tokens"),
            }
            yield Row(f"Figure {scene.figure}, {kind}", f"{scene.name}, {name}", values, "simulated")


def parts_rows(runs: Sequence[Ran]) -> Iterator[Row]:
    """Yield which shares of a chain's latency are trips, waiting, and the work of the engine; then what the
    paper says.
    """
    found = [ran for ran in runs if ran.scene.figure == PARTS]
    for ran in found:
        for name in ran.results:
            mean_s, trips_s, engine_s = (
                ran.mean(name, "chain", quantity) for quantity in ("mean_s", "trips_s", "engine_s")
            )
            values: dict[str, Value] = {
                "trips": trips_s / mean_s,
                "waits": 1 - (trips_s + engine_s) / mean_s,
                "engine": engine_s / mean_s,
            }
            yield Row(CALL_PARTS, f"{ran.scene.name}, {name}", values, "simulated")
    if found:
        yield Row(CALL_PARTS, "paper: prompts of 150 to 4,000", {"engine": "0.3-0.7"}, "quoted")


def claim_rows(runs: Sequence[Ran]) -> tuple[list[Row], list[Goal]]:
    """Return how many times better ours are than each baseline, beside the paper's figures, and the goals."""
    rows, goals = [], []
    for claim in CLAIMS:
        found = [ran for ran in runs if _is_of(ran, claim)]
        if not found:
            continue
        values: dict[str, Value] = {"paper": claim.paper}
        for name in OURS:
            ratios = [_ratio(ran, claim, name) for ran in found if name in ran.results]
            if ratios:
                values[name] = max(ratios)
                values[f"{name} least"] = min(ratios)
        label = _label(claim)
        rows.append(Row(SPEED_UPS, label, values, "simulated"))
        best = values["stretto"]
        assert isinstance(best, float)
        goals.append(Goal(label, best, claim.paper, "higher"))
    return rows, goals


def rate_rows(runs: Sequence[Ran]) -> tuple[list[Row], list[Goal]]:
    """Return the largest rate that each contestant sustains, and how many times more ours does."""
    found = [ran for ran in runs if ran.scene.figure == _RATE_FIGURE]
    rates = {name: _sustained(found, name) for name in (found[0].results if found else ())}
    rows = [Row(RATES, name, {"rate_per_s": rate}, "simulated") for name, rate in rates.items()]
    goals = [
        Goal(f"{_RATE_FIGURE}: rate over {other}", rates["stretto"] / rates[other], paper, "higher")
        for other, paper in RATE_CLAIMS
        if rates.get(other)
    ]
    return rows, goals


def order_goals(runs: Sequence[Ran]) -> list[Goal]:
    """Return in how many scenes ours is behind others, and how many chains it slows down."""
    goals = []
    for other in ("parrot", _STRONGEST):
        pairs = [(ran, kind) for ran in runs for kind in ran.scene.kinds if other in ran.results]
        behind = sum(ran.mean("stretto", kind) > _TIE * ran.mean(other, kind) for ran, kind in pairs)
        if pairs:
            name = f"of {len(pairs)} means, those where stretto is behind {other}"
            goals.append(Goal(name, behind, 0, "lower"))
    together = [ran for ran in runs if ran.scene.load == "chains_at_once"]
    if together:
        slower = sum(ran.num_slower("stretto", "latency", "chain") for ran in together)
        goals.append(Goal("12b: chains that end later than those of latency", slower, 0, "lower"))
    return goals


def losses(runs: Sequence[Ran]) -> list[str]:
    """Return a sentence for each mean in which another contestant is better than ours."""
    found = []
    for ran in runs:
        for kind in ran.scene.kinds if "stretto" in ran.results else ():
            best = min(ran.results, key=lambda name: ran.mean(name, kind))
            ratio = ran.mean("stretto", kind) / ran.mean(best, kind)
            if ratio > _TIE:
                found.append(
                    f"{ran.scene.figure}, {ran.scene.name}, {kind}: {best} is better, {ratio:.2f} times"
                )
    return found


def _is_of(ran: Ran, claim: Claim) -> bool:
    scene = ran.scene
    if scene.figure != claim.figure or (claim.scenes and scene.name not in claim.scenes):
        return False
    return claim.kind in scene.kinds and claim.over in ran.results


def _ratio(ran: Ran, claim: Claim, ours: str) -> float:
    return ran.mean(claim.over, claim.kind, claim.quantity) / ran.mean(ours, claim.kind, claim.quantity)


def _label(claim: Claim) -> str:
    of = {"mean_s": "", "per_token_s": ", per token", "decode_s": ", decoding"}[claim.quantity]
    where = f" ({', '.join(claim.scenes)})" if claim.scenes else ""
    return f"{claim.figure}{where}, {claim.kind}{of}, over {claim.over}"


def _sustained(runs: Sequence[Ran], name: str) -> float:
    """Return the largest rate up to which the mean latency per token stays under the limit; 0 if none."""
    rate = 0.0
    for ran in sorted(runs, key=lambda one: float(one.scene.settings["rate_per_s"])):
        if ran.mean(name, _RATE_KIND, "per_token_s") > _RATE_LIMIT_S:
            break
        rate = float(ran.scene.settings["rate_per_s"])
    return rate
