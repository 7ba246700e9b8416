"""Readers of published traces, and the loads made of them."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from stretto.costs.mean_output import num_tokens
from stretto.model.values import Segment
from stretto.sim.synthetic_output import filler, made_up_token_ids, prompt_ids
from stretto.sim.traces import TraceRequest, read_azure
from stretto.trace.lines import TraceError

FIXTURES = Path(__file__).parent / "fixtures"


def test_azure_in_seconds_and_as_published() -> None:
    expected = [TraceRequest(0.0, 374, 44), TraceRequest(4.3146, 396, 109), TraceRequest(4.3146, 879, 0)]
    assert read_azure(FIXTURES / "azure_seconds.csv") == expected
    published = read_azure(FIXTURES / "azure_published.csv")
    assert [(r.prompt_tokens, r.output_tokens) for r in published] == [(374, 44), (396, 109), (879, 0)]
    assert [r.arrival_s for r in published] == pytest.approx([0.0, 4.3146, 4.3146], abs=1e-4)


AZURE = "arrival_s,prompt_tokens,output_tokens\n"


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


def test_lines_may_end_as_in_windows(tmp_path: Path) -> None:
    path = tmp_path / "azure_seconds.csv"
    path.write_bytes((FIXTURES / path.name).read_bytes().replace(b"\n", b"\r\n"))
    assert read_azure(path) == read_azure(FIXTURES / path.name)


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
        read_azure(tmp_path / "x.csv.gz")


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
