"""Runs of planned applications: whatever interrupts them, the same job again ends with the same answers."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.planned_runs import APP, PLAN, run_requests

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.graph.one_call import CallGraphs, PromptMessage
from stretto.model.errors import CapacityError, JournalError, NotSaved, StrettoError, UserError
from stretto.model.replica import Replica
from stretto.model.tasks import LLMTask
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.running.calls import CallBook
from stretto.planner.running.forecast import Forecast
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall, Progress
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, RunOutcome, run_job
from stretto.planner.running.run_request import RefusedLine, RunRequest
from stretto.runtime.journal.lines import work_hash
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import InstanceReady
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

REQUESTS = run_requests(7)
NUM_CALLS = 7 * 3 + sum(at % 3 + 1 for at in range(7)) - 2


def job(
    folder: Path, fail_on: Callable[[LLMTask], BaseException | None] | None = None, **changes: Any
) -> PlanJob:
    """Return the job whose calls are answered by a hash of their prompts."""
    fake = Replica(FakeLLM, FakeLLMConfig(fail_on=fail_on))
    out, failed, journal = (folder / name for name in ("out", "failed", "journal"))
    made = PlanJob(APP, stored(REQUESTS), "fake", lambda book: PLAN, lambda _: fake, out, failed, journal)
    return replace(made, **changes)


def run(wanted: PlanJob) -> RunOutcome:
    return run_job(wanted, lambda num_ended, num_left: None)


def answers(folder: Path, name: str = "out") -> list[Any]:
    lines = [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
    return sorted(lines, key=lambda line: line["custom_id"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(job(folder)) == RunOutcome(0, 7, 0)
    return folder


def test_each_answer_goes_to_its_consumers(whole: Path, tmp_path: Path) -> None:
    prompts: dict[str, list[str]] = {}

    def note(task: LLMTask) -> None:
        prompts.setdefault(task.prompt[0].text.split()[0], []).append(task.prompt[0].text)

    run(job(tmp_path, note))
    assert answers(tmp_path) == answers(whole)
    by_node = answers(whole)[0]["response"]["body"]["answers"]
    assert by_node.keys() == {"draft", "sum", "judge"}
    drafts = "\n\n".join(by_node["draft"])
    assert f"question 0\n\n{drafts}\n\n{by_node['sum'][-1]}" in prompts["question"]
    assert answers(whole)[4]["response"]["body"]["answers"].keys() == {"sum", "judge"}
    assert sum(map(len, prompts.values())) == NUM_CALLS


def test_a_run_that_was_killed_at_any_byte_ends_with_the_same_answers(whole: Path, tmp_path: Path) -> None:
    data = (whole / "journal").read_bytes()
    ends = [at for at, byte in enumerate(data) if byte == ord("\n")]
    cuts = {0, 5, *ends[::6], *(end + 1 for end in ends[::5]), *(end + 9 for end in ends[:-1:6]), len(data)}
    for cut in sorted(cuts):
        (tmp_path / "journal").write_bytes(data[:cut])
        num_saved = max(0, data[:cut].count(b"\n") - 1)
        assert run(job(tmp_path)) == RunOutcome(num_saved, 7, 0)
        assert answers(tmp_path) == answers(whole)
        assert sorted((tmp_path / "journal").read_bytes().splitlines()) == sorted(data.splitlines())


def test_an_ended_run_is_not_planned_again(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes((whole / "journal").read_bytes())

    def plan(book: CallBook) -> Plan:
        raise AssertionError

    assert run(job(tmp_path, plan=plan)) == RunOutcome(NUM_CALLS, 7, 0)
    assert answers(tmp_path) == answers(whole)


def test_only_requests_that_are_left_are_planned(whole: Path, tmp_path: Path) -> None:
    planned: list[str] = []

    def plan(book: CallBook) -> Plan:
        planned.extend(request.id for request in book.left()[0])
        return PLAN

    lines = (whole / "journal").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal").write_bytes(b"".join(line for line in lines if b'"3","judge"' not in line))
    assert run(job(tmp_path, plan=plan)) == RunOutcome(NUM_CALLS - 1, 7, 0)
    assert planned == ["r3"]
    assert answers(tmp_path) == answers(whole)


def without_checksums(whole: Path) -> list[bytes]:
    """The lines of the journal as the release before wrote them."""
    lines = [line[:-10] + b"\n" for line in (whole / "journal").read_bytes().splitlines(keepends=True)[1:]]
    nodes = [asdict(node) for node in APP.nodes]
    header = {"journal": 3, "work": work_hash(["fake", nodes, stored(REQUESTS).digest()])}
    return [json.dumps(header).encode() + b"\n", *(b"[" + line.split(b",", 1)[1] for line in lines)]


@pytest.mark.parametrize(
    "key",
    [
        '"x","judge","0"',
        '"-1","judge","0"',
        '"99","judge","0"',
        '"3","jvdge","0"',
        '"3","judge","7"',
        '"3","judge","-1"',
        '"\u00b2","judge","0"',
        '"3","judge"',
        '"x","3","judge","0"',
    ],
)
def test_a_damaged_key_of_a_line_without_a_checksum_is_no_result(
    whole: Path, tmp_path: Path, key: str
) -> None:
    old = without_checksums(whole)
    (place,) = (at for at, line in enumerate(old) if line.startswith(b'["3","judge","0",'))
    old[place] = old[place].replace(b'"3","judge","0"', key.encode())
    (tmp_path / "journal").write_bytes(b"".join(old))
    assert run(job(tmp_path)) == RunOutcome(NUM_CALLS - 1, 7, 0)
    assert answers(tmp_path) == answers(whole)


def test_a_journal_without_checksums_is_gone_on_with(whole: Path, tmp_path: Path) -> None:
    """Such a journal belongs to all its requests, so an appended one is refused."""
    old = without_checksums(whole)
    (tmp_path / "journal").write_bytes(b"".join(old[:-2]))
    assert run(job(tmp_path)) == RunOutcome(NUM_CALLS - 2, 7, 0)
    assert answers(tmp_path) == answers(whole)
    assert run(job(tmp_path)) == RunOutcome(NUM_CALLS, 7, 0)
    with pytest.raises(JournalError, match="other work"):
        run(job(tmp_path, requests=stored([*REQUESTS, REQUESTS[0]])))


def test_a_journal_serves_requests_that_are_appended_moved_or_changed(whole: Path, tmp_path: Path) -> None:
    first = REQUESTS[0]
    other = replace(first, planned=replace(first.planned, id="r7"))
    for requests, num_new in (([*REQUESTS, other], 1), (REQUESTS[::-1], 0), (REQUESTS[2:], 0), ([other], 1)):
        (tmp_path / "journal").write_bytes((whole / "journal").read_bytes())
        outcome = run(job(tmp_path, requests=stored(requests)))
        book = CallBook(APP, stored(requests[len(requests) - num_new :] if num_new else []))
        num_calls = sum(CallBook(APP, stored(requests)).num_left.values())
        assert outcome == RunOutcome(num_calls - sum(book.num_left.values()), len(requests), 0)


def test_a_damaged_line_is_named_and_asked_again(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = (whole / "journal").read_bytes()
    first = data.index(b"\n") + 1
    for place in range(first, len(data) - 1, 97):
        caplog.clear()
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 7)
        (tmp_path / "journal").write_bytes(flipped)
        outcome = run(job(tmp_path))
        assert NUM_CALLS - 2 <= outcome.num_resumed < NUM_CALLS
        assert answers(tmp_path) == answers(whole)
        assert f"made again: {data[:place].count(10) + 1}" in caplog.text


def test_refused_lines_stand_among_the_failures(tmp_path: Path) -> None:
    requests = stored(REQUESTS)
    requests.refused.append(RefusedLine("odd", UserError("'n' is not supported in a run")))
    assert run(job(tmp_path, requests=requests)) == RunOutcome(0, 7, 1)
    (failed,) = answers(tmp_path, "failed")
    assert (failed["custom_id"], failed["response"]) == ("odd", None)
    assert failed["error"] == {"code": "UserError", "message": "'n' is not supported in a run"}


def test_only_the_owner_reads_answers(tmp_path: Path) -> None:
    run(job(tmp_path))
    modes = {(tmp_path / name).stat().st_mode & 0o777 for name in ("out", "failed", "journal")}
    assert modes == {0o600}


def test_a_failed_call_fails_its_request_alone_and_is_tried_again(whole: Path, tmp_path: Path) -> None:
    def fail(task: LLMTask) -> BaseException | None:
        return CapacityError("too long") if "chunk 2 1" in task.prompt[0].text else None

    outcome = run(job(tmp_path, fail))
    assert (outcome.num_answered, outcome.num_failed) == (6, 1)
    (failed,) = answers(tmp_path, "failed")
    assert (failed["custom_id"], failed["error"]["code"]) == ("r2", "CapacityError")
    assert run(job(tmp_path)).num_answered == 7
    assert answers(tmp_path, "failed") == []
    assert answers(tmp_path) == answers(whole)


def test_an_instance_that_dies_costs_no_answer(whole: Path, tmp_path: Path) -> None:
    died = list[int]()

    def die(task: LLMTask) -> BaseException | None:
        if len(died) < 2 and "chunk 5 2" in task.prompt[0].text:
            died.append(task.id)
            return MemoryError("out of memory")
        return None

    assert run(job(tmp_path, die)) == RunOutcome(0, 7, 0)
    assert len(died) == 2
    assert answers(tmp_path) == answers(whole)


def test_requests_fail_when_a_node_cannot_be_served(tmp_path: Path) -> None:
    def cannot(config: FakeLLMConfig) -> FakeLLM:
        raise UserError("no such checkpoint")

    broken, fake = Replica(cannot, FakeLLMConfig()), Replica(FakeLLM, FakeLLMConfig())
    wanted = job(tmp_path, make=lambda planned: broken if planned.model == "n" else fake)
    assert run(wanted).num_failed == 7
    failed = answers(tmp_path, "failed")
    healthy = [["draft", "sum"]] * 4 + [["sum"]] + [["draft", "sum"]] * 2
    assert [sorted(line["answers"]) for line in failed] == healthy
    errors = {line["error"]["message"] for line in failed}
    assert len(errors) == 1
    assert "node 'judge' has no replica any more" in errors.pop()
    again = run(job(tmp_path))
    assert (again.num_resumed, again.num_answered) == (NUM_CALLS - 7, 7)


def test_a_journal_of_another_application_or_engine_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes((whole / "journal").read_bytes())
    for changes in ({"app": Application("app", APP.nodes[:2])}, {"served_by": "others"}):
        with pytest.raises(JournalError, match="other work"):
            run(job(tmp_path, **changes))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_ends_the_run_which_then_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = list[int]()
    sync = os.fsync

    def fill_up(file: int) -> None:
        syncs.append(file)
        if len(syncs) > 2:  # those of the header and of its folder
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(NotSaved, match="No space left"):
        run(job(tmp_path))
    monkeypatch.undo()
    assert run(job(tmp_path)).num_answered == 7
    assert answers(tmp_path) == answers(whole)


def test_answers_that_cannot_be_written_are_not_lost(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match=r"/dev/full: No space left"):
        run(job(tmp_path, answers=Path("/dev/full")))
    assert run(job(tmp_path)) == RunOutcome(NUM_CALLS, 7, 0)
    assert answers(tmp_path) == answers(whole)


def test_an_interrupted_run_saves_what_was_answered(whole: Path, tmp_path: Path) -> None:
    interrupted = list[int]()

    def interrupt(num_ended: int, num_left: int) -> None:
        if num_ended >= 20 and not interrupted:
            interrupted.append(num_ended)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_job(job(tmp_path), interrupt)
    again = run(job(tmp_path))
    assert again.num_resumed >= 20
    assert again.num_answered == 7
    assert answers(tmp_path) == answers(whole)


def test_requests_begin_as_their_calls_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose calls wait for answers does not make all requests begin at once."""
    num_live = list[int]()

    class Book(CallBook):
        def note(self, call: PlannedCall, result: CallAnswer | StrettoError) -> Progress:
            num_live.append(len(self._live))
            return super().note(call, result)

    monkeypatch.setattr("stretto.planner.running.book.CallBook", Book)
    monkeypatch.setattr("stretto.planner.running.drive._WINDOW", 8)
    app = Application("pair", [ModelNode("writer", "m", 9), ModelNode("judge", "n", 9, inputs=("writer",))])
    plan = Plan("test", (Stage((PlannedReplica("m", (0,)), PlannedReplica("n", (1,)))),))
    asked = [
        RunRequest(
            AppRequest(f"r{at}", 1, (), () if at > 2 else ("judge",)),
            (PromptMessage(None, f"question {at}"),),
        )
        for at in range(120)
    ]
    assert run(job(tmp_path, app=app, requests=stored(asked), plan=lambda book: plan)) == RunOutcome(
        0, 120, 0
    )
    assert num_live[0] <= 60


