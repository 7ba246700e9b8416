"""Runs at servers some of which are busy or away: the others work on, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.graph.one_call import PromptMessage
from stretto.model.errors import EngineUnavailable, Overloaded, StrettoError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.running.batch_lines import read_batch_application
from stretto.planner.running.book import Book
from stretto.planner.running.calls import CallBook
from stretto.planner.running.model_queues import ModelQueues
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import RunOutcome
from stretto.planner.running.run_request import RunRequest
from stretto.planner.running.unplanned_run import OfflineJob, answer_all

NUM = 12


def job(folder: Path, models: str) -> OfflineJob:
    """A Batch file with NUM lines for each model, whose names are letters, one after the other."""
    file = folder / "in.jsonl"
    bodies = [
        {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": f"question {at}"}]}
        for model in models
        for at in range(NUM)
    ]
    lines = [
        {"custom_id": f"r{at}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for at, body in enumerate(bodies)
    ]
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    app, store = read_batch_application(file, hands_on=True)
    return OfflineJob(app, store, *(folder / name for name in ("answers", "failed", "journal")))


class Servers:
    """A server of each model, which takes two calls at a time; each answer takes a minute.

    Args:
        away: models whose server is away.
        busy: models whose server refuses every second call.
    """

    def __init__(self, wanted: OfflineJob, away: str = "", busy: str = "") -> None:
        self.num_at_once = 100
        self.now_s = 0.0
        self.answered: list[str] = []
        self.num_begun = 0
        self._away = away
        self._busy = busy
        self._models = {node.name: node.model for node in wanted.app.nodes}

    def num_at_once_of(self, model: str) -> int:
        return 2

    def absence(self, model: str) -> str:
        return "nothing listens" if model in self._away else ""

    def begin(
        self, call: PlannedCall, ended: Callable[[CallAnswer | StrettoError], None]
    ) -> Callable[[], None]:
        model = self._models[call.node]
        self.num_begun += 1
        if model in self._away:
            return lambda: None
        if model in self._busy and self.num_begun % 2:
            raise Overloaded("busy", retry_after_s=0.001)

        def end() -> None:
            self.now_s += 60
            self.answered.append(model)
            ended(CallAnswer("an answer"))

        return asyncio.get_running_loop().call_soon(end).cancel

    def now(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def run(self, wanted: OfflineJob) -> RunOutcome:
        def caller_of(book: Book) -> Servers:
            return self

        return asyncio.run(answer_all(wanted, "servers", caller_of, now=self.now))


def test_what_others_can_answer_is_answered_before_a_run_gives_up(tmp_path: Path) -> None:
    wanted = job(tmp_path, "abc")
    servers = Servers(wanted, away="a")
    with pytest.raises(EngineUnavailable) as raised:
        servers.run(wanted)
    assert "'a' (nothing listens); 12 calls of 12 requests are left, and the same command" in str(
        raised.value
    )
    assert sorted(servers.answered) == ["b"] * NUM + ["c"] * NUM, "the first model's calls held up no other"
    assert not wanted.failures.read_text("utf-8"), "nothing has failed"
    again = job(tmp_path, "abc")
    assert Servers(again).run(again) == RunOutcome(2 * NUM, 3 * NUM, 0)


def test_calls_of_an_absent_model_take_no_places_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.planner.running.model_queues._MOST_QUEUED", 9)
    wanted = job(tmp_path, "abc")
    servers = Servers(wanted, away="a")
    with pytest.raises(EngineUnavailable, match="12 calls of 12 requests are left"):
        servers.run(wanted)
    assert sorted(servers.answered) == ["b"] * NUM + ["c"] * NUM, "they stand behind 12 calls for 3 places"


def test_models_share_the_places_of_calls_that_are_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stretto.planner.running.model_queues._MOST_QUEUED", 9)
    nodes = [ModelNode("all", "a", 5), ModelNode("other", "b", 5)]
    asked = [
        RunRequest(AppRequest(f"r{at}", 1, nodes=of), (PromptMessage(None, f"question {at}"),))
        for at, of in enumerate([("all",)] * 3 + [()] * 9 + [("other",)] * 3)
    ]
    app = Application("two", nodes)
    queues = ModelQueues(app, CallBook(app, stored(asked)), lambda progress: progress.ready)

    def taken(model: str) -> list[int]:
        return [call.request for call in iter(lambda: queues.take(model), None)]

    assert taken("b") == [3, 4, 5, 6, 12, 13, 14], "what needs the other model too waits for places there"
    assert len(queues.waiting["a"]) == 4
    assert taken("a") == [3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10], "and is read when there are some"
    assert taken("b") == [7, 8, 9, 10, 11]
    assert taken("a") == [11]


def test_a_busy_model_holds_up_no_other(tmp_path: Path) -> None:
    wanted = job(tmp_path, "ab")
    servers = Servers(wanted, busy="a")
    assert servers.run(wanted) == RunOutcome(0, 2 * NUM, 0)
    first_b = servers.answered.index("b")
    assert first_b <= 2, servers.answered
