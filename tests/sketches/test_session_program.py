"""A program on semantic variables, as somebody would write it who has only read what sessions promise.

A chapter is written from an outline that the client sends late: of two drafts one fails, and what is left is
polished. A blurb for the chapter is spliced on later. It is first wanted some time ("throughput"), and then
soon ("latency"), while other sessions have pages translated on the same model.

The program runs in virtual time, where its order is seen to the second, and in a runtime.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Failure, Runtime, deploy
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineFailure
from stretto.model.profile import Profile
from stretto.model.tasks import LLMEvent, LLMTask, Started
from stretto.sched.actions import Reprioritise, Settled
from stretto.sched.messages import Close, Extend, Open, Provide, Unwant, Want
from stretto.sim.driver import VirtualDriver

PROFILE = Profile(base_s=1.0, per_output_s=0.1)
"""A second for a prompt, one prompt at a time, and a tenth of a second for each word of an answer."""
NUM_PAGES = 12


def compiled(text: str) -> ExecutionGraph:
    return compile_graph(parse_graph(text), {"llm": PROFILE})


CHAPTER = compiled(
    """
    graph chapter(%outline: text)
      %bold_kv  = prefill([c"A bold draft of ", %outline]) : kv @llm
      %bold     = decode(%bold_kv) {max_tokens=8} : text @llm
      %plain_kv = prefill([c"A plain draft of ", %outline]) : kv @llm
      %plain    = decode(%plain_kv) {max_tokens=8} : text @llm
      %best     = select(%bold, %plain) : text
      %kv       = prefill([c"Polish ", %best]) : kv @llm
      %chapter  = decode(%kv) {max_tokens=8} : text @llm
      return %bold, %chapter
    """
)
BLURB = compiled(
    """
    graph blurb(%chapter: text)
      %kv    = prefill([c"A blurb for ", %chapter]) : kv @llm
      %blurb = decode(%kv) {max_tokens=8} : text @llm
      return %blurb
    """
)
TRANSLATION = compiled(
    """
    graph translation(%page: text)
      %kv         = prefill([c"Translate ", %page]) : kv @llm
      %translated = decode(%kv) {max_tokens=8} : text @llm
      return %translated
    """
)


def fail_if_bold(task: LLMTask) -> BaseException | None:
    return EngineFailure("too bold") if task.step == "bold" else None


# --- in virtual time


@dataclass(frozen=True)
class Run:
    """What a run has told the client, with the seconds at which it did."""

    values: dict[str, object]
    came_s: dict[str, float]
    overtakes_s: list[float]

    @property
    def num_pages_before_blurb(self) -> int:
        """Translations that came before the blurb."""
        return sum(self.came_s[f"page {number}"] < self.came_s["blurb"] for number in range(NUM_PAGES))


def told(value: object) -> object:
    """A value, or in words what it has failed with."""
    return f"failed: {value.error}" if isinstance(value, Failure) else value


def simulate(*, is_strict: bool) -> Run:
    config = FakeLLMConfig(fail_on=fail_if_bold)
    driver = VirtualDriver([deploy("llm", FakeLLM, config, contract="llm", profile=PROFILE)], check=True)
    driver.send(Open("book"))
    driver.send(Extend("book", CHAPTER))
    for number in range(NUM_PAGES):
        page = f"page {number}"
        driver.send(Open(page))
        driver.send(Extend(page, TRANSLATION))
        driver.send(Provide(page, "page", page))
        driver.send(Want(page, "translated"))
    driver.send(Provide("book", "outline", "a whale and a captain"), 0.5)
    driver.send(Extend("book", BLURB), 2.0)
    driver.send(Want("book", "blurb", "throughput"), 2.0)
    if is_strict:
        driver.send(Want("book", "blurb", "latency"), 2.5)
        driver.send(Unwant("book", "blurb", "throughput"), 2.5)
    driver.run()
    driver.send(Close("book"), driver.now_s)
    driver.run()
    settled = [(at_s, action) for at_s, action in driver.actions if isinstance(action, Settled)]
    names = {
        (action.query, action.name): action.name if action.query == "book" else action.query
        for _, action in settled
    }
    return Run(
        {names[action.query, action.name]: told(action.value) for _, action in settled},
        {names[action.query, action.name]: at_s for at_s, action in settled},
        [
            at_s
            for at_s, action in driver.actions
            if isinstance(action, Reprioritise) and action.rank[0] < -1e6
        ],
    )


def test_in_virtual_time_a_stricter_get_overtakes_and_changes_no_answer() -> None:
    lax, strict = simulate(is_strict=False), simulate(is_strict=True)
    assert lax.values == strict.values
    assert strict.values["bold"] == "failed: step 'bold': too bold"
    assert not str(strict.values["blurb"]).startswith("failed"), "it comes of the draft that is there"
    assert lax.overtakes_s == []
    assert strict.overtakes_s == [2.5, 2.5], "two drafts waited at the instance"
    assert strict.came_s["bold"] == 4.0, "a draft is the next that the instance begins"
    assert strict.came_s["blurb"] < lax.came_s["blurb"] - 5.0
    assert strict.num_pages_before_blurb < lax.num_pages_before_blurb == NUM_PAGES


# --- in a runtime


@dataclass
class Desk:
    """What the model of a runtime has on its desk; it begins with one request and waits for `go_on`."""

    admitted: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)


class DeskLLM(FakeLLM):
    """Works at one request at a time, in the order of their ranks."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(FakeLLMConfig(max_running=1, fail_on=fail_if_bold))
        self._desk = desk
        self._steps: dict[int, str] = {}
        self._urgent: set[int] = set()

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        super().admit(task, rank)
        self._steps[task.id] = task.step
        self._desk.admitted.append(task.step)

    def reprioritise(self, task: int, rank: tuple[float, ...]) -> None:
        super().reprioritise(task, rank)
        if rank[0] < -1e6:
            self._urgent.add(task)
        if len(self._urgent) == 2:  # both drafts
            self._desk.go_on.set()

    def step(self) -> list[LLMEvent]:
        if self._desk.begun and not self._desk.go_on.is_set():
            time.sleep(0.001)
            return []
        events = super().step()
        self._desk.begun += [self._steps[event.task] for event in events if isinstance(event, Started)]
        return events


