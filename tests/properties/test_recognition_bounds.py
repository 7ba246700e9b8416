"""Whatever clients send, one tenant's programs are its own, and take a bounded part of the memory."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.cluster.recognition.anchors import anchor_pieces, anchors_of, data_of
from stretto.cluster.recognition.fingerprints import ChatPrint, TextPrint
from stretto.cluster.recognition.ids import ProgramIds
from stretto.cluster.recognition.messages import AnswerTexts, AskedProgram
from stretto.cluster.recognition.recogniser import Recogniser

NUM_EXAMPLES = int(os.environ.get("STRETTO_EXAMPLES", "28"))
TENANTS = ("a", "b", "c")
turns = st.lists(
    st.tuples(
        st.sampled_from(("user", "assistant", "tool")), st.sampled_from(("", "x", "y" * 50, "z\n" * 60))
    ),
    max_size=5,
)
ids = st.builds(
    ProgramIds,
    name=st.sampled_from(("", "s:1", "s:2")),
    parent=st.sampled_from(("", "s:1")),
    hint=st.sampled_from(("", "h:1")),
    continues=st.sampled_from(("", "r1")),
    is_final=st.booleans(),
)
steps = st.lists(
    st.tuples(st.sampled_from(TENANTS), turns, ids, st.sampled_from((None, "", "y" * 50, "z\n" * 60, "new"))),
    max_size=40,
)


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(steps, st.integers(1, 6))
def test_programs_of_tenants_never_meet_and_are_bounded(
    calls: list[tuple[str, list[tuple[str, str]], ProgramIds, str | None]], most: int
) -> None:
    recogniser = Recogniser(most)
    owners: dict[int, str] = {}
    for number, (tenant, said, named, answer) in enumerate(calls):
        prompt = (
            ChatPrint(tenant, said) if number % 2 else TextPrint(tenant, "".join(text for _, text in said))
        )
        found = recogniser.arrive(AskedProgram(tenant, named, prompt))
        assert owners.setdefault(found.program, tenant) == tenant
        assert owners[found.told_as] == tenant
        recogniser.check_invariants()
        if number % 5 == 4:
            recogniser.failed(found.key)
        else:
            texts = None if answer is None else AnswerTexts(answer, answer, [answer], "r1")
            recogniser.answered(found.key, texts)
        recogniser.check_invariants()
        assert len(recogniser) <= 9 * most


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_a_text_is_found_wherever_it_stands(before: str, text: str, after: str) -> None:
    inside = anchors_of("t", data_of([before + text + after]))
    for piece in anchor_pieces("t", text, ()):
        assert inside.have(piece[1:]) > 0
        assert not anchors_of("other", data_of([before + text + after])).have(piece[1:])
