"""The requests of a run in little memory: what is read again is what was checked."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, ModelNode
from stretto.planner.running.batch_lines import read_batch_application
from stretto.planner.running.request_store import RequestStore, stored
from stretto.planner.running.requests import read_run_requests

APP = Application("app", [ModelNode("write", "m", 50), ModelNode("sum", "n", 40, chain=True)])
LINES = [
    {"custom_id": "é1", "prompt": "one", "nodes": ["write"]},
    {"custom_id": "2", "chunks": ["a", "b"], "nodes": ["sum"]},
    {"custom_id": "3", "prompt": "three", "nodes": ["write"]},
]


def written(path: Path, lines: list[dict[str, Any]], between: str = "\n") -> Path:
    path.write_text(between.join(json.dumps(line) for line in lines), "utf-8")
    return path


def read(path: Path) -> RequestStore:
    return read_run_requests(path, APP)


@pytest.mark.parametrize("between", ["\n", "\n\n \n", "\r\n"])
def test_each_request_is_read_again_by_its_number(tmp_path: Path, between: str) -> None:
    store = read(written(tmp_path / "in", LINES, between))
    assert [store.id(number) for number in range(len(store))] == ["é1", "2", "3"]
    for number in (2, 0, 1):
        assert store.get(number).id == store.id(number)
    assert store.get(2).messages == (PromptMessage(None, "three"),)
    assert store.get(1).chunks == ("a", "b")
    assert [(kind.nodes, kind.num_chunks, count) for kind, count in store.kinds()] == [
        (("write",), 0, 2),
        (("sum",), 2, 1),
    ]
    assert store.kind(0) is store.kind(2)
    assert [request.id for request in store.planned()] == ["é1", "2", "3"]


def test_requests_can_come_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=written, args=(pipe, LINES))
    writer.start()
    store = read(pipe)
    writer.join()
    assert [store.get(number).id for number in range(3)] == ["é1", "2", "3"]


def test_a_file_that_changes_under_a_run_is_refused(tmp_path: Path) -> None:
    """Its lines stand elsewhere now, so a call would get the prompt of another request."""
    store = read(written(tmp_path / "in", LINES))
    written(tmp_path / "in", LINES[1:])
    with pytest.raises(ConfigError, match="has changed since the run began"):
        store.get(0)


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    store = read(written(tmp_path / "in", LINES))
    written(tmp_path / "new", LINES[1:]).replace(tmp_path / "in")
    assert store.get(0).id == "é1"


def test_the_hash_is_of_what_lines_say_and_of_their_order(tmp_path: Path) -> None:
    first = read(written(tmp_path / "in", LINES)).digest()
    assert first == read(written(tmp_path / "gaps", LINES, "\n\n  ")).digest()
    others = [LINES[::-1], LINES[1:], [*LINES[:2], {**LINES[2], "prompt": "two"}]]
    hashes = {read(written(tmp_path / "in", lines)).digest() for lines in others}
    assert len(hashes | {first}) == 4


def test_a_request_is_found_again_wherever_it_stands(tmp_path: Path) -> None:
    before = read(written(tmp_path / "in", LINES))
    marks = [before.mark(number) for number in range(3)]
    changed = {**LINES[1], "chunks": ["a"]}
    after = read(written(tmp_path / "in", [LINES[2], changed, LINES[0], LINES[2] | {"custom_id": "4"}]))
    assert [after.find(mark, number) for number, mark in enumerate(marks)] == [2, None, 0]
    appended = read(written(tmp_path / "in", [*LINES, changed | {"custom_id": "5"}]))
    assert [appended.find(mark, number) for number, mark in enumerate(marks)] == [0, 1, 2]


def test_requests_in_memory_are_stored_alike(tmp_path: Path) -> None:
    requests = [read(written(tmp_path / "in", LINES)).get(number) for number in range(3)]
    store = stored(requests)
    assert [store.get(number) for number in range(3)] == requests
    assert store.id(0) == "é1"
    assert store.digest() != stored(requests[1:]).digest()


def test_lines_with_seeds_of_their_own_are_of_one_kind(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "Once", "max_tokens": 5}
    lines = [
        {"custom_id": f"{at}", "method": "POST", "url": "/v1/completions", "body": {**body, "seed": at}}
        for at in range(50)
    ]
    _, store = read_batch_application(written(tmp_path / "in", lines))
    ((kind, count),) = store.kinds()
    assert (kind.api, kind.model, kind.max_tokens, count) == ("completions", "m", 5, 50)
    assert (store.get(7).decode or {})["seed"] == 7
