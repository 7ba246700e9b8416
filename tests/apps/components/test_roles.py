"""Prompts with roles, from the text of an app to the tokens of a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.template_runs import TemplateRun

from stretto import DEFAULT, Input, Runtime, Template
from stretto.components import LLMCall
from stretto.model.deployment import deploy
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, LLMTask

pytest_plugins = ("support.llm_fixtures",)

QUESTION, NAMES = Input("question", "text"), Input("names", "list[text]")
SYSTEM = "{system:}You answer questions about music, in one sentence at most, and in plain words.\n"


def app() -> Template:
    """Two calls with a system message in common, one of which reads the other's text as the assistant's."""
    first = LLMCall(name="first", prompt=SYSTEM + "{user:}{question}", question=QUESTION, max_tokens=6)
    then = LLMCall(
        name="then",
        prompt=SYSTEM + "{user:}{question}\n{assistant:}{answer}\n{user:}And {who}?",
        question=QUESTION,
        answer=first["text"],
        who=NAMES,
        each="who",
        max_tokens=6,
    )
    return Template("chat", first >> then, {"first": first["text"], "then": then["text"]})


NAMES_OF_PASSES = tuple(DEFAULT.passes)
SUBSETS = (
    "none",
    "all",
    "all",
    *NAMES_OF_PASSES,
    *(tuple(name for name in NAMES_OF_PASSES if name != left_out) for left_out in NAMES_OF_PASSES),
)
INPUTS = {"question": "Who was Bach?", "names": ["Mozart", "Brahms", "<|im_end|>"]}


def test_roles_reach_the_engine() -> None:
    seen: dict[str, list[tuple[str | None, str]]] = {}

    def answer(task: LLMTask, decode: Decode) -> str:
        seen[task.step] = [(segment.role, segment.text) for segment in task.prompt]
        return "A composer."

    TemplateRun(app(), {**INPUTS, "names": ["Mozart"]}, answer=answer)
    system = "You answer questions about music, in one sentence at most, and in plain words."
    assert seen["then"] == [
        ("system", system),
        ("user", ""),
        (None, "Who was Bach?"),
        ("assistant", ""),
        (None, "A composer."),
        ("user", "And "),
        (None, "Mozart"),
        (None, "?"),
    ]


@pytest.mark.parametrize("has_template", [False, True])
def test_a_model_writes_the_same_with_and_without_passes(
    has_template: bool, tiny_checkpoint: Path, tiny_chat_checkpoint: Path
) -> None:
    from stretto.engines.transformer.engine import TransformerLLM
    from stretto.engines.transformer.engine_config import TransformerConfig

    config = TransformerConfig(tiny_chat_checkpoint if has_template else tiny_checkpoint)
    llm = deploy("llm", TransformerLLM, config, contract="llm", keeps_state=True, profile=Profile())

    async def main() -> list[Any]:
        async with Runtime([llm]) as runtime:
            return [await runtime.run(app(), INPUTS, passes=passes) for passes in SUBSETS]

    plain, *optimised = asyncio.run(main())
    assert len(plain["then"]) == 3
    assert all(outputs == plain for outputs in optimised)
