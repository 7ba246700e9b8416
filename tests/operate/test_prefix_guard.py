"""The prefix guard: what it wants to look at, what it tells, and that it stays within its bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cluster.prompt_keys import bytes_key
from stretto.model.values import Segment
from stretto.operate.prefix.comparison import canonical_tools, common_length, compare
from stretto.operate.prefix.guard import PrefixGuard, PromptKind
from stretto.operate.prefix.redaction import _ID, changed_line
from stretto.operate.prefix.seen_prompt import MAX_CHARS, SeenPrompt, seen_prompt
from stretto.operate.prefix.shown import fault_text, faults_json
from stretto.wire.prompt_texts import prompt_parts, prompt_text

CHAT = "/v1/chat/completions"
KIND = PromptKind("", "", "m", CHAT, "")
RULES = "\n".join(f"Rule {n}: an answer about matter number {n} is short and says why." for n in range(80))


def chat(system: str, *turns: str) -> dict[str, object]:
    """Return the body of a chat whose turns are the user's and the model's by turns."""
    messages = [{"role": "system", "content": system}]
    messages += [{"role": "assistant" if n % 2 else "user", "content": turn} for n, turn in enumerate(turns)]
    return {"model": "m", "messages": messages}


def show(guard: PrefixGuard, program: str, fields: dict[str, object], kind: PromptKind = KIND) -> bool:
    """Show a prompt to a guard as a router does; return whether its text was wanted."""
    key = bytes_key((Segment(prompt_text(CHAT, fields) or ""),), "")
    is_wanted = guard.arrived(kind, program, key.blocks, key.block_tokens)
    if is_wanted:
        guard.looked(kind, seen_prompt(program, CHAT, fields), 0.001)
    return is_wanted


def turns_of(number: int, count: int) -> list[str]:
    """Return the first turns of a conversation."""
    return [f"Turn {turn} of conversation {number}. " * 12 for turn in range(2 * count - 1)]


def test_a_program_that_goes_on_is_not_looked_at() -> None:
    guard = PrefixGuard()
    wanted = [
        show(guard, str(number), chat(RULES, *turns_of(number, count)))
        for count in range(1, 8)
        for number in range(5)
    ]
    assert not any(wanted)
    assert faults_json(guard) == []


def test_a_line_that_changes_is_told_with_its_place_and_what_it_cost() -> None:
    guard = PrefixGuard()
    for count in range(1, 8):
        for number in range(3):
            head = f"You are helpful.\nNow: 2026-11-27T09:{count:02}:{number:02}Z\n"
            show(guard, str(number), chat(head + RULES, *turns_of(number, count)))
    (fault,) = faults_json(guard)
    assert (fault["changes"], fault["place"], fault["line"]) == ("time", "messages[0]", 2)
    assert fault["sample"] == "Now: ⟨time⟩"
    assert fault["at_tokens"] < 20
    per_request = len(RULES) // 4
    assert per_request * 0.8 < fault["lost_tokens"] / fault["requests"] < per_request * 2
    assert fault["lost_s"] == pytest.approx(fault["lost_tokens"] * 0.001)
    assert sum(loss.tokens for loss in guard.totals().values()) == fault["lost_tokens"]
    assert "time changes in messages[0], line 2" in fault_text(fault)


def test_looks_become_rare_where_nothing_is_found() -> None:
    guard = PrefixGuard()
    wanted = []
    for number in range(400):
        document = " ".join(f"word{number}x{place}" for place in range(600))
        wanted.append(show(guard, str(number), chat("Be brief.", document)))
    assert sum(wanted[:20]) > 5
    assert sum(wanted[200:]) <= 6
    assert faults_json(guard) == []


def test_a_known_fault_is_looked_at_by_a_sample() -> None:
    guard = PrefixGuard()
    wanted = [show(guard, "", chat(f"id {number:032x}\n{RULES}", f"Task {number}")) for number in range(500)]
    assert sum(wanted) < 40
    (fault,) = faults_json(guard)
    assert fault["changes"] == "id"
    assert fault["requests"] > 450, "those that were not looked at count as the sample says"


def test_compaction_and_forks_are_no_faults() -> None:
    guard = PrefixGuard(looks_at_all=True)
    for number in range(6):
        turns = turns_of(number, 8)
        for count in range(1, 8):
            show(guard, str(number), chat(RULES, *turns[: 2 * count - 1]))
        show(guard, str(number), chat(RULES, f"Summary of {number}. " * 30, *turns[-2:]))
        for fork in range(2):
            show(guard, str(number), chat(RULES, *turns[:8], f"Another question, {fork}."))
    assert faults_json(guard) == []


def test_tenants_are_apart() -> None:
    guard = PrefixGuard(looks_at_all=True)
    for number in range(30):
        kind = PromptKind(str(number), str(number), "m", CHAT, "")
        show(guard, "", chat(f"id {number:032x}\n{RULES}", "Task"), kind)
    assert faults_json(guard) == []


def test_kinds_and_texts_are_bounded() -> None:
    guard = PrefixGuard(looks_at_all=True)
    for number in range(600):
        kind = PromptKind("", "", f"m{number}", CHAT, "")
        for turn in range(2):
            show(guard, f"p{number}", chat(f"id {number * 2 + turn:032x}\n{RULES}", "Task"), kind)
    assert guard.num_kinds <= 256
    assert guard.num_texts <= 16 * 6
    prompt = seen_prompt("", CHAT, chat("x" * 200_000, "y" * 200_000))
    assert sum(len(part.text) for part in prompt.parts) <= MAX_CHARS < prompt.num_chars


@pytest.mark.parametrize(
    ("before", "now", "rule", "shown"),
    [
        ("Now: 09:41:02.", "Now: 09:41:13.", "time", "Now: ⟨time⟩."),
        ("Today is Friday, 27 November 2026", "Today is Friday, 28 November 2026", "time", "⟨time⟩"),
        ("epoch 1795760000", "epoch 1795760017", "time", "epoch ⟨time⟩"),
        ("cc=1; cch=a1b2c; x", "cc=1; cch=9f3de; x", "id", "cc=1; cch=⟨id⟩; x"),
        (
            "call 7f0c2f1e-0b1d-4a51-9c1e-0123456789ab",
            "call 1b2c3d4e-0b1d-4a51-9c1e-0123456789ab",
            "id",
            "⟨id⟩",
        ),
        ("Turn 3 of 20.", "Turn 4 of 20.", "number", "Turn ⟨number⟩ of 20."),
        ("You help Ann.", "You help Bob.", "text", "You help ⟨text⟩"),
        ("for Alice, of A", "for Alan, of A", "text", "for ⟨text⟩, of A"),
    ],
)
def test_what_changes_in_a_line(before: str, now: str, rule: str, shown: str) -> None:
    found = changed_line(before, now, common_length(before, now), masks_words=False)
    assert found.rule == rule
    assert shown in found.shown


def test_samples_show_no_secrets_and_nothing_that_was_said() -> None:
    line = "key sk-proj-A1b2C3d4E5f6G7h8I9 for turn {}"
    assert "A1b2" not in changed_line(line.format(1), line.format(2), len(line) - 2, masks_words=False).shown
    letters = "QWERTZUIOPASDFGHJKLYXCVBNMQWERTZUIOPASDFGHJKLYXCVBNM"
    for secret in (
        "password hunter2",
        "passwd: c0rrect",
        "token=abcdef",
        "api key: abcdef",
        "sk-abc1def77",
        "1a2b3c4d",
        "https://me:s3cret@host/",
        f"{'-' * 22} {letters}",
    ):
        word = secret.rsplit(":", 1)[-1].strip("/") if "//" in secret else re.split("[ =]", secret)[-1]
        for line in (f"{secret} at 10:0", f"10:00 {secret}"):
            other = line.replace("10:0", "10:1")
            shown = changed_line(line, other, common_length(line, other), masks_words=False).shown
            assert word[:6] not in shown, secret
            assert "QWERTZ"[:4] not in shown
    said = "My name is Ann and I owe 500 at turn {}"
    shown = changed_line(said.format(1), said.format(2), len(said) - 2, masks_words=True).shown
    assert "Ann" not in shown
    assert "500" not in shown


def tools(*names: str) -> list[dict[str, object]]:
    """Return descriptions of tools."""
    about = "A tool that does what its name says, and says so at some length. " * 4
    return [{"type": "function", "function": {"name": n, "description": f"{n}: {about}"}} for n in names]


def with_tools(given: Sequence[object], task: str) -> SeenPrompt:
    """Return a prompt with tools."""
    return seen_prompt("", CHAT, {**chat(RULES, task), "tools": given})


def test_tools_that_change_places_or_keys() -> None:
    some = tools("read", "write", "find", "list")
    moved = compare(with_tools(some, "a"), with_tools([*some[2:], *some[:2]], "b")).change
    assert moved is not None
    assert (moved.rule, moved.place) == ("order of tools", "tools")
    assert moved.sample == "read before, find now"
    swapped = [{"function": dict(reversed(t["function"].items())), "type": "function"} for t in some]  # type: ignore[attr-defined]
    keys = compare(with_tools(some, "a"), with_tools(swapped, "b")).change
    assert keys is not None
    assert (keys.rule, keys.place) == ("order of keys", "tools")
    assert canonical_tools(swapped) == canonical_tools([*some[2:], *some[:2]])
    assert json.dumps(canonical_tools(swapped)) == json.dumps(canonical_tools(some))


@given(st.text(max_size=60), st.text(max_size=60))
def test_the_common_beginning_of_two_texts(one: str, other: str) -> None:
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == min(len(one), len(other))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "role",
                    "content",
                    "text",
                    "type",
                    "tools",
                    "function",
                    "name",
                    "required",
                    "messages",
                    "system",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from((CHAT, "/v1/messages", "/v1/responses", "/v1/completions", "/generate")), values, values
)
def test_prompts_of_any_form_are_compared(path: str, one: object, other: object) -> None:
    bodies = [
        value if isinstance(value, dict) else {"messages": value, "tools": [value]} for value in (one, other)
    ]
    prompts = [seen_prompt("", path, body) for body in bodies]
    for before in prompts:
        for now in prompts:
            assert (compare(before, now).change is None) or before is not now
        assert list(prompt_parts(path, bodies[0])) == list(prompt_parts(path, bodies[0]))


def test_a_salt_of_caches_is_not_shown() -> None:
    before, now = (
        seen_prompt("1", CHAT, {**chat(RULES, "a"), "cache_salt": f"opensesame {n}"}) for n in "xy"
    )
    change = compare(before, now).change
    assert change is not None
    assert (change.place, "sesame" in change.sample) == ("cache_salt", False)


def test_a_prompt_that_is_longer_than_what_is_compared_goes_on_too() -> None:
    guard = PrefixGuard()
    book = "\n".join(f"Line {n} of a book that all conversations have read." for n in range(8000))
    assert len(book) > 4 * 64 * 1024, "tokens whose blocks are compared"
    wanted = [
        show(guard, str(number), chat(book, *turns_of(number, count)))
        for count in range(1, 5)
        for number in range(2)
    ]
    assert not any(wanted)
    assert show(guard, "0", chat("Now: 9:41\n" + book, *turns_of(0, 5))), "what changes is still seen"


def test_a_hostile_line_is_searched_for_ids_in_a_time_like_its_length() -> None:
    for hostile in ("a-" * 200_000, "-" * 400_000, "deadbeef-" * 40_000):
        assert sum(1 for _ in _ID.finditer(hostile)) == hostile.count("deadbeef")
