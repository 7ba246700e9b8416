"""What recognition costs: processor time for a prompt and an answer, and memory for a program."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from time import process_time

from benchmarks.report import Row, spread
from stretto.cluster.recognition.fingerprints import ChatPrint, PromptPrint, TextPrint, Turn
from stretto.cluster.recognition.ids import ProgramIds
from stretto.cluster.recognition.messages import AnswerTexts, AskedProgram
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.wire.answer_start import AnswerStart

TIMES = "processor time of recognition"
EVENTS = "processor time for an event of a stream"
MEMORY = "memory of programs"
_CHAT = "/v1/chat/completions"
_NO_IDS = ProgramIds()
_NEVER = 10**9
_NUM_KNOWN = 2000
"""Programs that are known while times are measured."""


def _words(rng: random.Random, length: int) -> str:
    words = []
    while length > 0:
        words.append("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))))
        length -= len(words[-1]) + 1
    return " ".join(words)


def _turns(rng: random.Random, length: int, turn: int = 1000) -> list[Turn]:
    """Return the turns of a prompt of a length, each of about `turn` characters."""
    return [("assistant" if place % 2 else "user", _words(rng, turn)) for place in range(length // turn)]


def _known(rng: random.Random) -> Recogniser:
    recogniser = Recogniser(most_vain=_NEVER)  # else most of these prompts would not be searched
    for _ in range(_NUM_KNOWN):
        found = recogniser.arrive(AskedProgram("", _NO_IDS, ChatPrint("", _turns(rng, 1000))))
        text = _words(rng, 300)
        recogniser.answered(found.key, AnswerTexts(text, text))
    return recogniser


def prompt_rows(repeats: int) -> list[Row]:
    """Return what the recognition of a prompt takes: of a known program, where its beginning tells, and of an
    unknown one, in which answers are looked for.
    """
    rng = random.Random(0)
    recogniser = _known(rng)
    rows = []
    for name, length in (("12 kB", 12_000), ("400 kB", 400_000)):
        for is_known in (True, False):
            num = max(20, repeats // 4)
            prompts = [_next_turns(recogniser, rng, length, is_known=is_known) for _ in range(num)]
            times = [_time(lambda turns=turns: _ask(recogniser, ChatPrint("", turns))) for turns in prompts]  # type: ignore[misc]
            label = f"prompt of {name}, {'a known program' if is_known else 'a first call'}"
            rows.append(Row(TIMES, label, spread([1000 * time for time in times], "ms")))
        texts = [_words(rng, length) for _ in range(20)]
        times = [_time(lambda text=text: _ask(recogniser, TextPrint("", text))) for text in texts]  # type: ignore[misc]
        rows.append(Row(TIMES, f"prompt of {name}, one text", spread([1000 * time for time in times], "ms")))
    return rows


def _next_turns(recogniser: Recogniser, rng: random.Random, length: int, *, is_known: bool) -> list[Turn]:
    """Return a prompt that goes on with a program, or one of its own that looks alike."""
    turns = _turns(rng, length)
    if not is_known:
        return turns
    answer = _words(rng, 300)
    found = recogniser.arrive(AskedProgram("", _NO_IDS, ChatPrint("", turns)))
    recogniser.answered(found.key, AnswerTexts(answer, answer))
    # the texts of a next request are objects of their own, whose hashes are not known yet
    return [(role, "".join(list(text))) for role, text in [*turns, ("assistant", answer), ("user", "go on")]]


def _ask(recogniser: Recogniser, prompt: PromptPrint) -> None:
    recogniser.failed(recogniser.arrive(AskedProgram("", _NO_IDS, prompt)).key)


def _time(work: Callable[[], object]) -> float:
    start_s = process_time()
    work()
    return process_time() - start_s


def answer_rows(repeats: int) -> list[Row]:
    """Return what an answer takes: reading it on its way, and remembering it."""
    rng = random.Random(1)
    events = [_event(f" {_words(rng, 4)}") for _ in range(1000)]
    recogniser = _known(rng)
    rows = []
    times = [1e6 * _time(lambda: _read(events)) / len(events) for _ in range(repeats)]
    rows.append(Row(EVENTS, "answer of 1,000 events, as it is read", spread(times, "us")))
    first = events[:100]
    times = [1e6 * _time(lambda: _read(first)) / len(first) for _ in range(repeats)]
    rows.append(Row(EVENTS, "answer of 100 events, as it is read", spread(times, "us")))
    parsed = [1e6 * _time(lambda: _parse(events)) / len(events) for _ in range(max(5, repeats // 10))]
    rows.append(Row(EVENTS, "the same, 1,000 events parsed as JSON", spread(parsed, "us")))
    remembered = []
    for _ in range(repeats):
        text = _words(rng, 4000)
        found = recogniser.arrive(AskedProgram("", _NO_IDS, ChatPrint("", _turns(rng, 1000))))
        answer = AnswerTexts(text, text)
        remembered.append(1000 * _time(lambda: recogniser.answered(found.key, answer)))  # noqa: B023
    rows.append(Row(TIMES, "answer of 4 kB, remembered", spread(remembered, "ms")))
    return rows


def _event(text: str) -> bytes:
    delta = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [delta],
    }
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


def _read(events: Sequence[bytes]) -> AnswerTexts | None:
    answer = AnswerStart(_CHAT)
    for event in events:
        answer.feed(event)
    return answer.texts()


def _parse(events: Sequence[bytes]) -> str:
    return "".join(json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events)


def memory_rows(num_programs: int) -> list[Row]:
    """Return the bytes of a program in memory."""
    rows = []
    for num_answers in (1, 4):
        tracemalloc.start()
        recogniser = Recogniser(num_programs)
        rng = random.Random(2)
        num = num_programs // num_answers
        for number in range(num):
            turns: list[Turn] = [("user", f"task {number}")]
            for _ in range(num_answers):
                found = recogniser.arrive(AskedProgram("", _NO_IDS, ChatPrint("", turns)))
                text = f"{number} {_words(rng, 150)}"
                recogniser.answered(found.key, AnswerTexts(text, text))
                turns = [*turns, ("assistant", text), ("user", "go on")]
        num_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        values = {"programs": len(recogniser), "bytes_per_program": num_bytes / len(recogniser)}
        rows.append(Row(MEMORY, f"programs of {num_answers} answers", values))
    return rows
