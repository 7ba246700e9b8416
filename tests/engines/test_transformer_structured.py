"""Output that has to follow a schema or an expression, from a model that knows neither."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from llm_running import run

from stretto.core import Segment
from stretto.engines.transformer.engine import TransformerConfig, TransformerLLM
from stretto.errors import ConfigError
from stretto.tasks import Decode, Done, Failed

pytest.importorskip("llguidance")
pytest_plugins = ("llm_fixtures",)

PROMPT = (Segment("Where does the river run?"),)
SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["sea", "mill"]}, "sure": {"type": "boolean"}},
    "required": ["place", "sure"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("num_repeats", [1, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_follows_its_structure(tiny_checkpoint: Path, num_repeats: int, temperature: float) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint, num_repeats=num_repeats))
    by_schema = run(
        llm, PROMPT, Decode(max_tokens=60, temperature=temperature, json_schema=json.dumps(SCHEMA))
    )
    by_regex = run(llm, PROMPT, Decode(max_tokens=60, temperature=temperature, regex=r"(yes|no), [0-9]{3}"))
    assert isinstance(by_schema, Done)
    assert isinstance(by_regex, Done)
    value = json.loads(str(by_schema.value))
    assert value["place"] in ("sea", "mill")
    assert isinstance(value["sure"], bool)
    assert re.fullmatch(r"(yes|no), [0-9]{3}", str(by_regex.value))


@pytest.mark.parametrize(
    "decode",
    [
        Decode(json_schema="{"),
        Decode(regex="("),
        Decode(regex="a", json_schema="{}"),
        Decode(regex="a", ignore_eos=True),
        Decode(regex="a", min_tokens=2),
    ],
)
def test_unusable_structure_fails_alone(tiny_checkpoint: Path, decode: Decode) -> None:
    llm = TransformerLLM(TransformerConfig(tiny_checkpoint))
    ending = run(llm, PROMPT, decode)
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, ConfigError)
    assert isinstance(run(llm, PROMPT, Decode(max_tokens=2)), Done)
