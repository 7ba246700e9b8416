"""Programs in real time, at toy size: by hand, on the library, and on models of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.common.checkpoint import TINY, build_checkpoint
from benchmarks.fleet.cells import Cells
from benchmarks.programs.arena import ProgramArena
from benchmarks.programs.contestants import ARRIVAL, OURS
from benchmarks.programs.graphs import search_engines
from benchmarks.programs.measures import by_kind
from benchmarks.programs.real.agents import compared_answers
from benchmarks.programs.real.benchmark import QUICK, RealSize, measure_real
from benchmarks.programs.real.by_hand import HandWritten, Servers
from benchmarks.programs.real.clock import Ask, RealRun, run_programs
from benchmarks.programs.real.emulated import MAX_LAG, planned_fleet
from benchmarks.programs.real.in_process import (
    TABLE,
    InProcessSize,
    in_process_part,
    in_process_programs,
    run_on_models,
)
from benchmarks.programs.real.mixed import BEST, BY_HAND, LATE, LIBRARY, MixedRun, in_virtual_time, report_on
from benchmarks.programs.real.on_library import OnLibrary, with_policy
from benchmarks.programs.real.script import KnownReplies, RunScript, digest_of
from benchmarks.programs.simulated import JudgedServers
from benchmarks.programs.work import MixedProgram
from benchmarks.registry import BenchmarkOptions
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.prepared import prepare
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Decode, LLMTask
from stretto.runtime.runtime import Runtime
from stretto.wire.requests import CompletionRequest

SCALE = 0.05
SMALL = InProcessSize(chats=6, map_reduces=2, agent_calls=3, most_width=9, max_tokens=8, turns=2)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> ProgramArena:
    return ProgramArena(JudgedServers(sequences=4), Cells(tmp_path_factory.mktemp("cells")), SCALE)


def watched(arena: ProgramArena, name: str = OURS) -> RunScript:
    script = RunScript()
    arena.watched(name, "four_apps", 0.9, "0", script)
    return script


def at_once(programs: Sequence[MixedProgram]) -> list[MixedProgram]:
    """Return programs that all begin at the same time, and whose tools take no time."""
    return [
        replace(one, at=0.0, queries=tuple(replace(query, pause_s=0.0) for query in one.queries))
        for one in programs
    ]


class ScriptedClient:
    """A client that answers at once, as a watched run did."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        self.completions = self
        self.prompts: list[str] = []
        self._replies = replies

    async def create(self, *, prompt: str, **_: object) -> SimpleNamespace:
        self.prompts.append(prompt)
        await asyncio.sleep(0)
        text = self._replies[digest_of(prompt)]
        usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1, prompt_tokens_details=None)
        return SimpleNamespace(choices=[SimpleNamespace(text=text)], usage=usage)


