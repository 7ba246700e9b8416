"""Paths of a server's HTTP API, without the leading slash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Api: TypeAlias = Literal["completions", "chat"]
"""Name of one of OpenAI's two APIs for generating text: from a plain prompt, or from a list of messages."""

ApiChoice: TypeAlias = Literal["auto", "completions", "chat"]
"""An API, or "auto": prompts are put into the model's chat template if there is one."""

GENERATE: Mapping[Api, str] = {"completions": "v1/completions", "chat": "v1/chat/completions"}
RESPONSES = "v1/responses"
MODELS = "v1/models"
TOKENIZE = "tokenize"
HEALTH = "health"
METRICS = "metrics"
PROPS = "props"
"""Settings of a llama.cpp server."""
