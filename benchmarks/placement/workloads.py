"""The five workloads of Preble's study, made from real texts, with lengths and sharing as in its Table 1.

A prompt is a system prompt, the key portion of its group (a tool, a problem, a video, a document), and an end
of its own. Its text is cut from real texts where there are any, and a token is four bytes of it. Lengths and
numbers of requests are the quantiles of log-normal distributions in random order, moved to the means and
deviations that are wanted.

Some groups are related: their own parts begin with the same text. In "programming" some problems are shorter
than the system prompt, which then is the key portion, and has as many sharers as there are requests: the
deviation of the number of sharers grows with the number of requests, and is the paper's at 75,000.

Source: Preble §3, Table 1. Differs: texts of other sources (see `SHAPES`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stretto.model.errors import UserError
from stretto.trace.agents.requests import AgentRequest, AgentTrace, SizedPrompt, checked_trace
from stretto.trace.agents.sharing import KnownPrompt, SharedParts, study_prompts

BLOCK_TOKENS = 16
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The lengths and the sharing of a workload; each pair is a mean and a standard deviation.

    Attributes:
        corpus: file or folder that the text is cut from, in the folder of data.
        system_tokens: length of the beginning that all prompts have.
        prompt_tokens: length of a prompt.
        output_tokens: length of an answer.
        sharers: number of requests of a group.
        end_tokens: length of the end that a prompt has for itself.
        single_share: share of the requests whose group has no other request.
        related_share: share of the groups that are related to another one.
        related_part: part of the shorter own part that two related groups have in common.
        least_own_tokens: least length of a group's own part.
        end: kind of a prompt's end. It may be drawn, grow with the length of the group's own part, or go on
            from the end of the group's request before.
    """

    corpus: str
    system_tokens: int
    prompt_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    sharers: tuple[float, float]
    end_tokens: tuple[float, float]
    single_share: float = 0.0
    related_share: float = 0.0
    related_part: float = 0.0
    least_own_tokens: int = 200
    end: Literal["drawn", "scales", "grows"] = "drawn"


SHAPES: Mapping[str, Shape] = {
    "toolbench": Shape(
        corpus="toolbench",
        system_tokens=100,
        prompt_tokens=(1835, 742),
        output_tokens=(43, 16),
        sharers=(39, 64),
        end_tokens=(250, 250),
        single_share=0.012,
        related_share=0.2,
        related_part=0.35,
        least_own_tokens=350,
    ),
    "embodied": Shape(
        corpus="agent_prompts",
        system_tokens=90,
        prompt_tokens=(2285, 471),
        output_tokens=(16, 13),
        sharers=(48, 8),
        end_tokens=(440, 0),
        single_share=0.024,
        end="grows",
    ),
    "programming": Shape(
        corpus="humaneval",
        system_tokens=560,
        prompt_tokens=(3871, 1656),
        output_tokens=(190, 343),
        sharers=(63, 30),
        end_tokens=(90, 320),
        single_share=0.004,
        related_share=0.09,
        related_part=0.35,
    ),
    "video": Shape(
        corpus="",
        system_tokens=0,
        prompt_tokens=(9865, 5976),
        output_tokens=(4, 1.5),
        sharers=(8.6, 2.0),
        end_tokens=(45, 9),
        single_share=0.115,
        end="scales",
    ),
    "document": Shape(
        corpus="books",
        system_tokens=13,
        prompt_tokens=(23474, 6105),
        output_tokens=(16, 9.9),
        sharers=(18, 8.6),
        end_tokens=(550, 1100),
        single_share=0.06,
        related_share=0.1,
        related_part=0.45,
    ),
}
"""The workloads by name."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload: the parts of its prompt as UTF-8 text, which requests of a group have in
    common but for the last, the tokens of its answer, and its group.
    """

    parts: tuple[bytes, ...]
    output_tokens: int
    group: int

    @property
    def text(self) -> bytes:
        """The prompt as UTF-8 text."""
        return b"".join(self.parts)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return sum(map(len, self.parts)) // 4