class LLMOfScript(ScriptedLLM):
    """An LLM in this process that answers as a watched run did, or with the length of its prompt."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        super().__init__(self._reply, 64)
        self._replies = replies

    def _reply(self, task: LLMTask, decode: Decode) -> str:
        prompt = "".join(segment.text for segment in task.prompt)
        return self._replies.get(digest_of(prompt), f"{len(prompt)} letters")


def engines(replies: Mapping[str, str], policy: str | None) -> list[Deployment]:
    llm = deploy("llm", LLMOfScript, replies, contract="llm", max_running=2)
    return with_policy([*search_engines(), llm], policy)


async def answered(programs: Sequence[MixedProgram], ask: Ask, found: RealRun) -> RealRun:
    await run_programs(at_once(programs), 0.0, ask, found)
    return found


async def answered_on_library(
    programs: Sequence[MixedProgram], replies: Mapping[str, str], policy: str | None
) -> RealRun:
    found = RealRun()
    deployments = engines(replies, policy)
    library = OnLibrary(deployments, found)
    async with Runtime(deployments, observers=[library], max_queries=1000) as runtime:
        library.runtime = runtime
        return await answered(programs, library.ask, found)


def test_the_program_by_hand_sends_the_prompts_of_the_library_and_has_its_answers(
    arena: ProgramArena,
) -> None:
    programs, script, found = arena.programs("four_apps", "0"), watched(arena), RealRun()
    clients = [ScriptedClient(script.replies) for _ in range(3)]
    asyncio.run(answered(programs, HandWritten(Servers(clients, "m"), found).ask, found))
    assert found.answers == script.answers
    assert set(found.run.times) == {one.name for one in programs}
    sent = {digest_of(prompt) for client in clients for prompt in client.prompts}
    assert sent == set(script.replies)


@pytest.mark.parametrize("policy", [None, "throughput"])
def test_the_library_has_the_same_answers_in_every_order(arena: ProgramArena, policy: str | None) -> None:
    programs, script = arena.programs("four_apps", "0"), watched(arena)
    found = asyncio.run(answered_on_library(programs, script.replies, policy))
    assert found.answers == script.answers
    assert set(found.run.times) == {one.name for one in programs}
    assert set(found.run.usages) == set(arena.lone("four_apps", "0").work_s)


def test_orders_have_equal_prompts_and_answers(arena: ProgramArena) -> None:
    first, second = watched(arena, ARRIVAL), watched(arena, OURS)
    assert (first.answers, first.replies) == (second.answers, second.replies)
    queries = [query.name for one in arena.programs("four_apps", "0") for query in one.queries]
    assert set(first.answers) == set(queries)


def test_by_hand_a_conversation_keeps_to_a_server_and_other_calls_spread() -> None:
    clients = [ScriptedClient({digest_of("a"): "b"}) for _ in range(3)]
    servers = Servers(clients, "m")

    async def ask() -> None:
        await asyncio.gather(*(servers.complete("a") for _ in range(3)))
        await asyncio.gather(*(servers.complete("a", "talk") for _ in range(4)))

    asyncio.run(ask())
    assert sorted(len(client.prompts) for client in clients) == [1, 1, 5]


def test_an_emulated_server_replies_to_known_prompts_as_it_was_told() -> None:
    planned = planned_fleet(JudgedServers(instances=2), {digest_of("A question?"): "its reply"})
    assert len(planned.servers) == 2
    service = planned.servers[0].service
    assert isinstance(service, PlannedLLM)
    texts = []
    for prompt in ("A question?", "Another one?"):
        body = {"model": service.served.name, "prompt": prompt, "max_tokens": 9}
        (choice,) = prepare(CompletionRequest.from_json(body), service.served, lambda *_: 3).choices
        texts.append(choice.answer.text)
    assert texts[0] == "its reply" != texts[1]
    assert KnownReplies({})("unknown") is None


def test_runs_of_servers_that_were_late_do_not_count(arena: ProgramArena) -> None:
    run = arena.run(OURS, "four_apps", 0.9, "0")
    figures = by_kind(run, arena.lone("four_apps", "0"), arena.programs("four_apps", "0"))
    good, late = MixedRun(figures, 3, 0), MixedRun(figures, 3, 1, lag=2 * MAX_LAG)
    arms = (BY_HAND, *LIBRARY, *map(in_virtual_time, LIBRARY))
    rows, goals = report_on(
        "t", (1, 2), [dict.fromkeys(arms, good), {**dict.fromkeys(arms, good), BEST: late}]
    )
    assert [row.note for row in rows if row.name == f"seed 2, {BEST}"] == [LATE]
    assert [goal.value for goal in goals if "differ" in goal.name] == [1]
    only_late, goals = report_on("t", (2,), [dict.fromkeys(arms, late)])
    assert not [row for row in only_late if row.table == "t"]
    assert [goal.name for goal in goals] == ["t: answers that differ"]


def test_answers_of_requests_that_runs_have_in_common_are_compared() -> None:
    assert compared_answers([[{"1/0": "a", "1/1": "b"}, {"1/1": "c", "1/0": "a", "2/0": "d"}]]) == (2, 1)


def test_programs_for_models_of_this_machine_all_end_in_both_orders() -> None:
    programs = in_process_programs(SMALL, 1)
    assert programs == in_process_programs(SMALL, 1) != in_process_programs(SMALL, 2)
    found = [
        asyncio.run(run_on_models(engines({}, policy), SMALL, at_once(programs), 0.0))
        for policy in (None, "throughput")
    ]
    assert set(found[0].run.times) == {one.name for one in programs}
    assert found[0].answers == found[1].answers


@pytest.mark.long
def test_models_of_this_machine_take_turns(tmp_path: Path) -> None:
    programs = in_process_programs(SMALL, 10)
    texts = [text for one in programs for query in one.queries for text in query.texts]
    model = build_checkpoint(tmp_path / "model", texts, shape=TINY)
    rows, goals = in_process_part(SMALL, str(model), (10,), Cells(tmp_path), BenchmarkOptions())
    assert len([row for row in rows if row.table == TABLE]) == 2 * SMALL.turns
    assert len(goals) == 2


@pytest.mark.long
def test_a_report_in_real_time(tmp_path: Path) -> None:
    size = RealSize(replace(QUICK.mixed, scale=0.01), QUICK.agents, SMALL, seeds=1)
    report = measure_real(size, BenchmarkOptions(cells=tmp_path))
    goals = {goal.name: goal for goal in report.goals}
    assert goals["four_apps at 90 %, servers: 1: answers that differ"].value == 0