def test_all_first_calls_of_the_last_request_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan runs the last node first; to draw a request for it begins the others, which run later."""
    monkeypatch.setattr("stretto.planner.running.drive._WINDOW", 4)
    app = Application("ensemble", [ModelNode(name, name, 9) for name in "abc"])
    plan = Plan("test", tuple(Stage((PlannedReplica(name, (0,)),)) for name in "cba"))
    asked = stored(
        [RunRequest(AppRequest(f"r{at}", 1), (PromptMessage(None, f"question {at}"),)) for at in range(9)]
    )
    assert run(job(tmp_path, app=app, requests=asked, plan=lambda book: plan)) == RunOutcome(0, 9, 0)


def test_requests_whose_first_answers_are_saved_begin_with_what_follows() -> None:
    book = CallBook(APP, stored(REQUESTS[:2]))
    assert not list(book.resume([(PlannedCall(1, "sum", at), CallAnswer("s")) for at in range(2)]))
    assert not list(book.resume([(PlannedCall(1, "draft", at), CallAnswer("d")) for at in range(2)]))
    ready = book.ready()
    assert book.num_to_begin == {"draft": 1, "sum": 1, "judge": 1}
    begun = [call for one in ready for call in one.ready if call.request == 1]
    assert begun == [PlannedCall(1, "judge", 0)]
    assert book.num_to_begin == {"draft": 0, "sum": 0, "judge": 0}


def test_calls_with_settings_of_their_own_leave_few_graphs() -> None:
    graphs = CallGraphs()
    for seed in range(1030):
        graphs.of("llm", REQUESTS[0].messages, {"seed": seed})
    assert len(graphs._known) == 1024
    assert graphs.of("llm", REQUESTS[0].messages, {"seed": 7}) is graphs.of(
        "llm", REQUESTS[0].messages, {"seed": 7}
    )


def test_the_forecast_is_the_last_prediction_or_else_the_rate() -> None:
    now_s = 100.0
    forecast = Forecast(lambda: now_s)
    assert forecast.text(0, 10) == "calls"
    now_s = 105.0
    assert forecast.text(5, 10) == "calls, about 10 s left"
    assert forecast.summary() == "took 5.0 s"
    forecast.predicted([20.0])
    now_s = 115.0
    assert forecast.text(5, 10) == "calls, about 10 s left (10 to 10 s)"
    forecast.predicted([30.0])
    assert forecast.text(5, 10) == "calls, about 30 s left (30 to 30 s)"
    assert forecast.summary() == "took 15.0 s, planned were 25.0 s (25.0 to 25.0 s)"


def test_a_replica_that_starts_later_gets_its_share(tmp_path: Path) -> None:
    """The first replica answers nothing until the other one, whose share waits for it, has a call."""
    app = Application("app", [ModelNode("only", "m", 9)])
    plan = Plan("test", (Stage((PlannedReplica("m", (0,)), PlannedReplica("m", (1,)))),))
    asked = [
        RunRequest(AppRequest(f"r{at}", 1), (PromptMessage(None, f"question {at}"),)) for at in range(20)
    ]
    has_first, has_other, waited = threading.Event(), threading.Event(), list[bool]()

    def first(task: LLMTask) -> None:
        has_first.set()
        waited.append(has_other.wait(30))

    def start_late(config: FakeLLMConfig) -> FakeLLM:
        assert has_first.wait(60)
        return FakeLLM(config)

    replicas: dict[tuple[int, ...], Replica] = {
        (0,): Replica(FakeLLM, FakeLLMConfig(fail_on=first)),
        (1,): Replica(start_late, FakeLLMConfig(fail_on=lambda task: has_other.set())),
    }
    wanted = job(tmp_path, app=app, requests=stored(asked), plan=lambda book: plan)
    assert run(replace(wanted, make=lambda planned: replicas[planned.devices])) == RunOutcome(0, 20, 0)
    assert all(waited)


class FirstCalls(Observer):
    """Counts the calls that a replica gets until another one is ready."""

    def __init__(self, wanted: int) -> None:
        self.num = 0
        self.has_wanted, self.is_second_ready = threading.Event(), threading.Event()
        self._wanted = wanted

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, InstanceReady) and event.instance == 1:
            self.is_second_ready.set()

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit) and not self.is_second_ready.is_set():
            self.num += 1
            if self.num == self._wanted:
                self.has_wanted.set()


def test_a_replica_takes_its_share_of_what_can_be_made_now_while_another_starts(tmp_path: Path) -> None:
    """Each of 20 drafts is revised later. The first of two replicas is to have ten, not half of all calls."""
    calls = FirstCalls(10)

    class SecondLLM(FakeLLM):
        def __init__(self, config: FakeLLMConfig) -> None:
            assert calls.has_wanted.wait(300)
            super().__init__(config)

    def wait(task: LLMTask) -> None:
        assert calls.is_second_ready.wait(300)

    config = FakeLLMConfig(max_running=100, fail_on=wait)
    app = Application("app", [ModelNode("draft", "m", 9), ModelNode("revise", "m", 9, inputs=("draft",))])
    plan = Plan("test", (Stage((PlannedReplica("m", (0,)), PlannedReplica("m", (1,)))),))
    requests = [RunRequest(AppRequest(f"{at}", 1), (PromptMessage(None, f"{at}"),)) for at in range(20)]
    wanted = job(
        tmp_path,
        app=app,
        requests=stored(requests),
        plan=lambda book: plan,
        make=lambda placed: Replica(SecondLLM if placed.devices == (1,) else FakeLLM, config, num_slots=100),
        observers=(calls,),
    )
    assert run(wanted) == RunOutcome(0, 20, 0)
    assert calls.num == 10
