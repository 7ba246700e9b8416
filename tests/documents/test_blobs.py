"""Binary data that is written as text: it becomes a mark, and nothing else does."""

from __future__ import annotations

import base64
import time
from hashlib import sha256
from random import Random

import pytest

from stretto.documents.parse import parse_bytes, without_blobs

DATA = Random(0).randbytes(3001)
BASE64 = base64.b64encode(DATA).decode()
LINES = base64.encodebytes(DATA).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"See {BASE64} here.", "See [4004 characters of base64] here."),
        (f"![x](data:image/png;base64,{BASE64}) here", "![x]([4026 characters of image/png]) here"),
        (f"<img src='data:image/svg+xml,{'%3Cg%3E' * 99}'>", "<img src='[712 characters of image/svg+xml]'>"),
        (
            f"-----BEGIN X-----\n{LINES}-----END X-----",
            "-----BEGIN X-----\n[4056 characters of base64]\n-----END X-----",
        ),
        (f"key: |\n  {LINES[:770].rstrip()}\nThe end", "key: |\n  [769 characters of base64]\nThe end"),
        (f"A line: {'<' * 100_000}>", "A line: [100000 characters of <]>"),
    ],
    ids=["word", "picture", "percent", "lines", "in prose", "run"],
)
def test_binary_data_becomes_a_mark(text: str, expected: str) -> None:
    assert without_blobs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(sha256(bytes([n])).hexdigest() for n in range(20)),
        "ACGT" * 500,
        "https://example.org/a/" + "long-path/" * 60 + "?q=1",
        "-" * 1000 + "\n" + "=" * 1000,
        "Donaudampfschifffahrtsgesellschaft" * 20,
        "data:text/plain,short and data: more",
        "字" * 1000,
        f"short {BASE64[:200]} one",
        "\n".join("A1b" * 20 + " and more words" for _ in range(20)),
    ],
)
def test_other_long_words_stay(text: str) -> None:
    assert without_blobs(text) == text


@pytest.mark.parametrize("name", ["a.md", "a.html", "a.txt", "a.rst"])
def test_all_formats_leave_it_out(name: str) -> None:
    document = parse_bytes(name, f"The pier is green. data:image/png;base64,{BASE64} The end.".encode())
    (section,) = document.sections
    assert section.text == "The pier is green. [4026 characters of image/png] The end."


def test_the_time_is_linear() -> None:
    for text in (
        "A1b" * 133 + " ",
        "A1b/" * 25 + "\n",
        "data:text/plain;a=b;",
        "A1" * 34 + "\n ",
        "a" * 399 + "=",
        "<" * 1999 + ">",
    ):
        costs = []
        for num_chars in (1_000_000, 4_000_000):
            repeated = text * (num_chars // len(text))
            began_s = time.process_time()
            without_blobs(repeated)
            costs.append(time.process_time() - began_s)
        assert costs[1] < 8 * costs[0] + 0.2, text