def make_requests(
    name: str,
    num: int,
    seed: int = 0,
    data: Path | None = None,
    zipf: float | None = None,
    *,
    num_groups: int | None = None,
) -> list[Request]:
    """Return requests of a workload, in random order.

    Args:
        data: folder with the texts; None makes texts up.
        zipf: exponent of the popularity of groups; None takes the workload's own numbers of requests.
        num_groups: number of groups with more than one request; None takes the workload's own.

    Raises:
        UserError: there is no such workload, or its texts are missing.
    """
    if name not in SHAPES:
        raise UserError(f"there is no workload {name!r}; there are {', '.join(SHAPES)}")
    shape = SHAPES[name]
    if num_groups is not None:
        mean, deviation = shape.sharers
        shape = replace(shape, sharers=(num / num_groups, deviation / mean * num / num_groups))
    draw = np.random.Generator(np.random.PCG64(seed))
    pool = read_pool(shape.corpus, data)
    groups = _groups(shape, num, draw, zipf)
    ends = _spread(shape.end_tokens, num, draw)
    if shape.end == "grows":
        ends = _growing(groups, shape.end_tokens[0])
    lengths = _prompt_lengths(shape, groups, ends, draw)
    if shape.end == "scales":
        ends *= lengths[groups] / lengths[groups].mean()
    outputs = _spread(shape.output_tokens, num, draw)
    starts = draw.integers(0, len(pool), int(groups.max()) + 1)
    order = draw.permutation(num)
    system = _cut(pool, 7, 4 * shape.system_tokens)
    own = _own_parts(shape, f"{name} {seed}", lengths, starts, pool)
    made = []
    for place, one in enumerate(order):
        group, end = int(groups[one]), int(ends[one])
        if shape.end == "grows":
            tail = _cut(pool, int(starts[group]) // 2, 4 * end)
        else:
            tail = f"[request {seed} {place}] ".encode() + _cut(pool, int(starts[group]) ^ place, 4 * end)
        parts = (system, *own[group], tail[: 4 * end])
        made.append(Request(parts, max(1, round(float(outputs[one]))), group))
    return made


def poisson_s(num: int, rate_per_s: float, seed: int = 0) -> list[float]:
    """Return the times of `num` Poisson arrivals, in seconds."""
    draw = np.random.Generator(np.random.PCG64([seed, 1]))
    times_s: list[float] = np.cumsum(draw.exponential(1 / rate_per_s, num)).tolist()
    return times_s


def make_trace(
    requests: Sequence[Request], arrivals_s: Sequence[float], path: Path = Path("made up")
) -> AgentTrace:
    """Return requests as a trace with these times of arrival. Blocks of 16 tokens say what prompts share."""
    ids = BlockIds()
    return checked_trace(
        path,
        [
            AgentRequest(
                f"r{number}",
                number + 1,
                SizedPrompt(request.num_tokens, ids.of(request.text), BLOCK_TOKENS),
                arrival_s,
                output_tokens=request.output_tokens,
            )
            for number, (request, arrival_s) in enumerate(zip(requests, arrivals_s, strict=True))
        ],
    )


def study(requests: Sequence[Request]) -> list[SharedParts]:
    """Return what the prompts of a workload share."""
    ids = BlockIds()
    return study_prompts(
        KnownPrompt(ids.of(request.text), request.num_tokens, BLOCK_TOKENS, request.output_tokens)
        for request in requests
    )


class BlockIds:
    """Numbers the blocks of prompts: equal beginnings have equal numbers."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, bytes], int] = {}

    def of(self, text: bytes) -> tuple[int, ...]:
        """Return the numbers of a prompt's blocks of 16 tokens; the last may be shorter."""
        found, parent = [], 0
        for start in range(0, len(text), _BLOCK_BYTES):
            block = parent, text[start : start + _BLOCK_BYTES]
            parent = self._ids.setdefault(block, len(self._ids) + 1)
            found.append(parent)
        return tuple(found)


def read_pool(corpus: str, data: Path | None) -> bytes:
    """Return the text from which prompts are cut.

    Raises:
        UserError: the folder of data has no such texts.
    """
    if data is None or not corpus:
        draw = np.random.Generator(np.random.PCG64(99))
        return draw.integers(97, 123, 1_000_000, dtype=np.uint8).tobytes()
    folder = data / corpus
    files = sorted(one for one in folder.rglob("*") if one.suffix in (".gz", ".jsonl", ".json", ".txt"))
    if not files:
        raise UserError(f"{folder}: there are no texts of the workload")
    texts = [gzip.decompress(one.read_bytes()) if one.suffix == ".gz" else one.read_bytes() for one in files]
    return b"\n".join(texts)


def write_trace(trace: AgentTrace, path: Path) -> None:
    """Write a trace of sized prompts as Mooncake lines, as `stretto replay` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for request in trace.requests:
            assert isinstance(request.prompt, SizedPrompt)
            fields = {
                "timestamp": round(1000 * request.arrival_s, 3),
                "input_length": request.prompt.num_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.prompt.blocks),
            }
            file.write(json.dumps(fields) + "\n")


def _cut(pool: bytes, start: int, length: int) -> bytes:
    """Return a part of a text, which begins anew when it ends."""
    start %= len(pool)
    part = pool[start : start + length]
    while len(part) < length:
        part += pool[: length - len(part)]
    return part


def _groups(shape: Shape, num: int, draw: np.random.Generator, zipf: float | None) -> NDArray[np.int64]:
    """Return the group of each request, by groups."""
    num_single = round(shape.single_share * num)
    num_shared = num - num_single
    num_groups = max(2, round(num_shared / shape.sharers[0]))
    if zipf is None:
        sizes = _spread(shape.sharers, num_groups, draw, least=2.0)
    else:
        weights = np.arange(1, num_groups + 1) ** -zipf
        sizes = np.maximum(2.0, num_shared * weights / weights.sum())
    ends = np.round(np.cumsum(sizes) * (num_shared / sizes.sum())).astype(int)
    shared = np.searchsorted(ends, np.arange(num_shared), side="right")
    return np.concatenate([shared, num_groups + np.arange(num_single)])


def _own_parts(
    shape: Shape, name: str, lengths: _Floats, starts: NDArray[np.int64], pool: bytes
) -> list[tuple[bytes, ...]]:
    """Return the own part of each group's prompts, as one text, or as two of which the first is that of the
    group that it is related to.
    """
    num_related = 2 * round(shape.related_share * len(lengths) / 2)
    made: list[tuple[bytes, ...]] = []
    for group, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        num_bytes, lead = 4 * int(length), b""
        if group < num_related:
            pair = group - group % 2
            num_common = 4 * int(shape.related_part * lengths[pair : pair + 2].min())
            lead = (f"[{name} pair {pair}] ".encode() + _cut(pool, int(starts[pair]) // 3, num_common))[
                :num_common
            ]
        rest = f"[{name} {group}] ".encode() + _cut(pool, int(start), num_bytes)
        made.append((lead, rest[: num_bytes - len(lead)]) if lead else (rest[:num_bytes],))
    return made


def _growing(groups: NDArray[np.int64], mean_tokens: float) -> _Floats:
    """Return the lengths of ends where each request of a group goes on from the one before it."""
    starts = np.r_[0, np.flatnonzero(np.diff(groups)) + 1]
    sizes = np.diff(np.r_[starts, len(groups)])
    step = np.arange(len(groups)) - np.repeat(starts, sizes)
    share = (step + 0.5) / np.repeat(sizes, sizes)
    lengths: _Floats = np.maximum(8.0, 2.5 * mean_tokens * share**1.5)
    return lengths


def _prompt_lengths(
    shape: Shape, groups: NDArray[np.int64], ends: _Floats, draw: np.random.Generator
) -> _Floats:
    """Return the length of each group's own part, so that prompts have the wanted mean and deviation."""
    mean, deviation = shape.prompt_tokens
    counts = np.bincount(groups).astype(float)
    own = _spread((mean, deviation), len(counts), draw)
    wanted = mean - shape.system_tokens - ends.mean()
    rest = max(1.0, deviation**2 - ends.var()) ** 0.5
    least = float(shape.least_own_tokens)
    for _ in range(20):
        own = np.maximum(own, least)
        now = np.average(own, weights=counts)
        spread = np.average((own - now) ** 2, weights=counts) ** 0.5
        own = wanted + (own - now) * (rest / max(spread, 1e-9))
    return np.maximum(own, least)


def _spread(of: tuple[float, float], num: int, draw: np.random.Generator, *, least: float = 1.0) -> _Floats:
    """Return the quantiles of a log-normal distribution in random order, with exactly this mean and, as far
    as no value falls below the least, this deviation.
    """
    mean, deviation = of
    variance = np.log(1 + (deviation / mean) ** 2)
    normal = np.array([NormalDist().inv_cdf((place + 0.5) / num) for place in range(num)])
    values: _Floats = np.exp(np.log(mean) - variance / 2 + np.sqrt(variance) * normal)
    for _ in range(20):
        values = mean + (values - values.mean()) * (deviation / max(float(values.std()), 1e-9))
        values = np.maximum(values, least)
    draw.shuffle(values)
    return values
