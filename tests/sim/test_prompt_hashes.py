"""Hashes of made-up prompts that are put together from pieces are those of whole prompts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stretto.cluster.prompt_keys import token_space
from stretto.model.values import Segment
from stretto.sim.prompt_hashes import made_up_hashes
from stretto.sim.synthetic_output import filler, prompt_ids

PIECE_CHARS = 2048
LENGTHS = st.integers(0, 3 * PIECE_CHARS) | st.sampled_from(
    [number * PIECE_CHARS + more for number in (0, 1, 2) for more in (-4, -1, 0, 1, 3, 4, 60, 63, 64)]
)


@given(
    length=LENGTHS,
    parts=st.lists(st.sampled_from(["ab", "c d ", "x" * 700, filler("a", 300)]), min_size=1, max_size=9),
    block_tokens=st.sampled_from([1, 16, 48, 128, 512, 1024]),
    salt=st.sampled_from(["", "tenant"]),
)
@example(length=2 * PIECE_CHARS - 4, parts=["ab"], block_tokens=16, salt="")
@example(length=2 * PIECE_CHARS, parts=["é" * 3000], block_tokens=16, salt="")
def test_hashes_by_pieces_are_those_of_whole_prompts(
    length: int, parts: list[str], block_tokens: int, salt: str
) -> None:
    text = ("".join(parts) * 3100)[: max(0, length)]
    hashes, whole = made_up_hashes(block_tokens), token_space("", block_tokens, prompt_ids)
    for prompt in ((Segment(text),), (Segment(text), Segment("more")), ()):
        assert list(hashes(prompt, salt)) == list(whole.hashes(prompt, salt))
