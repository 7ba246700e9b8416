"""The beginning of an answer is the same, whichever API and however it comes, as the turn that comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stretto.cluster.recognition.ids import ProgramIds
from stretto.cluster.recognition.messages import AnswerTexts, AskedProgram, Recognised
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.wire.answer_start import AnswerStart
from stretto.wire.turns import read_prompt

CHAT, TEXT, MESSAGES, RESPONSES = "chat/completions", "completions", "messages", "responses"
SAID = 'I look at "a.py" first:\nit has the café\\menu. 😀'
ARGUMENTS = {"path": "a.py", "task": "Look at all files of the old parser, and list what is in them."}
TASK: dict[str, Any] = {"role": "user", "content": "Write a parser."}


def asked(api: str, fields: Mapping[str, Any]) -> AskedProgram:
    return AskedProgram("t", ProgramIds(), read_prompt(f"/v1/{api}", fields, "t"))


def events(*data: Mapping[str, Any]) -> list[bytes]:
    return [f"data: {json.dumps(one, separators=(',', ':'))}\n\n".encode() for one in data]


def chat_chunks(*deltas: Mapping[str, Any]) -> list[bytes]:
    return events(*({"id": "1", "choices": [{"index": 0, "delta": dict(delta)}]} for delta in deltas))


def parts(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def streamed(api: str, data: Sequence[bytes]) -> AnswerTexts | None:
    answer = AnswerStart(f"/v1/{api}")
    for one in data:
        answer.feed(one)
    return answer.texts()


def whole(api: str, body: Mapping[str, Any]) -> AnswerTexts | None:
    answer = AnswerStart(f"/v1/{api}")
    answer.take_whole(json.dumps(body).encode())
    return answer.texts()


def goes_on(
    api: str, first: Mapping[str, Any], answer: AnswerTexts | None, later: Mapping[str, Any]
) -> Recognised:
    """Return what is made of a later prompt, after another program has had the same first prompt."""
    recogniser = Recogniser()
    twin = recogniser.arrive(asked(api, first))
    recogniser.answered(twin.key, AnswerTexts("Something else.", "Something else."))
    one = recogniser.arrive(asked(api, first))
    recogniser.answered(one.key, answer)
    found = recogniser.arrive(asked(api, later))
    assert found.program == one.program
    return found


def tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "agent", "arguments": arguments}}


COMPACT = json.dumps(ARGUMENTS, separators=(",", ":"))
CHAT_STREAM = chat_chunks(
    {"role": "assistant", "content": ""},
    *({"content": text} for text in parts(f" {SAID}")),
    {"tool_calls": [{"index": 0, **tool_call("")}]},
    *({"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in parts(COMPACT, 5)),
)
CHAT_WHOLE = {
    "choices": [{"message": {"role": "assistant", "content": SAID, "tool_calls": [tool_call(COMPACT)]}}]
}
CHAT_AGAIN = {
    "messages": [
        TASK,
        {"role": "assistant", "content": SAID, "tool_calls": [tool_call(json.dumps(ARGUMENTS, indent=1))]},
        {"role": "tool", "tool_call_id": "call_1", "content": "300 lines"},
    ]
}
MESSAGES_STREAM = events(
    {"type": "message_start", "message": {"model": "m", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in parts(SAID)),
    {
        "type": "content_block_start",
        "content_block": {"type": "tool_use", "id": "t1", "name": "agent", "input": {}},
    },
    *(
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}
        for text in parts(json.dumps(ARGUMENTS))
    ),
)
BLOCKS = [
    {"type": "thinking", "thinking": "Hm."},
    {"type": "text", "text": SAID},
    {"type": "tool_use", "id": "t1", "name": "agent", "input": ARGUMENTS},
]
MESSAGES_AGAIN = {
    "system": "The time is 12:00.",
    "messages": [
        TASK,
        {"role": "assistant", "content": BLOCKS[1:]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "300 lines"}]},
    ],
}
ITEMS = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]},
    {"type": "function_call", "call_id": "c", "name": "agent", "arguments": COMPACT},
]
RESPONSE = {"id": "resp_1", "output": ITEMS, "tools": [{"name": "agent"}], "instructions": "Be brief."}
RESPONSES_STREAM = events(
    *({"type": "response.output_text.delta", "delta": text} for text in parts(SAID)),
    {"type": "response.completed", "response": RESPONSE},
)
RESPONSES_AGAIN = {
    "input": [TASK, *ITEMS[1:], {"type": "function_call_output", "call_id": "c", "output": "300 lines"}]
}


@pytest.mark.parametrize(
    ("api", "first", "answer", "later"),
    [
        (CHAT, {"messages": [TASK]}, streamed(CHAT, CHAT_STREAM), CHAT_AGAIN),
        (CHAT, {"messages": [TASK]}, whole(CHAT, CHAT_WHOLE), CHAT_AGAIN),
        (MESSAGES, {"messages": [TASK]}, streamed(MESSAGES, MESSAGES_STREAM), MESSAGES_AGAIN),
        (MESSAGES, {"messages": [TASK]}, whole(MESSAGES, {"content": BLOCKS}), MESSAGES_AGAIN),
        (RESPONSES, {"input": "Write a parser."}, streamed(RESPONSES, RESPONSES_STREAM), RESPONSES_AGAIN),
        (RESPONSES, {"input": [TASK]}, whole(RESPONSES, RESPONSE), RESPONSES_AGAIN),
        (
            TEXT,
            {"prompt": "Write"},
            streamed(TEXT, events(*({"choices": [{"text": text}]} for text in parts(SAID)))),
            {"prompt": f"Write{SAID} and so on"},
        ),
        (
            TEXT,
            {"prompt": "Write"},
            whole(TEXT, {"choices": [{"text": SAID}]}),
            {"prompt": f"Write{SAID} and so on"},
        ),
    ],
)
def test_an_answer_is_known_again_in_the_form_in_which_it_comes_back(
    api: str, first: dict[str, Any], answer: AnswerTexts | None, later: dict[str, Any]
) -> None:
    assert answer is not None
    found = goes_on(api, first, answer, later)
    assert (found.confidence, found.way) == ("sure", "continues")
    if api != TEXT:
        assert answer.given == [ARGUMENTS["task"]]


def test_texts_of_an_answer_that_is_json_are_known_again_by_themselves() -> None:
    plan = json.dumps({"tasks": [ARGUMENTS["task"], "short"]})
    answer = whole(CHAT, {"choices": [{"message": {"content": plan}}]})
    assert answer is not None
    assert answer.given == [ARGUMENTS["task"]]
    later = {"messages": [{"role": "user", "content": f"Do this: {ARGUMENTS['task']}"}]}
    assert goes_on(CHAT, {"messages": [TASK]}, answer, later).way == "answer_inside"


def test_thoughts_and_spaces_at_the_ends_do_not_count() -> None:
    answer = whole(CHAT, {"choices": [{"message": {"content": f"<think>Hm, what?</think>\n\n{SAID}\n"}}]})
    later = {"messages": [TASK, {"role": "assistant", "content": SAID}, TASK]}
    assert goes_on(CHAT, {"messages": [TASK]}, answer, later).way == "continues"


def test_a_system_prompt_with_the_time_hides_no_program() -> None:
    def prompt(time: int, *more: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": f"It is {time}."}, TASK, *more]}

    answer = whole(CHAT, {"choices": [{"message": {"content": SAID}}]})
    later = prompt(2, {"role": "assistant", "content": [{"type": "text", "text": SAID}]}, TASK)
    assert goes_on(CHAT, prompt(1), answer, later).way == "continues"


def test_only_the_beginning_of_a_long_answer_is_read() -> None:
    answer = AnswerStart("/v1/chat/completions")
    for event in chat_chunks(*({"content": f"word {number} "} for number in range(5000))):
        answer.feed(event)
    texts = answer.texts()
    assert texts is not None
    assert 4000 < len(texts.text) <= 4096
    text = "".join(f"word {number} " for number in range(5000))
    later = {"messages": [TASK, {"role": "assistant", "content": text}, TASK]}
    assert goes_on(CHAT, {"messages": [TASK]}, texts, later).way == "continues"


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (CHAT, b"no JSON"),
        (CHAT, b"[]"),
        (CHAT, b'{"choices":[]}'),
        (CHAT, b'{"choices":[{"message":null}]}'),
        (CHAT, b'{"choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}'),
        (CHAT, b'{"choices":[{"message":{"content":7,"tool_calls":[1,{"function":3}]}}]}'),
        (TEXT, b'{"choices":[{"text":null}]}'),
        (MESSAGES, b'{"content":null}'),
        (RESPONSES, b'{"output":[7,{"type":"message"}]}'),
        ("embeddings", b'{"data":[]}'),
        (CHAT, b"[" * 100_000),
    ],
)
def test_answers_of_other_forms_have_no_texts_or_some(api: str, body: bytes) -> None:
    answer = AnswerStart(f"/v1/{api}")
    answer.take_whole(body)
    texts = answer.texts()
    assert texts is None or isinstance(texts.turn, str)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": 7},
        {"messages": [7, None, {"role": 3, "content": {"a": [1, {"b": None}]}}]},
        {"messages": [{"role": "assistant", "tool_calls": [None, {"function": None}, {"function": {}}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 10**6}}]}
            ]
        },
        {"messages": []},
        {"prompt": [1, 2, 3]},
        {"prompt": ["a", "b"]},
        {"prompt": "a\ud800"},
        {"messages": [{"role": "user", "content": "a\ud800" * 100}]},
        {},
    ],
)
def test_prompts_of_any_form_are_read(fields: dict[str, Any]) -> None:
    recogniser = Recogniser()
    for _ in range(2):
        found = recogniser.arrive(asked(CHAT if "messages" in fields else TEXT, fields))
        recogniser.answered(found.key, AnswerTexts("a\ud800" * 50, "a\ud800" * 50))
        recogniser.check_invariants()
