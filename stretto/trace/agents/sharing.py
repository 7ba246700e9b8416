"""What the prompts of a trace share: for each request its shared part and its key portion.

All prompts form a tree. A node is a part that the same requests have. A request's key portion is the deepest
of its nodes that is longer than all before it together.

Source: Preble §3, Table 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from stretto.model.record import record


@record
class KnownPrompt:
    """A prompt of a known length, as a sequence of blocks; equal first blocks are shared.

    Attributes:
        output_tokens: length of the answer.
    """

    blocks: Sequence[Hashable]
    num_tokens: int
    block_tokens: int
    output_tokens: int


@record
class SharedParts:
    """The parts of one request that others share.

    Attributes:
        shared_tokens: tokens of the prompt that at least one other prompt has too.
        key_tokens: tokens of its key portion.
        key: identity of the key portion, equal for all requests that have it.
        num_sharers: number of requests that have the key portion.
        found_tokens: tokens that an earlier prompt has too: what an infinite cache would find.
    """

    prompt: KnownPrompt
    shared_tokens: int
    key_tokens: int
    key: Hashable
    num_sharers: int
    found_tokens: int


def study_prompts(prompts: Iterable[KnownPrompt]) -> list[SharedParts]:
    """Return what each prompt shares with all others, in their order.

    A block that is not at an equal beginning counts as a different one.
    """
    listed = list(prompts)
    numbers: dict[tuple[int, Hashable], int] = {}
    paths, found = [], []
    for prompt in listed:
        path, parent, num_found = [], 0, 0
        for block in prompt.blocks:
            before = len(numbers)
            parent = numbers.setdefault((parent, block), before + 1)
            num_found += parent <= before
            path.append(parent)
        paths.append(path)
        found.append(min(num_found * prompt.block_tokens, prompt.num_tokens))
    counts = [0] * (len(numbers) + 1)
    for path in paths:
        for block in path:
            counts[block] += 1
    return [
        _of_one(prompt, path, counts, num) for prompt, path, num in zip(listed, paths, found, strict=True)
    ]


def _of_one(prompt: KnownPrompt, path: Sequence[int], counts: Sequence[int], found: int) -> SharedParts:
    size, shared, before = prompt.block_tokens, 0, 0
    key: tuple[int, int, int] = (0, 0, 0)
    for first, num_blocks in _nodes(path, counts):
        length = min(num_blocks * size, prompt.num_tokens - before)
        sharers = counts[first]
        if sharers > 1:
            shared += length
        if length > before:
            key = first, length, sharers
        before += length
    return SharedParts(prompt, shared, key[1], key[0], key[2], found)


def _nodes(path: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first block, number of blocks) pairs of the nodes of a path: blocks that equally many have."""
    start = 0
    for end in range(1, len(path) + 1):
        if end == len(path) or counts[path[end]] != counts[path[start]]:
            yield path[start], end - start
            start = end


def quantities(requests: Sequence[SharedParts]) -> Mapping[str, Sequence[float]]:
    """Return the values of each quantity of Preble's Table 1, by name.

    Shares are between 0 and 1. The number of requests that share a key portion is that of key portions which
    several requests have; 0 stands alone if there are none.
    """
    sharers = {one.key: one.num_sharers for one in requests if one.num_sharers > 1}
    return {
        "prompt_tokens": [one.prompt.num_tokens for one in requests],
        "output_tokens": [one.prompt.output_tokens for one in requests],
        "shared_share": [one.shared_tokens / max(1, one.prompt.num_tokens) for one in requests],
        "key_share": [one.key_tokens / max(1, one.prompt.num_tokens) for one in requests],
        "key_sharers": list(sharers.values()) or [0],
        "prompt_to_output": [one.prompt.num_tokens / max(1, one.prompt.output_tokens) for one in requests],
    }


def found_share(requests: Sequence[SharedParts]) -> float:
    """Return the share of all prompt tokens that an infinite cache would find."""
    return sum(one.found_tokens for one in requests) / max(1, sum(one.prompt.num_tokens for one in requests))
