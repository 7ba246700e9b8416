"""Paths of a server's HTTP API, without the leading slash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Api: TypeAlias = Literal["completions", "chat"]
"""The two forms in which a text is asked for: a plain prompt, or a list of messages."""

GENERATE: Mapping[Api, str] = {"completions": "v1/completions", "chat": "v1/chat/completions"}
MODELS = "v1/models"
TOKENIZE = "tokenize"
HEALTH = "health"
METRICS = "metrics"
