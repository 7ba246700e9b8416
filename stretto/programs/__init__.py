"""Programs on semantic variables: Python functions whose docstring is a prompt, joined by variables.

Source: Parrot §4.1, with its names: `P.SemanticFunction`, `P.SemanticVariable`, `get(perf=P.LATENCY)`.
"""

from typing import Final

from stretto.model.tasks import Criteria
from stretto.programs.app_function import App
from stretto.programs.client import Client
from stretto.programs.conversations import CHAT, VICUNA, Conversation
from stretto.programs.function import Function, semantic_function
from stretto.programs.native import NativeFunction
from stretto.programs.operators import Branches, condition, first_present, gather, join, transform
from stretto.programs.outputs import Input, Output
from stretto.programs.variable import SemanticVariable

LATENCY: Final[Criteria] = "latency"
THROUGHPUT: Final[Criteria] = "throughput"
FIRST_TOKEN: Final[Criteria] = "first_token"
TIME_PER_TOKEN: Final[Criteria] = "time_per_token"
SemanticFunction = semantic_function
"""Decorator that makes a semantic function of a Python function; its name in the paper."""

__all__ = [
    "CHAT",
    "FIRST_TOKEN",
    "LATENCY",
    "THROUGHPUT",
    "TIME_PER_TOKEN",
    "VICUNA",
    "App",
    "Branches",
    "Client",
    "Conversation",
    "Function",
    "Input",
    "NativeFunction",
    "Output",
    "SemanticFunction",
    "SemanticVariable",
    "condition",
    "first_present",
    "gather",
    "join",
    "transform",
]
