"""An engine says so when it does not know a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.engines.contract import SteppedLLM
from stretto.engines.decoding import BASIC, changed_settings, refuse_others
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.model.errors import ConfigError
from stretto.model.tasks import Decode, Done, Failed, LLMTask
from stretto.model.values import Segment

pytest_plugins = ("support.llm_fixtures",)


def test_settings_that_are_the_default_are_not_changed() -> None:
    assert changed_settings(Decode()) == {}
    assert changed_settings(Decode(max_tokens=3, top_p=0.5)) == {"max_tokens": 3, "top_p": 0.5}


def test_settings_beyond_what_is_understood_are_refused() -> None:
    refuse_others(Decode(max_tokens=3, temperature=1.0, seed=4, stop=("x",)), BASIC, "it")
    with pytest.raises(ConfigError, match="it does not know the decoding setting top_p, ignore_eos"):
        refuse_others(Decode(top_p=0.5, ignore_eos=True), BASIC, "it")


def _failure(engine: SteppedLLM) -> Exception:
    prompt = (Segment("Say so."),)
    engine.admit(LLMTask(1, "q", "answer", prompt, Decode(top_k=3)), ())
    events = [event for _ in range(3) if engine.has_work() for event in engine.step()]
    assert isinstance(events[-1], Failed)
    return events[-1].error


def test_the_stand_in_refuses_a_setting_it_ignores() -> None:
    error = _failure(StandIn(StandInConfig()))
    assert isinstance(error, ConfigError)
    assert "step 'answer'" in str(error)


def test_the_reference_engine_refuses_a_setting_it_ignores(tiny_checkpoint: Path) -> None:
    from benchmarks.common.reference.engine import ReferenceConfig, ReferenceLLM

    assert isinstance(_failure(ReferenceLLM(ReferenceConfig(tiny_checkpoint))), ConfigError)


def test_an_engine_does_without_a_schema_that_is_a_wish() -> None:
    wish = Decode(json_schema="{}", schema_if_able=True)
    engine = StandIn(StandInConfig())
    engine.admit(LLMTask(1, "q", "answer", (Segment("Say so."),), wish), ())
    events = [event for _ in range(400) if engine.has_work() for event in engine.step()]
    assert isinstance(events[-1], Done)
