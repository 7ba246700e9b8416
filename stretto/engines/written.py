"""What an LLM has written, for a prompt that goes on from it: the text, and the tokens that make it up."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.model.values import Segment, TokenIds, answer_segment


def as_written(text: str, tokenizer: str, tokens: Sequence[int], ends: Sequence[int]) -> Segment:
    """Return a text that an LLM has generated as a segment of a later prompt, with its tokens.

    A token belongs to the text as a whole or not at all. Tokens at the end that add no character, such as the
    first half of one, are left out.

    Args:
        text: the text as it was generated, up to a stop string.
        tokenizer: name of the tokenizer.
        tokens: the generated tokens; there may be more than belong to the text.
        ends: number of characters up to the end of each token that belongs to the output.
    """
    num_tokens = num_chars = 0
    for count, end in enumerate(ends, start=1):
        if end > len(text):
            break
        if end > num_chars:
            num_tokens, num_chars = count, end
    return answer_segment(text, TokenIds(tokenizer, tuple(tokens[:num_tokens]), num_chars))
