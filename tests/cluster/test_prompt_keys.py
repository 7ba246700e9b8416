"""Keys of prompts: what makes them equal, and when they are computed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.cluster.placement import KeyUse
from stretto.cluster.prompt_keys import BYTES, PromptKeys, PromptSpace, SpaceOf, token_space
from stretto.model.replica import Replica
from stretto.model.values import Prompt, Segment

REPLICA = Replica(FakeLLM, FakeLLMConfig())
RULES = Segment("The rules of this house are many. " * 30)


class Counted:
    """A tokenizer by characters that counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def encode(self, prompt: Prompt) -> Sequence[int]:
        self.num_calls += 1
        return [ord(char) for segment in prompt for char in segment.text]


def keys(uses: KeyUse, space: PromptSpace | None) -> PromptKeys:
    space_of: SpaceOf = lambda engine, replica: space  # noqa: E731
    made = PromptKeys("llm", uses, space_of)
    made.join(0, REPLICA)
    return made


def test_prompts_that_begin_alike_have_leading_blocks_in_common() -> None:
    made = keys("always", None)
    one, other = (made.of((RULES, Segment(text * 200)), "")[BYTES.name] for text in ("a", "b"))
    num_common = sum(a == b for a, b in zip(one.blocks, other.blocks, strict=True))
    assert num_common == len(RULES.text) // 256
    assert one.block_tokens == 64


def test_keys_of_different_tenants_have_nothing_in_common() -> None:
    made = keys("always", None)
    one, other = (made.of((RULES,), tenant)[BYTES.name] for tenant in ("", "other"))
    assert one.blocks
    assert not set(one.blocks) & set(other.blocks)


@pytest.mark.parametrize(
    ("uses", "reports", "spaces"),
    [
        ("never", True, []),
        ("reported", True, ["chars/16"]),
        ("reported", False, []),
        ("always", True, ["chars/16"]),
        ("always", False, ["bytes"]),
    ],
)
def test_keys_are_computed_in_the_spaces_that_the_policy_reads(
    uses: KeyUse, reports: bool, spaces: list[str]
) -> None:
    made = keys(uses, token_space("chars", 16, Counted().encode) if reports else None)
    assert list(made.of((RULES,), "")) == spaces
    made.leave(0)
    assert made.of((RULES,), "") == {}


def test_a_prompt_is_tokenised_once() -> None:
    counted = Counted()
    made = keys("reported", token_space("chars", 16, counted.encode))
    assert made.of((RULES,), "") == made.of((Segment(RULES.text),), "")
    assert counted.num_calls == 1


@pytest.mark.parametrize("text", [b"bytes", None])
def test_what_is_no_text_has_no_blocks(text: object) -> None:
    """The instance that gets it refuses it."""
    made = keys("always", None)
    assert made.of((RULES, Segment(text)), "")[BYTES.name].blocks == ()  # type: ignore[arg-type]