def model(desk: Desk) -> Deployment:
    return deploy("llm", DeskLLM, desk, contract="llm", profile=PROFILE)


async def run_program(desk: Desk) -> dict[str, object]:
    """Return the values that the client asks for."""
    async with Runtime([model(desk)]) as runtime, await runtime.open_session() as book:
        book.extend(CHAPTER)
        pages = []
        for number in range(NUM_PAGES):
            session = await runtime.open_session()
            session.extend(TRANSLATION)
            session.provide("page", f"page {number}")
            pages.append(asyncio.create_task(session.get("translated")))
        book.provide("outline", "a whale and a captain")
        book.extend(BLURB)
        some_time = asyncio.create_task(book.get("blurb", "throughput"))
        while len(desk.admitted) < NUM_PAGES + 2:
            await asyncio.sleep(0.001)
        soon = asyncio.create_task(book.get("blurb", "latency"))
        answers = {"blurb": await soon, "chapter": await book.get("chapter")}
        answers.update({f"page {number}": await page for number, page in enumerate(pages)})
        assert await some_time == answers["blurb"]
        return answers


def test_in_a_runtime_a_stricter_get_overtakes_and_answers_are_those_of_virtual_time() -> None:
    desk = Desk()
    answers = asyncio.run(asyncio.wait_for(run_program(desk), 30))
    simulated = simulate(is_strict=True).values
    assert answers == {name: simulated[name] for name in answers}
    assert sorted(desk.begun[1:3]) == ["bold", "plain"], "the drafts, before all pages but the one begun"
