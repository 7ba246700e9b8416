"""Readers of published traces, and the loads made of them."""

from __future__ import annotations

import gzip
import random
import statistics
import sys
from itertools import islice, takewhile
from pathlib import Path

import pytest

from stretto.costs.tokens import num_tokens
from stretto.model.values import Segment
from stretto.sim.synthetic_output import filler, made_up_token_ids, prompt_ids
from stretto.sim.synthetic_workloads import (
    bursts,
    lognormal_lengths,
    poisson,
    prompt_text,
    request_graph,
    submits,
    zipf,
)
from stretto.sim.traces import TraceRequest, read_azure, read_lengths, read_mooncake
from stretto.trace.lines import TraceError

FIXTURES = Path(__file__).parent / "fixtures"


def test_azure_in_seconds_and_as_published() -> None:
    expected = [TraceRequest(0.0, 374, 44), TraceRequest(4.3146, 396, 109), TraceRequest(4.3146, 879, 0)]
    assert read_azure(FIXTURES / "azure_seconds.csv") == expected
    published = read_azure(FIXTURES / "azure_published.csv")
    assert [(r.prompt_tokens, r.output_tokens) for r in published] == [(374, 44), (396, 109), (879, 0)]
    assert [r.arrival_s for r in published] == pytest.approx([0.0, 4.3146, 4.3146], abs=1e-4)


def test_mooncake_shares_prefixes_by_block(tmp_path: Path) -> None:
    requests = read_mooncake(FIXTURES / "mooncake.jsonl")
    assert requests == [
        TraceRequest(0.0, 1100, 6, (0, 1, 2)),
        TraceRequest(0.04, 600, 4, (0, 3)),
        TraceRequest(3.0, 1536, 9, (0, 1, 4)),
    ]
    ids = [made_up_token_ids(prompt_text(f"r{n}", request)) for n, request in enumerate(requests)]
    assert [len(tokens) for tokens in ids] == [1100, 600, 1536]

    def num_shared(a: list[int], b: list[int]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))

    assert num_shared(ids[0], ids[1]) == 512
    assert num_shared(ids[0], ids[2]) == 1024
    packed = tmp_path / "mooncake.jsonl.gz"
    packed.write_bytes(gzip.compress((FIXTURES / "mooncake.jsonl").read_bytes()))
    assert read_mooncake(packed) == requests


def test_lengths_without_times() -> None:
    assert read_lengths(FIXTURES / "lengths.csv") == [(3772, 54), (2015, 156)]


AZURE = "arrival_s,prompt_tokens,output_tokens\n"
HASHED = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"row 0: no column arrival_s, prompt_tokens, output_tokens"),
        (
            "arrival_s,prompt_tokens\n0,1\n",
            r"row 0: no column output_tokens; there are arrival_s, prompt_tokens",
        ),
        (AZURE, r"row 0: there are no rows"),
        (AZURE + "0,10,1\n5,10,1\n4.5,10,1\n", r"row 3: arrives at 4.5 s, before the row above it \(5 s\)"),
        (AZURE + "0,-10,1\n", r"row 1: prompt_tokens is -10, not a whole number from 1 to"),
        (AZURE + "0,10,-1\n", r"row 1: output_tokens is -1"),
        (AZURE + "-1,10,1\n", r"row 1: arrival_s is -1: it must be a time of at least 0"),
        (AZURE + "0,10,1\n1,many,1\n", r"row 2: prompt_tokens is 'many', not a number"),
        (AZURE + "0,10,1\n1,10\n", r"row 2: there is no output_tokens"),
        (AZURE + "0,10.5,1\n", r"row 1: prompt_tokens is 10.5, not a whole number"),
        (AZURE + "0,1e300,1\n", r"row 1: prompt_tokens is 1e300, not a whole number"),
        (AZURE + "0,1,1\n0," + "1" * 200_000 + ",1\n", r"row 2: field larger than"),
        (AZURE + "1e300,1,1\n", r"row 1: arrival_s is 1e300"),
        (AZURE + "nan,10,1\n", r"row 1: arrival_s is 'nan', not a number"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
            r"row 1: arrival_s is 'yesterday', not a date",
        ),
    ],
)
def test_a_bad_table_names_file_row_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason) as caught:
        read_azure(path)
    assert str(caught.value).startswith(f"{path}, row ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HASHED % (0, 600, 1, "[1]"), r"line 1: 1 hash_ids for 600 tokens"),
        (HASHED % (0, 600, 1, "[1, -2]"), r"line 1: hash_ids must be a list of whole numbers"),
        (HASHED % (9, 5, 1, "[1]") + HASHED % (8, 5, 1, "[1]"), r"line 2: arrives at 0.008 s"),
        (HASHED % (0, 600, 1, "[true, 2]"), r"line 1: hash_ids must be a list of whole numbers"),
        (HASHED % (10**400, 600, 1, "[1, 2]"), r"line 1: timestamp is 10+, not a number"),
        ("[]\n", r"line 1: not an object"),
        ("{\n", r"line 1: not JSON"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": [1]}\n', r"line 1: there is no timestamp"),
    ],
)
def test_bad_lines_name_file_line_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason):
        read_mooncake(path)


