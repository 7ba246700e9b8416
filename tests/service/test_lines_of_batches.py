"""Input files of batches with every kind of bad line, and what is written of their answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stretto.model.errors import NotSaved
from stretto.runtime.journal.lines import JournalEntry
from stretto.service.batches import input_lines
from stretto.service.batches.input_lines import InputRefused, index_lines, read_line
from stretto.service.batches.line_answers import (
    answer_entry,
    error_entry,
    expired_line,
    line_answer,
    output_lines,
    saved_lines,
    spent_of,
)
from stretto.service.batches.opened_batch import OpenedBatch
from stretto.service.batches.records import BatchRecord, SpentTokens
from stretto.wire.batch_lines import LineRefused

CHAT = "/v1/chat/completions"
GOOD = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}'
MAX_BYTES = 200
BAD: list[tuple[str, bytes]] = [
    ("invalid_json_line", b"{"),
    ("invalid_json_line", b'{"custom_id":"\xff"}'),
    ("invalid_json_line", GOOD.replace(b'"m"', b'"m","x":NaN')),
    ("invalid_json_line", GOOD.replace(b'"m"', b"[" * 100_000)[:MAX_BYTES]),
    ("invalid_json_line", GOOD.replace(b'"a"', b'"\\ud800"')),
    ("invalid_line", b"[]"),
    ("invalid_line", b'"text"'),
    ("invalid_line", GOOD[:-1] + b',"priority":1}'),
    ("invalid_custom_id", GOOD.replace(b'"a"', b"null")),
    ("invalid_custom_id", GOOD.replace(b'"a"', b"7")),
    ("invalid_custom_id", GOOD.replace(b'"a"', b'""')),
    ("duplicate_custom_id", GOOD),
    ("invalid_method", GOOD.replace(b"POST", b"GET")),
    ("mismatched_url", GOOD.replace(b"chat/", b"")),
    ("mismatched_url", GOOD.replace(b'"/v1/chat/completions"', b"null")),
    ("invalid_body", GOOD.replace(b'{"model":"m"}', b"[]")),
    ("invalid_body", GOOD.replace(b',"body":{"model":"m"}', b"")),
    ("invalid_body", GOOD.replace(b'"m"', b"1e999")),
    ("stream_not_supported", GOOD.replace(b'"m"', b'"m","stream":true')),
    ("line_too_large", GOOD.replace(b'"m"', b'"%b"' % (b"m" * MAX_BYTES))),
]


def record() -> BatchRecord:
    return BatchRecord("batch_1", "", CHAT, "file-1", "24h", 86_400, 0)


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def test_every_kind_of_bad_line_is_refused_alone(tmp_path: Path) -> None:
    last = GOOD.replace(b'"a"', b'"last"')
    path = written(tmp_path / "in", GOOD, b"", *(line for _, line in BAD), b" \r", last)
    index = index_lines(path, CHAT, MAX_BYTES)
    assert len(index.starts) == len(BAD) + 2
    assert [index.wrong[number].code for number in sorted(index.wrong)] == [code for code, _ in BAD]
    assert sorted(index.wrong) == list(range(1, len(BAD) + 1))
    with path.open("rb") as file:
        found = input_lines.read_at(file.fileno(), index, len(BAD) + 1)
    assert read_line(found, CHAT).custom_id == "last"


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty_file"), (b"\n \n", "empty_file"), (b"{}\n[]\n", "invalid_custom_id")]
)
def test_a_file_without_a_line_that_can_be_run_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    with pytest.raises(InputRefused) as error:
        index_lines(written(tmp_path / "in", content), CHAT, MAX_BYTES)
    assert error.value.problems[0].code == code
    if code == "invalid_custom_id":
        assert [problem.line for problem in error.value.problems] == [1, 2]


def test_a_file_with_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MAX_LINES", 2)
    lines = [GOOD.replace(b'"a"', b'"%d"' % number) for number in range(3)]
    assert len(index_lines(written(tmp_path / "in", *lines[:2], b""), CHAT, MAX_BYTES).starts) == 2
    with pytest.raises(InputRefused, match="more than 2 lines"):
        index_lines(written(tmp_path / "in", *lines), CHAT, MAX_BYTES)


def test_the_body_of_a_line_is_passed_on_byte_for_byte() -> None:
    body = b'{"model" : "m", "x": [1.50, "\\u00e4"],\t"stream": false}'
    assert read_line(GOOD.replace(b'{"model":"m"}', body), CHAT).body == body
    with pytest.raises(LineRefused, match="no JSON"):
        read_line(GOOD[:-1], CHAT)


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (b'{"a":\n 1}\r\n', {"a": 1}),
        (b"<html>no</html>", "<html>no</html>"),
        (b"", ""),
        (b"\xff", "\ufffd"),
        ('{"ä": "\u2028"}'.encode(), {"ä": "\u2028"}),
    ],
)
def test_an_answer_is_one_line_of_json_whatever_an_engine_sends(content: bytes, body: object) -> None:
    entry = answer_entry(4, "a\n", line_answer(200, "r", content), SpentTokens())
    ((is_well, text),) = output_lines("batch_1", [entry], 5)
    assert is_well
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert json.loads(text) == {
        "id": "batch_req_1_5",
        "custom_id": "a\n",
        "response": {"status_code": 200, "request_id": "r", "body": body},
        "error": None,
    }


def test_the_first_answer_of_a_line_counts_and_errors_go_to_the_other_file() -> None:
    usage = b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'
    well, other = line_answer(200, "r", usage), line_answer(200, "s", b"{}")
    assert spent_of(well) == SpentTokens(5, 1, 2)
    entries: list[JournalEntry] = [
        error_entry(0, None, "invalid_json_line", "no"),
        answer_entry(1, "b", well, spent_of(well)),
        answer_entry(1, "b", other, SpentTokens()),
        answer_entry(2, "c", line_answer(400, "t", usage), SpentTokens()),
        answer_entry(9, "d", other, SpentTokens()),
    ]
    assert [(one.line, one.is_well, one.spent.num_prompt) for one in saved_lines(entries, 3)] == [
        (0, False, 0),
        (1, True, 5),
        (2, False, 0),
    ]
    found: list[tuple[bool, Any]] = [
        (is_well, json.loads(text)) for is_well, text in output_lines("batch_1", entries, 3)
    ]
    assert [is_well for is_well, _ in found] == [False, True, False]
    assert found[0][1]["error"] == {"code": "invalid_json_line", "message": "no"}
    assert found[1][1]["response"]["request_id"] == "r"
    assert json.loads(expired_line("batch_1", 6, "x"))["error"]["code"] == "batch_expired"


def test_an_opened_batch_goes_on_from_its_journal(tmp_path: Path) -> None:
    lines = [GOOD.replace(b'"a"', b'"%d"' % number) for number in range(3)]
    source, journal = written(tmp_path / "in", *lines, b"{"), tmp_path / "journal"
    opened = OpenedBatch(record(), source, journal, MAX_BYTES)
    assert (list(opened.is_done), opened.num_failed) == ([0, 0, 0, 1], 1)
    assert opened.read(2).custom_id == "2"
    opened.journal.write([answer_entry(1, "1", line_answer(200, "r", b"{}"), SpentTokens(1, 0, 1))])
    opened.close()
    with journal.open("ab") as file:
        file.write(b'["2",["2",200,"r",[1')  # torn by a kill
    again = OpenedBatch(record(), source, journal, MAX_BYTES)
    assert (list(again.is_done), again.num_failed, again.spent) == ([0, 1, 0, 1], 1, SpentTokens(1, 0, 1))
    sizes = again.write_files(tmp_path / "out", tmp_path / "err", "expired")
    again.close()
    assert sizes == ((tmp_path / "out").stat().st_size, (tmp_path / "err").stat().st_size)
    assert [json.loads(line)["custom_id"] for line in (tmp_path / "out").read_text().splitlines()] == ["1"]
    errors = [json.loads(line) for line in (tmp_path / "err").read_text().splitlines()]
    assert [(one["custom_id"], one["error"]["code"]) for one in errors] == [
        (None, "invalid_json_line"),
        ("0", "batch_expired"),
        ("2", "batch_expired"),
    ]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("folder", ["", "missing"])
def test_files_that_the_disk_does_not_take_are_a_typed_error(tmp_path: Path, folder: str) -> None:
    source = written(tmp_path / "in", GOOD)
    opened = OpenedBatch(record(), source, tmp_path / "journal", MAX_BYTES)
    opened.journal.write([answer_entry(0, "a", line_answer(200, "r", b"{}"), SpentTokens())])
    output, errors = tmp_path / folder / "out", tmp_path / folder / "err"
    if not folder:
        Path(f"{output}.part").symlink_to("/dev/full")
    with pytest.raises(NotSaved):
        opened.write_files(output, errors, "completed")
    assert not list(tmp_path.glob("*.part"))
    opened.close()
