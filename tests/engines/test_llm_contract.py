"""One suite for every LLM engine: what the rest of the system may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from support.llm_running import SteppedServer, drain, run, task, value
from support.own_engines import Backwards, BackwardsConfig

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from benchmarks.common.reference.engine import ReferenceConfig, ReferenceLLM
from stretto.engines.contract import SteppedLLM
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask, Piece, Started
from stretto.model.values import Prompt, Segment

pytest_plugins = ("support.llm_fixtures",)

MakeLLM = Callable[[], SteppedLLM]
RIVER = "The river runs from the mountains to the sea, through forests and fields."
FUGUE = "In a fugue, the stretto is the passage where the answer enters early."


def prompt(question: str, context: str = f"{FUGUE} {RIVER}") -> Prompt:
    return (
        Segment("Answer from the context.\n"),
        Segment(context, "context"),
        Segment("\nQuestion: "),
        Segment(question, "question"),
        Segment("\nAnswer:"),
    )


PROMPTS = (
    prompt("Where does the river run?"),
    prompt("What is a stretto?"),
    prompt("Who composed it?"),
    (Segment("Repeat:"), Segment("日本語 🎼 <|im_end|>", "text")),
)
AS_LIST = (Segment("Rewrite the question as a JSON list:\n"), Segment("What is a stretto?", "question"))
TEXT = Decode(max_tokens=12)
LIST = Decode(max_tokens=40, items="json_list", max_items=2)


KINDS = ("standin", "fake", "own", "reference", "transformer", "server", "server_ids", "server_chat")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_llm(kind: str, tiny_checkpoint: Path) -> Iterator[MakeLLM]:
    makers: dict[str, Callable[[], SteppedLLM]] = {
        "standin": lambda: StandIn(StandInConfig(max_running=2)),
        "fake": lambda: FakeLLM(FakeLLMConfig(max_running=2)),
        "own": lambda: Backwards(BackwardsConfig(max_running=2)),
        "reference": lambda: ReferenceLLM(ReferenceConfig(tiny_checkpoint, max_running=2)),
        "transformer": lambda: TransformerLLM(TransformerConfig(tiny_checkpoint, max_running=2)),
        "server": SteppedServer,
        "server_ids": lambda: SteppedServer(tokenizer=tiny_checkpoint),
        "server_chat": lambda: SteppedServer("chat"),
    }
    made: list[SteppedLLM] = []

    def make() -> SteppedLLM:
        made.append(makers[kind]())
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture
def llm(make_llm: MakeLLM) -> SteppedLLM:
    return make_llm()


def in_process(kind: str) -> None:
    if kind.startswith("server"):
        pytest.skip("a server orders and caches by itself")


def check_events(events: list[LLMEvent]) -> None:
    """Check the events of each task: started, pieces, ending; the pieces make up the value."""
    for _, of_task in groupby(sorted(events, key=lambda event: event.task), key=lambda event: event.task):
        started, *pieces, ending = of_task
        assert isinstance(started, Started)
        assert all(isinstance(piece, Piece) for piece in pieces)
        values = [piece.value for piece in pieces if isinstance(piece, Piece)]
        match ending:
            case Done(value=str() as text):
                assert "".join(values) == text == text.strip()
            case Done(value=list() as items):
                assert values == items
            case Done(value=None):
                assert values == []
            case _:
                assert isinstance(ending, Failed)


def values(events: list[LLMEvent]) -> dict[int, object]:
    return {event.task: event.value for event in events if isinstance(event, Done)}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_pieces_join_to_the_value(llm: SteppedLLM, prompt: Prompt) -> None:
    llm.admit(task(7, prompt, TEXT), ())
    events = drain(llm)
    check_events(events)
    assert isinstance(events[-1], Done)
    assert 0 < events[-1].usage.num_output_tokens <= TEXT.max_tokens
    assert not llm.has_work()


def test_list_is_delivered_item_by_item(llm: SteppedLLM, kind: str) -> None:
    """Random weights write no JSON: there the task fails, and says why."""
    llm.admit(task(7, AS_LIST, LIST), ())
    events = drain(llm)
    check_events(events)
    if kind in ("reference", "transformer"):
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, BadReply)
    else:
        assert isinstance(events[-1], Done)
        assert isinstance(events[-1].value, list)
        assert 1 <= len(events[-1].value) <= 2


def test_prefill_is_done_with_none(llm: SteppedLLM) -> None:
    llm.admit(task(7, PROMPTS[0], None), ())
    events = drain(llm)
    check_events(events)
    assert values(events) == {7: None}


@pytest.mark.parametrize("num_segments", [1, 3, 5])
def test_prefill_does_not_change_the_answer(make_llm: MakeLLM, num_segments: int) -> None:
    warmed = make_llm()
    run(warmed, PROMPTS[0][:num_segments], None)
    assert value(warmed, PROMPTS[0], TEXT) == value(make_llm(), PROMPTS[0], TEXT)


def test_forks_of_one_prefix_answer_as_if_alone(make_llm: MakeLLM) -> None:
    forked = make_llm()
    run(forked, PROMPTS[0][:3], None)
    for number, prompt in enumerate(PROMPTS[:3]):
        forked.admit(task(number, prompt, TEXT), ())
    events = drain(forked)
    check_events(events)
    assert values(events) == {n: value(make_llm(), p, TEXT) for n, p in enumerate(PROMPTS[:3])}


def test_queries_interleave_without_touching_each_other(make_llm: MakeLLM) -> None:
    llm = make_llm()
    events: list[LLMEvent] = []
    for number in range(8):
        llm.admit(task(number, PROMPTS[number % 4], TEXT, query=f"q{number % 3}"), (float(number % 2),))
        events += llm.step()
    events += drain(llm)
    check_events(events)
    assert values(events) == {number: value(make_llm(), PROMPTS[number % 4], TEXT) for number in range(8)}


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_cancelled_task_is_never_heard_of_again(llm: SteppedLLM, num_steps: int) -> None:
    llm.admit(task(1, PROMPTS[0], TEXT), ())
    for _ in range(num_steps):
        llm.step()
    llm.cancel(1)
    assert all(event.task != 1 for event in drain(llm))
    assert not llm.has_work()
    assert run(llm, PROMPTS[1], TEXT)


def test_cancelling_one_leaves_the_others(make_llm: MakeLLM) -> None:
    llm = make_llm()
    for number in (1, 2, 3):
        llm.admit(task(number, PROMPTS[number - 1], TEXT), ())
    events = llm.step()
    llm.cancel(2)
    llm.cancel(99)
    events = [event for event in [*events, *drain(llm)] if event.task != 2]
    check_events(events)
    assert values(events) == {n: value(make_llm(), PROMPTS[n - 1], TEXT) for n in (1, 3)}


def test_smaller_rank_starts_first_and_equals_in_order(llm: SteppedLLM, kind: str) -> None:
    in_process(kind)
    for number, rank in enumerate([1.0, 0.0, 2.0, 0.0, 1.0]):
        llm.admit(task(number, PROMPTS[0], Decode(max_tokens=2)), (rank,))
    assert [event.task for event in drain(llm) if isinstance(event, Started)] == [1, 3, 0, 4, 2]


def test_a_new_rank_changes_when_a_task_starts(llm: SteppedLLM, kind: str) -> None:
    in_process(kind)
    for number in range(6):
        llm.admit(task(number, PROMPTS[0], Decode(max_tokens=2)), (float(number),))
    llm.reprioritise(5, (-1.0,))
    llm.reprioritise(0, (9.0,))
    llm.reprioritise(99, (0.0,))
    assert [event.task for event in drain(llm) if isinstance(event, Started)] == [5, 1, 2, 3, 4, 0]


def test_at_most_max_running_run_at_once(llm: SteppedLLM, kind: str) -> None:
    in_process(kind)
    for number in range(5):
        llm.admit(task(number, PROMPTS[0], TEXT), ())
    running: set[int] = set()
    while llm.has_work():
        events = llm.step()
        running |= {event.task for event in events if isinstance(event, Started)}
        assert len(running) <= 2
        running -= {event.task for event in events if isinstance(event, Done)}


def test_prefix_is_cached_until_its_query_is_released(llm: SteppedLLM, kind: str) -> None:
    in_process(kind)
    first, second = (run(llm, PROMPTS[0], TEXT) for _ in range(2))
    llm.release("q")
    third = run(llm, PROMPTS[0], TEXT)
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert isinstance(third, Done)
    assert first.usage.num_cached_tokens == third.usage.num_cached_tokens == 0
    assert second.usage.num_cached_tokens == second.usage.num_prompt_tokens - 1
    assert first.value == second.value == third.value


def test_tenants_never_find_each_others_prefixes(llm: SteppedLLM, kind: str) -> None:
    in_process(kind)
    endings = []
    for number, tenant in enumerate(["a", "b", "a", "b"]):
        llm.admit(LLMTask(number, tenant, "", PROMPTS[0], TEXT, tenant), ())
        endings.append(drain(llm)[-1])
    num_cached = [ending.usage.num_cached_tokens for ending in endings if isinstance(ending, Done)]
    assert num_cached[:2] == [0, 0]
    assert num_cached[2] == num_cached[3] > 0
    assert len({ending.value for ending in endings if isinstance(ending, Done)}) == 1


@pytest.mark.parametrize(
    "decode",
    [
        Decode(items="yaml"),
        Decode(max_tokens=0),
        Decode(stop=("",)),
        Decode(items="json_list", max_items=0),
    ],
)
def test_bad_task_fails_alone_and_names_its_step(make_llm: MakeLLM, decode: Decode) -> None:
    llm = make_llm()
    llm.admit(task(1, PROMPTS[0], TEXT), ())
    llm.admit(task(2, PROMPTS[0], decode), ())
    events = drain(llm)
    check_events(events)
    assert values(events) == {1: value(make_llm(), PROMPTS[0], TEXT)}
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert isinstance(failed.error, ConfigError)
    assert failed.error.step == "step2"


@pytest.mark.parametrize(
    "setting",
    [
        {"top_p": 0.5},
        {"top_k": 2},
        {"min_p": 0.1},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"min_tokens": 2},
        {"stop_tokens": (5,)},
        {"ignore_eos": True},
        {"logprobs": 2},
        {"regex": "[a-z]+"},
        {"choices": ("yes", "no")},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_setting_is_followed_or_refused_by_name(
    llm: SteppedLLM, kind: str, setting: dict[str, object]
) -> None:
    if "regex" in setting:
        pytest.importorskip("llguidance")
    ending = run(llm, PROMPTS[0], Decode(max_tokens=4, temperature=0.5, **setting))  # type: ignore[arg-type]
    if kind == "transformer":
        assert isinstance(ending, Done)
    elif isinstance(ending, Failed):
        assert isinstance(ending.error, ConfigError)
        assert next(iter(setting)) in str(ending.error)


def test_text_ends_before_its_stop_string(llm: SteppedLLM) -> None:
    text = value(llm, PROMPTS[0], TEXT)
    assert isinstance(text, str)
    stop = text[len(text) // 2]
    stopped = value(llm, PROMPTS[0], Decode(max_tokens=12, stop=(stop,)))
    assert isinstance(stopped, str)
    assert stop not in stopped


@pytest.mark.parametrize("stop", [(), ("e",)], ids=["to the end", "to a stop string"])
def test_what_was_written_is_told_with_all_white_space(make_llm: MakeLLM, stop: tuple[str, ...]) -> None:
    done = run_continued(make_llm(), PROMPTS[0], Decode(max_tokens=12, stop=stop))
    as_it_is = value(make_llm(), PROMPTS[0], Decode(max_tokens=12, stop=stop, strip=False))
    assert done.written is not None
    assert done.written.text == as_it_is
    assert done.value == done.written.text.strip()


def test_a_prompt_that_goes_on_from_an_answer_computes_nothing_twice(llm: SteppedLLM, kind: str) -> None:
    """The KV of the last token is never computed before a prompt goes on from it."""
    in_process(kind)
    first = run_continued(llm, PROMPTS[0], TEXT)
    assert first.written is not None
    fill = Segment("\nAnd now: ")
    second = run(llm, (*PROMPTS[0], first.written, fill), TEXT)
    assert isinstance(second, Done)
    num_written = first.usage.num_output_tokens
    if first.written.tokens is not None:
        num_written = len(first.written.tokens.ids)
        assert first.written.tokens.num_chars == len(first.written.text)
    assert second.usage.num_cached_tokens >= first.usage.num_prompt_tokens + num_written - 1


def run_continued(llm: SteppedLLM, prompt: Prompt, decode: Decode) -> Done:
    llm.admit(LLMTask(0, "q", "step", prompt, decode, is_continued=True), ())
    ending = drain(llm)[-1]
    assert isinstance(ending, Done), ending
    return ending