def test_lines_may_end_as_in_windows(tmp_path: Path) -> None:
    for name in ("azure_seconds.csv", "mooncake.jsonl"):
        (tmp_path / name).write_bytes((FIXTURES / name).read_bytes().replace(b"\n", b"\r\n"))
    assert read_azure(tmp_path / "azure_seconds.csv") == read_azure(FIXTURES / "azure_seconds.csv")
    assert read_mooncake(tmp_path / "mooncake.jsonl") == read_mooncake(FIXTURES / "mooncake.jsonl")


def test_times_with_and_without_a_zone_go_together(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "2023-11-16 18:15:46+00:00,2,3\n2023-11-16 18:15:47,2,3\n"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert [request.arrival_s for request in read_azure(path)] == [0.0, 1.0]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"abcdef" * 999))
    data[15:17] = bytes(255 - byte for byte in data[15:17])
    (tmp_path / "x.csv.gz").write_bytes(data)
    with pytest.raises(TraceError, match=r"x\.csv\.gz: cannot be read"):
        read_azure(tmp_path / "x.csv.gz")


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.csv: cannot be read"):
        read_azure(tmp_path / "nothing.csv")
    (tmp_path / "x.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(TraceError, match="cannot be read"):
        read_lengths(tmp_path / "x.csv.gz")


def test_arrivals_have_their_mean_rate_and_their_seed() -> None:
    for make in (poisson, bursts):
        times = list(islice(make(4.0, 1), 20_000))
        assert times == sorted(times)
        assert times == list(islice(make(4.0, 1), 20_000))
        assert times != list(islice(make(4.0, 2), 20_000))
        assert len(times) / times[-1] == pytest.approx(4.0, rel=0.1)

    def dispersion(times: list[float]) -> float:
        counts = [0] * (int(times[-1] / 5) + 1)
        for at_s in times:
            counts[int(at_s / 5)] += 1
        return statistics.variance(counts) / statistics.mean(counts)

    assert dispersion(list(islice(poisson(4.0, 1), 20_000))) == pytest.approx(1.0, rel=0.2)
    assert dispersion(list(islice(bursts(4.0, 1), 20_000))) > 5


def test_zipf_prefers_the_first() -> None:
    numbers = list(islice(zipf(100, 1.0, 0), 20_000))
    counts = [numbers.count(k) for k in (0, 1, 9)]
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)
    assert counts[0] / counts[2] == pytest.approx(10, rel=0.25)
    assert max(numbers) < 100


def test_made_up_lengths_are_like_azures_conversations() -> None:
    pairs = lognormal_lengths(20_000, 0)
    assert statistics.mean(p for p, _ in pairs) == pytest.approx(1155, rel=0.08)
    assert statistics.mean(o for _, o in pairs) == pytest.approx(211, rel=0.12)
    assert min(min(pair) for pair in pairs) >= 1


def test_filler_has_the_tokens_it_is_asked_for() -> None:
    for tokens in (1, 2, 5, 1000, 5000):
        assert num_tokens(filler("a", tokens)) == tokens == len(made_up_token_ids(filler("a", tokens)))
    assert filler("a", 40)[:4] != filler("b", 40)[:4]


def test_equal_beginnings_are_equal_tokens() -> None:
    assert (
        made_up_token_ids("abcdefgh")[:2]
        == made_up_token_ids("abcdefgX")[:1] + made_up_token_ids("abcdefgh")[1:2]
    )
    assert made_up_token_ids("abcdefgh")[0] == made_up_token_ids("abcdXXXX")[0]
    assert made_up_token_ids("abcdefgh")[1] != made_up_token_ids("abcdXXXX")[1]
    assert len(made_up_token_ids("größer")) == num_tokens("größer")
    assert prompt_ids((Segment("ab"), Segment("cd"))) == made_up_token_ids("ab") + made_up_token_ids("cd")


def test_ids_of_long_texts_are_those_of_their_characters() -> None:
    """Texts are longer than the pieces that are remembered, with and without filling at their ends."""
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choice("ab") * draw.choice((1, 2, 7, 100, 3000)) for _ in range(6))
        padded = text + "\0" * 4
        ids = [
            int.from_bytes(padded[4 * i : 4 * i + 4].encode(), sys.byteorder) for i in range(num_tokens(text))
        ]
        assert made_up_token_ids(text) == ids


def test_requests_become_queries_in_their_order() -> None:
    lengths: dict[str, int] = {}
    requests = [TraceRequest(0.5, 12, 3), TraceRequest(1.0, 40, 7)]
    made = list(submits(requests, request_graph(16), lengths.__setitem__))
    assert [(at_s, submit.query) for at_s, submit in made] == [(0.5, "r0"), (1.0, "r1")]
    assert lengths == {"r0": 3, "r1": 7}
    assert [num_tokens(str(submit.inputs["prompt"])) for _, submit in made] == [12, 40]
